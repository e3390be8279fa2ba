"""Adam with decoupled weight decay as google-research/bert has it, its schedules, and the usual variants by
name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bert_jax.errors import UserError

OPTIMIZERS = ("adamw", "adamw_bias_corrected")
SCHEDULES = ("reference", "warmup_then_decay", "constant")

Schedule = Callable[[jax.Array], jax.Array]


def reference_schedule(learning_rate: float, warmup_steps: int, total_steps: int) -> Schedule:
    """Linear warm-up to lr, and a linear decay that runs from step 0 (google-research/bert, optimization.py).

    The rate is lr t/W before step W and lr (1 - t/T) from then on, so it drops to lr (1 - W/T) as warm-up
    ends.
    """

    def schedule(step):
        step = jnp.asarray(step, jnp.float32)
        decayed = learning_rate * jnp.maximum(1 - step / total_steps, 0.0)
        return jnp.where(step < warmup_steps, learning_rate * step / max(warmup_steps, 1), decayed)

    return schedule


def warmup_then_decay_schedule(learning_rate: float, warmup_steps: int, total_steps: int) -> Schedule:
    """Linear from 0 to lr at step W, then linear to 0 at step T, without a jump (transformers' linear
    schedule)."""

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


class UncorrectedAdamState(NamedTuple):
    mu: Any
    nu: Any


def scale_by_uncorrected_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """m / (sqrt(v) + eps) without bias correction: the Adam of google-research/bert's
    AdamWeightDecayOptimizer."""

    def init(params):
        return UncorrectedAdamState(optax.tree.zeros_like(params), optax.tree.zeros_like(params))

    def update(updates, state, params=None):
        del params
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.nu, updates)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu), UncorrectedAdamState(mu, nu)

    return optax.GradientTransformation(init, update)


def decay_mask(params: Any) -> Any:
    """True for every weight that decays: all but biases and LayerNorm's (the reference's exclusion list)."""

    def decays(path, _):
        return path[-1].key not in ("bias", "scale")

    return jax.tree_util.tree_map_with_path(decays, params)


def make_optimizer(config: Any, total_steps: int) -> tuple[optax.GradientTransformation, Schedule]:
    """The direction of descent and the learning rate, from the `optimizer` part of a run's configuration.

    Args:
      config: name, schedule, learning_rate, warmup_steps, weight_decay, b1, b2, eps, clip_norm (0 for none).
      total_steps: steps at which the decay reaches 0.

    Returns:
      A transformation whose updates the train step multiplies by -schedule(step), and that schedule. The rate
      is a function of the run's step alone, so steps skipped for non-finite gradients do not shift it.
    """
    schedules = dict(
        reference=reference_schedule, warmup_then_decay=warmup_then_decay_schedule, constant=constant_schedule
    )
    if config.schedule not in schedules:
        raise UserError(
            f"optimizer.schedule={config.schedule!r} is unknown; choose one of {', '.join(SCHEDULES)}"
        )
    if config.name not in OPTIMIZERS:
        raise UserError(f"optimizer.name={config.name!r} is unknown; choose one of {', '.join(OPTIMIZERS)}")
    if config.warmup_steps >= total_steps > 0:
        raise UserError(
            f"optimizer.warmup_steps={config.warmup_steps} must be less than steps={total_steps}: set "
            f"--config.optimizer.warmup_steps (a tenth: {total_steps // 10}), or more --config.steps"
        )
    adam = scale_by_uncorrected_adam if config.name == "adamw" else optax.scale_by_adam
    steps = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    steps.append(adam(b1=config.b1, b2=config.b2, eps=config.eps))
    if config.weight_decay:
        steps.append(optax.add_decayed_weights(config.weight_decay, mask=decay_mask))
    return optax.chain(*steps), schedules[config.schedule](
        config.learning_rate, config.warmup_steps, total_steps
    )
