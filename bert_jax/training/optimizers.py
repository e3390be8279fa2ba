"""Adam with decoupled weight decay as google-research/bert has it, LAMB, and their schedules, by name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.errors import UserError

OPTIMIZERS = ("adamw", "adamw_bias_corrected", "lamb", "lamb_uncorrected")
SCHEDULES = ("reference", "warmup_then_decay", "constant")

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


class UncorrectedAdamState(NamedTuple):
    """The two moments, trees like the parameters, in float32."""

    mu: Any
    nu: Any


def scale_by_uncorrected_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """m / (sqrt(v) + eps) without bias correction: the Adam of google-research/bert's
    AdamWeightDecayOptimizer.
    """

    def init(params):
        return UncorrectedAdamState(optax.tree.zeros_like(params), optax.tree.zeros_like(params))

    def update(updates, state, params=None):
        del params
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.nu, updates)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu), UncorrectedAdamState(mu, nu)

    return optax.GradientTransformation(init, update)


def scale_by_corrected_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """`optax.scale_by_adam` with its state, and with corrections that keep their precision.

    In float32 optax's 1 - b2**t is wrong by 1e-5 and more, and with it every update until 1,000 steps or so.
    """
    log_b1, log_b2 = (math.log(b) if b else -math.inf for b in (b1, b2))

    def update(updates, state, params=None):
        del params
        count = optax.safe_increment(state.count)
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.nu, updates)
        first, second = -jnp.expm1(count * log_b1), -jnp.expm1(count * log_b2)
        scaled = jax.tree.map(lambda m, v: (m / first) / (jnp.sqrt(v / second) + eps), mu, nu)
        return scaled, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(optax.scale_by_adam(b1, b2, eps).init, update)


def scale_by_trust_ratio() -> optax.GradientTransformation:
    """LAMB's |p| / |u| of each weight that decays (You et al. 2020, algorithm 2); 1 where either norm is 0.

    Biases and LayerNorm's weights keep a ratio of 1, as in tensorflow/models and ALBERT. The norms are those
    of one layer: a parameter of all layers has as many ratios as layers.
    """

    def update(updates, state, params):
        def scaled(path, u, p):
            if not _decays(path):
                return u
            axes = tuple(range(1, p.ndim)) if _is_stacked(path) else None
            norm, size = (jnp.sqrt(jnp.sum(jnp.square(x), axes, keepdims=True)) for x in (u, p))
            return u * jnp.where((norm > 0) & (size > 0), size / jnp.where(norm > 0, norm, 1), 1)

        return jax.tree_util.tree_map_with_path(scaled, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def scale_by_tree(scales: Callable[[Any], Any]) -> optax.GradientTransformation:
    """Multiplies every update by what `scales(params)` has in its place."""

    def update(updates, state, params):
        return jax.tree.map(lambda u, scale: u * scale, updates, scales(params)), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def layer_decay_scales(params: Any, decay: float) -> Any:
    """decay ** (distance from the head) of each parameter, as in ELECTRA's fine-tuning (Clark et al. 2020,
    appendix B): 0 for what is above the encoder, 2 for its last layer, and one more for each layer below.

    Returns:
        A tree of floats and, for parameters of all layers, of float32 arrays [layers, 1, ...].
    """
    layers = _layer_count(params)

    def scale(path, p):
        if path[0].key != "encoder":
            return 1.0
        if not _is_stacked(path):
            return decay ** (layers + 2)
        distances = layers + 1 - np.arange(layers)
        return np.float32(decay**distances).reshape(-1, *[1] * (p.ndim - 1))

    return jax.tree_util.tree_map_with_path(scale, params)


def trained_mask(params: Any, freeze: str) -> Any:
    """1 for parameters that are trained, 0 for those whose whole name `freeze` matches.

    Args:
        freeze: a regular expression over names like `encoder/embeddings/word_embeddings` and
            `encoder/layers/11/query/kernel`, layers from 0.

    Raises:
        UserError: it matches nothing, or everything, or is no regular expression.
    """
    try:
        frozen = re.compile(freeze)
    except re.error as error:
        raise UserError(f"optimizer.freeze={freeze!r} is no regular expression ({error})") from error
    names: dict[str, bool] = {}

    def trained(name: str) -> float:
        names[name] = not frozen.fullmatch(name)
        return float(names[name])

    def mask(path, p):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if not _is_stacked(path):
            return trained(name)
        rows = [trained(name.replace(_STACK, f"layers/{i}")) for i in range(p.shape[0])]
        return np.float32(rows).reshape(-1, *[1] * (p.ndim - 1))

    tree = jax.tree_util.tree_map_with_path(mask, params)
    if len(set(names.values())) < 2:
        what = "every parameter" if not any(names.values()) else "none"
        raise UserError(
            f"optimizer.freeze={freeze!r} matches {what}; names are like {', '.join(list(names)[:2])}"
        )
    return tree


_STACK = "layers/stack/layer"


def _is_stacked(path) -> bool:
    return _STACK in jax.tree_util.keystr(path, simple=True, separator="/")


def _layer_count(params: Any) -> int:
    return next(p.shape[0] for path, p in jax.tree_util.tree_leaves_with_path(params) if _is_stacked(path))


def _decays(path) -> bool:
    return path[-1].key not in ("bias", "scale")


def decay_mask(params: Any) -> Any:
    """True for every weight that decays: all but biases and LayerNorm's (the reference's exclusion list)."""
    return jax.tree_util.tree_map_with_path(lambda path, _: _decays(path), params)


def keeps_parameters_finite(config: Any) -> bool:
    """Returns whether finite gradients can only lead to finite parameters.

    An element of Adam's direction is at most (1 - b1) / sqrt((1 - b2) (1 - b1^2 / b2)) in size (by the
    Cauchy-Schwarz inequality; 7.3 for .9 and .999), and bias correction multiplies it by less than
    1 / (1 - b1). As long as weight decay shrinks the parameters, no number of steps leads out of float32. The
    trust ratio of LAMB lets parameters grow with themselves, so there is no such bound.

    Args:
      config: the `optimizer` part of a run's configuration, as for `make_optimizer`.
    """
    return (
        config.name in ("adamw", "adamw_bias_corrected")
        and 0 <= config.b1**2 < config.b2 < 1
        and config.eps > 0
        and config.learning_rate <= 1
        and 0 <= config.learning_rate * config.weight_decay <= 1
    )


def make_optimizer(config: Any, total_steps: int) -> tuple[optax.GradientTransformation, Schedule]:
    """The direction of descent and the learning rate, from the `optimizer` part of a run's configuration.

    Args:
      config: name, schedule, learning_rate, warmup_steps, weight_decay, b1, b2, eps, clip_norm (0 for none),
        and, of fine-tuning, layer_decay (1 for none) and freeze ("" for none); of pre-training, decay_steps.
      total_steps: steps at which the decay reaches 0, unless decay_steps says otherwise.

    Returns:
      A transformation whose updates the train step multiplies by -schedule(step), and that schedule. The rate
      is a function of the run's step alone, so steps skipped for non-finite gradients do not shift it.
    """
    decay_steps = getattr(config, "decay_steps", 0)
    total_steps = decay_steps or total_steps
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
    uncorrected = config.name in ("adamw", "lamb_uncorrected")
    adam = scale_by_uncorrected_adam if uncorrected else scale_by_corrected_adam
    freeze = getattr(config, "freeze", "")
    layer_decay = getattr(config, "layer_decay", 1.0)
    if not 0 < layer_decay <= 1:
        raise UserError(f"optimizer.layer_decay={layer_decay}: expected more than 0, and at most 1 for none")
    unfrozen = [scale_by_tree(lambda params: trained_mask(params, freeze))] if freeze else []
    steps = [*unfrozen]  # so that what is frozen has no part in the norm
    if config.clip_norm:
        steps.append(optax.clip_by_global_norm(config.clip_norm))
    steps.append(adam(b1=config.b1, b2=config.b2, eps=config.eps))
    if config.weight_decay:
        steps.append(optax.add_decayed_weights(config.weight_decay, mask=decay_mask))
    if config.name.startswith("lamb"):
        steps.append(scale_by_trust_ratio())
    if layer_decay < 1:
        steps.append(scale_by_tree(lambda params: layer_decay_scales(params, layer_decay)))
    steps += unfrozen  # nor does it decay
    return optax.chain(*steps), schedules[config.schedule](
        config.learning_rate, config.warmup_steps, total_steps
    )
