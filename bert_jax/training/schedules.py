"""Learning rates as functions of the step, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.errors import UserError

Schedule = Callable[[jax.Array], jax.Array]


def reference_schedule(learning_rate: float, warmup_steps: int, total_steps: int) -> Schedule:
    """Linear warm-up to lr, and a linear decay that runs from step 0 (google-research/bert, optimization.py).

    The rate is lr t/W before step W and lr (1 - t/T) from then on, so it drops to lr (1 - W/T) as warm-up
    ends.
    """

    def schedule(step):
        step = jnp.asarray(step, jnp.float32)
        # Not 1 - step / total_steps: in float32 that is wrong by 0.2% and more where a million steps end.
        decayed = learning_rate * jnp.maximum(total_steps - step, 0.0) / total_steps
        return jnp.where(step < warmup_steps, learning_rate * step / max(warmup_steps, 1), decayed)

    return schedule


def warmup_then_decay_schedule(learning_rate: float, warmup_steps: int, total_steps: int) -> Schedule:
    """Linear from 0 to lr at step W, then linear to 0 at step T, without a jump (transformers' linear
    schedule).
    """

    def schedule(step):
        step = jnp.asarray(step, jnp.float32)
        decayed = learning_rate * jnp.clip(
            (total_steps - step) / max(total_steps - warmup_steps, 1), 0.0, 1.0
        )
        return jnp.where(step < warmup_steps, learning_rate * step / max(warmup_steps, 1), decayed)

    return schedule


def constant_schedule(learning_rate: float, warmup_steps: int, total_steps: int) -> Schedule:
    """Linear warm-up, then lr."""
    del total_steps
    return lambda step: (
        learning_rate * jnp.minimum(jnp.asarray(step, jnp.float32) / max(warmup_steps, 1), 1.0)
    )


def cosine_schedule(learning_rate: float, warmup_steps: int, total_steps: int) -> Schedule:
    """Linear from 0 to lr at step W, then half a period of a cosine down to 0 at step T."""

    def schedule(step):
        step = jnp.asarray(step, jnp.float32)
        left = jnp.clip((total_steps - step) / max(total_steps - warmup_steps, 1), 0.0, 1.0)
        # (1 + cos(pi (1 - left))) / 2, which loses all its digits near the end.
        decayed = learning_rate * jnp.square(jnp.sin(jnp.pi / 2 * left))
        return jnp.where(step < warmup_steps, learning_rate * step / max(warmup_steps, 1), decayed)

    return schedule


def inverse_square_root_schedule(learning_rate: float, warmup_steps: int, total_steps: int) -> Schedule:
    """Linear from 0 to lr at step W, then lr sqrt(W / t), which does not depend on the end of the run."""
    del total_steps

    def schedule(step):
        step = jnp.asarray(step, jnp.float32)
        warmup = max(warmup_steps, 1)
        return learning_rate * jnp.minimum(step / warmup, jnp.sqrt(warmup / jnp.maximum(step, 1.0)))

    return schedule


def product_schedule(learning_rate: float, warmup_steps: int, total_steps: int) -> Schedule:
    """lr min(1, t/W) (1 - t/T): a linear warm-up times a linear decay from step 0 (ELECTRA)."""

    def schedule(step):
        step = jnp.asarray(step, jnp.float32)
        decayed = learning_rate * jnp.maximum(total_steps - step, 0.0) / total_steps
        return decayed * jnp.minimum(step / max(warmup_steps, 1), 1.0)

    return schedule


# (learning rate, steps W of warm-up, step T at which a decay ends) -> the rate of a step, counted from 0.
SCHEDULES: dict[str, Callable[[float, int, int], Schedule]] = {
    "reference": reference_schedule,
    "warmup_then_decay": warmup_then_decay_schedule,
    "constant": constant_schedule,
    "cosine": cosine_schedule,
    "inverse_square_root": inverse_square_root_schedule,
    "product": product_schedule,
}


def make_schedule(config: Any, total_steps: int) -> Schedule:
    """Returns the schedule of the `optimizer` part of a run's configuration.

    Args:
        config: schedule, learning_rate, warmup_steps and, in pre-training, decay_steps.
        total_steps: the step at which a decay ends, unless decay_steps says otherwise; 0 if it is not known
            yet.

    Raises:
        UserError: an unknown name, or a warm-up that is too long.
    """
    decay_steps = getattr(config, "decay_steps", 0)
    total_steps = decay_steps or total_steps
    if config.schedule not in SCHEDULES:
        raise UserError(
            f"optimizer.schedule={config.schedule!r} is unknown; choose one of {', '.join(SCHEDULES)}"
        )
    if config.warmup_steps >= total_steps > 0:
        if decay_steps:
            raise UserError(
                f"optimizer.warmup_steps={config.warmup_steps}: expected less than optimizer.decay_steps="
                f"{decay_steps}; set fewer, or a later end of the decay"
            )
        raise UserError(
            f"optimizer.warmup_steps={config.warmup_steps}: expected less than the {total_steps} steps of "
            f"the run; set fewer (a tenth is {total_steps // 10}), or train for longer by --config.steps or, "
            "in fine-tuning, --config.epochs"
        )
    return SCHEDULES[config.schedule](config.learning_rate, config.warmup_steps, total_steps)
