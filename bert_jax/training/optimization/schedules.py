"""Learning rate schedules by name, as functions of the step."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from bert_jax.errors import UserError
from bert_jax.settings.run_config import OptimizerConfig

Schedule = Callable[[jax.Array], jax.Array]


def reference_schedule(learning_rate: float, warmup_steps: int, total_steps: int) -> Schedule:
    """Returns a linear warm-up and a linear decay from step 0 (google-research/bert, optimization.py).

    The rate at step t is lr t/W during the W steps of warm-up and lr (1 - t/T) afterwards, so it drops to
    lr (1 - W/T) at the end of warm-up.
    """

    def schedule(step):
        step = jnp.asarray(step, jnp.float32)
        # Near the end of a million steps, 1 - step / total_steps has an error of 0.2% and more in float32.
        decayed = learning_rate * jnp.maximum(total_steps - step, 0.0) / total_steps
        return jnp.where(step < warmup_steps, learning_rate * step / max(warmup_steps, 1), decayed)

    return schedule


def warmup_then_decay_schedule(learning_rate: float, warmup_steps: int, total_steps: int) -> Schedule:
    """Returns a linear warm-up from 0 to lr at step W and a linear decay to 0 at step T, without a jump.

    This is the linear schedule of Hugging Face transformers.
    """

    def schedule(step):
        step = jnp.asarray(step, jnp.float32)
        decayed = learning_rate * jnp.clip(
            (total_steps - step) / max(total_steps - warmup_steps, 1), 0.0, 1.0
        )
        return jnp.where(step < warmup_steps, learning_rate * step / max(warmup_steps, 1), decayed)

    return schedule


def constant_schedule(learning_rate: float, warmup_steps: int, total_steps: int) -> Schedule:
    """Returns a linear warm-up to lr at step W and a constant rate afterwards."""
    del total_steps
    return lambda step: (
        learning_rate * jnp.minimum(jnp.asarray(step, jnp.float32) / max(warmup_steps, 1), 1.0)
    )


def cosine_schedule(learning_rate: float, warmup_steps: int, total_steps: int) -> Schedule:
    """Returns a linear warm-up from 0 to lr at step W and a half-period cosine decay to 0 at step T."""

    def schedule(step):
        step = jnp.asarray(step, jnp.float32)
        left = jnp.clip((total_steps - step) / max(total_steps - warmup_steps, 1), 0.0, 1.0)
        # Equal to (1 + cos(pi (1 - left))) / 2, which loses all significant digits near the end.
        decayed = learning_rate * jnp.square(jnp.sin(jnp.pi / 2 * left))
        return jnp.where(step < warmup_steps, learning_rate * step / max(warmup_steps, 1), decayed)

    return schedule


def inverse_square_root_schedule(learning_rate: float, warmup_steps: int, total_steps: int) -> Schedule:
    """Returns a linear warm-up from 0 to lr at step W and then the rate lr sqrt(W / t).

    The rate does not depend on the number of steps of the run.
    """
    del total_steps

    def schedule(step):
        step = jnp.asarray(step, jnp.float32)
        warmup = max(warmup_steps, 1)
        return learning_rate * jnp.minimum(step / warmup, jnp.sqrt(warmup / jnp.maximum(step, 1.0)))

    return schedule


def product_schedule(learning_rate: float, warmup_steps: int, total_steps: int) -> Schedule:
    """Returns the product of a linear warm-up and a linear decay, lr min(1, t/W) (1 - t/T) (ELECTRA)."""

    def schedule(step):
        step = jnp.asarray(step, jnp.float32)
        decayed = learning_rate * jnp.maximum(total_steps - step, 0.0) / total_steps
        return decayed * jnp.minimum(step / max(warmup_steps, 1), 1.0)

    return schedule


# Each function maps (learning rate, warm-up steps W, step T at which the decay ends) to a schedule, which
# maps a step, counted from 0, to its rate.
SCHEDULES: dict[str, Callable[[float, int, int], Schedule]] = {
    "reference": reference_schedule,
    "warmup_then_decay": warmup_then_decay_schedule,
    "constant": constant_schedule,
    "cosine": cosine_schedule,
    "inverse_square_root": inverse_square_root_schedule,
    "product": product_schedule,
}


def make_schedule(config: OptimizerConfig, total_steps: int) -> Schedule:
    """Returns the learning rate schedule of a configuration.

    Args:
        config: the `optimizer` part of a run's configuration.
        total_steps: the step at which the decay ends, unless decay_steps is set; 0 if it is not known yet.

    Raises:
        UserError: the name is unknown, or the warm-up is not shorter than the run or the decay.
    """
    total_steps = config.decay_steps or total_steps
    if config.schedule not in SCHEDULES:
        raise UserError(
            f"optimizer.schedule={config.schedule!r} is unknown; choose one of {', '.join(SCHEDULES)}"
        )
    if config.warmup_steps >= total_steps > 0:
        if config.decay_steps:
            raise UserError(
                f"optimizer.warmup_steps={config.warmup_steps}: expected less than optimizer.decay_steps="
                f"{config.decay_steps}; set fewer, or a later end of the decay"
            )
        raise UserError(
            f"optimizer.warmup_steps={config.warmup_steps}: expected less than the {total_steps} steps of "
            f"the run; set fewer (a tenth is {total_steps // 10}), or train for longer by --config.steps or, "
            "in fine-tuning, --config.epochs"
        )
    return SCHEDULES[config.schedule](config.learning_rate, config.warmup_steps, total_steps)
