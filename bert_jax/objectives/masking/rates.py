"""The share of tokens to predict as a function of the step.

The linear and the cosine schedule are those of Ankner et al. 2023, "Dynamic Masking Rate Schedules for MLM
Pretraining".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from etils import epy

with epy.lazy_imports():  # the options are read before jax may be imported
    import jax
    import jax.numpy as jnp


Share: TypeAlias = "Callable[[jax.Array], jax.Array]"


def _linear(done: jax.Array) -> jax.Array:
    return done


def _cosine(done: jax.Array) -> jax.Array:
    return jnp.square(jnp.sin(jnp.pi / 2 * done))


# Functions (share of the steps that are done, from 0 to 1) -> (share of the way from the first to the last
# value); None for a value that does not change.
SCHEDULES: dict[str, Share | None] = {"constant": None, "linear": _linear, "cosine": _cosine}


def share_at(schedule: str, first: float, last: float, total_steps: int, step: jax.Array) -> jax.Array:
    """Returns the share of tokens to predict at a step, float32.

    Args:
        schedule: a name in `SCHEDULES` other than "constant".
        first: the share at step 0.
        last: the share at step `total_steps` and after it.
        total_steps: the number of steps from `first` to `last`.
        step: the step, counted from 0.
    """
    way = SCHEDULES[schedule]
    if way is None:
        raise ValueError(f"schedule {schedule!r} has no steps")
    done = jnp.clip(jnp.asarray(step, jnp.float32) / total_steps, 0.0, 1.0)
    return first + (last - first) * way(done)
