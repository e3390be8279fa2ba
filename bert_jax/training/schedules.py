"""Learning rate schedules by name, as functions of the step.

The arguments of each function are a step t, counted from 0, the largest learning rate lr, the warm-up steps
W, and the step T at which the decay ends. It returns the learning rate of the step. Further arguments are the
fields of `SCHEDULE_FIELDS`: initial_rate (at step 0) and final_rate (from step T on) are fractions of lr.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from bert_jax.errors import UserError
from bert_jax.settings.run_config import SCHEDULE_FIELDS, OptimizerConfig

Schedule = Callable[[jax.Array], jax.Array]


def _above(final_rate: float, left: jax.Array) -> jax.Array:
    return final_rate + (1 - final_rate) * left if final_rate else left


def _after_warmup(
    step: jax.Array, learning_rate: float, warmup_steps: float, decayed: jax.Array
) -> jax.Array:
    return jnp.where(step < warmup_steps, learning_rate * step / max(warmup_steps, 1), decayed)


def _warmth(step: jax.Array, warmup_steps: float) -> jax.Array:
    return jnp.minimum(step / max(warmup_steps, 1), 1.0) if warmup_steps else jnp.ones_like(step)


def reference(step: jax.Array, learning_rate: float, warmup_steps: float, total_steps: int) -> jax.Array:
    """Returns the rate of a linear warm-up and a linear decay from step 0, as in google-research/bert.

    The rate at step t is lr t/W during the W steps of warm-up and lr (1 - t/T) afterwards, so it drops to
    lr (1 - W/T) at the end of warm-up.
    """
    step = jnp.asarray(step, jnp.float32)
    # Near the end of a million steps, 1 - step / total_steps has an error of 0.2% or more in float32.
    decayed = learning_rate * jnp.maximum(total_steps - step, 0.0) / total_steps
    return _after_warmup(step, learning_rate, warmup_steps, decayed)


def warmup_then_decay(
    step: jax.Array, learning_rate: float, warmup_steps: float, total_steps: int, final_rate: float = 0.0
) -> jax.Array:
    """Returns the rate of a linear warm-up to lr at step W and a linear decay until step T, without a jump.

    With a final rate of 0, this is the linear schedule of Hugging Face transformers.
    """
    step = jnp.asarray(step, jnp.float32)
    left = jnp.clip((total_steps - step) / max(total_steps - warmup_steps, 1), 0.0, 1.0)
    return _after_warmup(step, learning_rate, warmup_steps, learning_rate * _above(final_rate, left))


def constant(step: jax.Array, learning_rate: float, warmup_steps: float, total_steps: int) -> jax.Array:
    """Returns the rate of a linear warm-up to lr at step W and a constant rate afterwards."""
    del total_steps
    return learning_rate * _warmth(jnp.asarray(step, jnp.float32), warmup_steps)


def triangle(
    step: jax.Array,
    learning_rate: float,
    warmup_steps: float,
    total_steps: int,
    initial_rate: float = 0.0,
    final_rate: float = 0.0,
) -> jax.Array:
    """Returns the rate of a linear rise from a fraction of lr, to lr at step W, and a decay until step T.

    Crammed BERT (Geiping and Goldstein 2023) uses it with a rise from lr/4 over 3/4 of the run.
    """
    done = jnp.asarray(step, jnp.float32) / max(warmup_steps, 1)
    return jnp.where(
        step < warmup_steps,
        learning_rate * _above(initial_rate, done),
        warmup_then_decay(step, learning_rate, warmup_steps, total_steps, final_rate),
    )


# Maps (fraction of the cooldown done, fraction left) to a factor from 1 to 0. The second function equals
# 1 - sqrt(done), in a form that keeps its significant digits near the end.
_COOLDOWNS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "linear": lambda done, left: left,
    "sqrt": lambda done, left: left / (1 + jnp.sqrt(done)),
}


def wsd(
    step: jax.Array,
    learning_rate: float,
    warmup_steps: float,
    total_steps: int,
    cooldown_steps: float = 0,
    cooldown: str = "linear",
    final_rate: float = 0.0,
) -> jax.Array:
    """Returns the rate of a warm-up, a stable phase and a decay (Hu et al. 2024; Haegele et al. 2024).

    The rate rises linearly from 0 to lr at step W and stays there until step T - C. At step n of the
    C = `cooldown_steps` steps of cooldown it is lr times 1 - n/C ("linear") or 1 - sqrt(n/C) ("sqrt").
    """
    steps = max(cooldown_steps, 1)
    step = jnp.asarray(step, jnp.float32)
    left = jnp.clip((total_steps - step) / steps, 0.0, 1.0)
    done = jnp.clip((step - (total_steps - steps)) / steps, 0.0, 1.0)
    decayed = learning_rate * _above(final_rate, _COOLDOWNS[cooldown](done, left))
    return _after_warmup(step, learning_rate, warmup_steps, decayed)


def cosine(
    step: jax.Array, learning_rate: float, warmup_steps: float, total_steps: int, final_rate: float = 0.0
) -> jax.Array:
    """Returns the rate of a linear warm-up to lr at step W and a half-period cosine decay until step T."""
    step = jnp.asarray(step, jnp.float32)
    left = jnp.clip((total_steps - step) / max(total_steps - warmup_steps, 1), 0.0, 1.0)
    # Equal to (1 + cos(pi (1 - left))) / 2, which loses all significant digits near the end.
    decayed = learning_rate * _above(final_rate, jnp.square(jnp.sin(jnp.pi / 2 * left)))
    return _after_warmup(step, learning_rate, warmup_steps, decayed)


def inverse_square_root(
    step: jax.Array, learning_rate: float, warmup_steps: float, total_steps: int
) -> jax.Array:
    """Returns the rate of a linear warm-up to lr at step W, and then lr sqrt(W / t), independent of T."""
    del total_steps
    step, warmup = jnp.asarray(step, jnp.float32), max(warmup_steps, 1)
    falling = jnp.sqrt(warmup / jnp.maximum(step, 1.0))
    return learning_rate * (jnp.minimum(step / warmup, falling) if warmup_steps else falling)


def product(step: jax.Array, learning_rate: float, warmup_steps: float, total_steps: int) -> jax.Array:
    """Returns the product of a linear warm-up and a linear decay, lr min(1, t/W) (1 - t/T) (ELECTRA)."""
    step = jnp.asarray(step, jnp.float32)
    decayed = learning_rate * jnp.maximum(total_steps - step, 0.0) / total_steps
    return decayed * _warmth(step, warmup_steps)


_FUNCTIONS: tuple[Callable[..., jax.Array], ...] = (
    reference, warmup_then_decay, constant, cosine, inverse_square_root, product, triangle, wsd
)  # fmt: skip
SCHEDULES = {function.__name__: function for function in _FUNCTIONS}


def make_schedule(config: OptimizerConfig, total_steps: int) -> Schedule:
    """Returns the learning rate schedule of a configuration.

    Without `decay_steps`, the decay ends at `total_steps`; 0 if they are not known yet. It raises UserError
    if the warm-up and the cooldown do not fit into the run or the decay.
    """
    total_steps = config.decay_steps or total_steps
    warmup = config.warmup_fraction * total_steps or config.warmup_steps
    if warmup >= total_steps > 0:
        raise UserError(
            f"optimizer.warmup_steps={config.warmup_steps}: expected fewer than the {total_steps} steps of "
            "the schedule"
        )
    further = {name: getattr(config, name) for name in SCHEDULE_FIELDS.get(config.schedule, ())}
    cooldown = config.cooldown_steps
    if config.schedule == "wsd" and (not cooldown or warmup + cooldown > total_steps > 0):
        raise UserError(
            f"optimizer.cooldown_steps={cooldown}: expected at least 1, and with {warmup:g} warm-up steps at "
            f"most the {total_steps} steps of the schedule"
        )
    options = {"learning_rate": config.learning_rate, "warmup_steps": warmup, "total_steps": total_steps}
    return functools.partial(SCHEDULES[config.schedule], **options, **further)
