"""Optimizers by name, and parameter groups for weight decay, learning rates and freezing.

Each optimizer returns a descent direction, which the train step multiplies by the learning rate. That depends
only on the step of the run, so skipped steps do not shift the schedule.

Regular expressions select parameter groups. A parameter's name is its path, such as
`encoder/embeddings/word_embeddings`. A parameter that is stacked over layers has one name per layer, with the
layer's number from 0: `encoder/layers/11/query/kernel`. An expression has to match a whole name.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

from bert_jax.errors import UserError
from bert_jax.io.wording import first_line, some
from bert_jax.models.parameters import LayerSlice, name_of
from bert_jax.objectives.adapters import PartlyFrozen, encoder_config, stacked_parameters
from bert_jax.objectives.base import Objective
from bert_jax.objectives.replaced_tokens import GENERATOR, has_own_table
from bert_jax.parallel import sharding
from bert_jax.settings.run_config import OptimizerConfig
from bert_jax.training.schedules import Schedule, make_schedule

NO_DECAY = r"(.*/)?(bias|scale)"  # Biases and LayerNorm scales, as in google-research/bert.


@dataclasses.dataclass(frozen=True)
class Layers:
    """The parameters of a train state that are stacked over layers.

    `stacked` has the axis and the layers of each stacked parameter, by name. `count` is the number of layers
    of the model; 0 if none of its parameters is stacked.
    """

    stacked: Mapping[str, LayerSlice] = dataclasses.field(default_factory=dict)
    count: int = 0

    @classmethod
    def from_objective(cls, objective: Objective) -> Layers:
        """Returns the layers of an objective's trained parameters, read from their logical axis names."""
        config = encoder_config(objective)
        if config is None or not stacked_parameters(objective.init_model_shapes, objective.encoders):
            return cls()
        return cls(stacked_parameters(objective.init_shapes, objective.encoders), config.num_hidden_layers)

    def at(self, path: Any) -> LayerSlice | None:
        """Returns the layers of the parameter at a `jax.tree_util` path, or None if it is not stacked."""
        return self.stacked.get(name_of(path))

    def axes(self, path: Any, x: Any) -> tuple[int, ...] | None:
        """Returns the axes of a parameter within one layer; None, for all axes, if it is not stacked."""
        layers = self.at(path)
        return None if layers is None else tuple(axis for axis in range(x.ndim) if axis != layers.axis)

    def by_name(self, params: Any, value: Callable[[str], float]) -> Any:
        """Returns the tree of `value(name)`, float32 [layers, 1, ...] where layers are stacked."""

        def of_parameter(path, p):
            layers = self.at(path)
            if layers is None:
                return float(value(name_of(path)))
            values = np.array([value(name) for name in layers.names], np.float32)
            return values.reshape([-1 if axis == layers.axis else 1 for axis in range(p.ndim)])

        return jax.tree_util.tree_map_with_path(of_parameter, params)


def decay_mask(params: Any, layers: Layers, no_decay: str = NO_DECAY) -> Any:
    """Returns the mask of the parameters with weight decay, whose names do not match `no_decay`.

    It is a tree of bools, or of float32 arrays [layers, 1, ...] of ones and zeros for parameters whose layers
    differ.
    """
    mask = layers.by_name(params, lambda name: not re.fullmatch(no_decay, name))
    return jax.tree.map(lambda x: bool(np.all(x)) if np.all(x == np.max(x)) else x, mask)


def freeze(objective: Objective, *patterns: str) -> Objective:
    """Returns the objective with all parameters frozen that match one of the regular expressions.

    It raises UserError if an expression matches no parameter, or if all of them match every parameter.
    """
    compiled = [re.compile(pattern) for pattern in patterns if pattern]
    if not compiled:
        return objective
    frozen = PartlyFrozen(objective, lambda name: any(each.fullmatch(name) for each in compiled))
    flags = {name: flag for flags in frozen.flags.values() for name, flag in flags.items()}
    unmatched = [each.pattern for each in compiled if not any(map(each.fullmatch, flags))]
    if unmatched or all(flags.values()):
        pattern, what = (unmatched[0], "none") if unmatched else (compiled[-1].pattern, "all")
        raise UserError(f"optimizer.freeze={pattern!r} matches {what} of the parameters {some(flags)}")
    return frozen


def parse_rates(rates: str) -> list[tuple[re.Pattern[str], float]]:
    """Parses a text like `encoder/embeddings/.*=0.1; classifier/.*=10` into expressions and factors."""
    groups = []
    for part in filter(None, (part.strip() for part in rates.split(";"))):
        pattern, _, factor = part.rpartition("=")
        with contextlib.suppress(re.error, ValueError):
            if pattern and 0 <= float(factor) < math.inf:
                groups.append((re.compile(pattern), float(factor)))
                continue
        raise UserError(
            f"optimizer.rates={rates!r}: {part!r} is not REGEX=FACTOR, such as encoder/embeddings/.*=0.1"
        )
    return groups


def rate_factors(params: Any, layers: Layers, rates: str) -> Any:
    """Returns the learning rate factor of each parameter, as a tree like the result of `Layers.by_name`.

    The first expression of `rates` (see `parse_rates`) that matches a name determines its factor, which is 1
    if none matches. It raises UserError if an expression does not determine the factor of any parameter.
    """
    groups = parse_rates(rates)
    unused = {pattern.pattern for pattern, _ in groups}

    def factor(name: str) -> float:
        for pattern, number in groups:
            if pattern.fullmatch(name):
                unused.discard(pattern.pattern)
                return number
        return 1.0

    tree = layers.by_name(params, factor)
    if unused:
        raise UserError(
            f"optimizer.rates={rates!r}: {sorted(unused)[0]!r} is not the first match of any parameter"
        )
    return tree


def layer_decay_scales(params: Any, layers: Layers, decay: float) -> Any:
    """Returns the layer-wise learning rate decay of each parameter: decay ** (distance from the head).

    This is the decay of ELECTRA's fine-tuning (Clark et al. 2020, appendix B). The distance is 0 for
    parameters above the encoder, 1 for the final norm, 2 for the last layer, one more for each layer below
    it, and layers + 2 for the embeddings.

    It raises UserError if the layers share parameters. The result is a tree like the result of `by_name`.
    """
    if not layers.count:
        raise UserError(
            f"optimizer.layer_decay={decay}: the layers of this model share their parameters; leave it at 1"
        )

    def scale(name):
        group, *parts = name.split("/")
        if group != "encoder":
            return 1.0
        if parts[0] == "final_norm":
            return decay
        return decay ** (layers.count + 1 - (int(parts[1]) if parts[0] == "layers" else -1))

    return layers.by_name(params, scale)


def scale_by_tree(scales: Callable[[Any], Any]) -> optax.GradientTransformation:
    """Returns the transformation that multiplies the updates elementwise by the tree `scales(params)`."""
    return optax.stateless(
        lambda updates, params: jax.tree.map(lambda u, scale: u * scale, updates, scales(params))
    )


def add_decay(weight_decay: float, layers: Layers, no_decay: str) -> optax.GradientTransformation:
    """Returns the transformation that adds weight decay to the updates; see `decay_mask`."""

    def decayed(u, p, decays):
        if decays is False:
            return u
        return u + weight_decay * p if decays is True else u + weight_decay * decays * p

    return optax.stateless(
        lambda updates, params: jax.tree.map(decayed, updates, params, decay_mask(params, layers, no_decay))
    )


def clip_networks_by_norm(limit: float) -> optax.GradientTransformation:
    """Clips the gradients of two networks, a generator and its discriminator, by separate global norms.

    With a single norm for both, the discriminator's gradient would change the steps of a generator that
    shares no parameters with it.
    """
    clip = optax.clip_by_global_norm(limit)

    def update(updates, params):
        del params
        networks = (
            {name: x for name, x in updates.items() if (name == GENERATOR) == is_generator}
            for is_generator in (False, True)
        )
        return {name: x for each in networks for name, x in clip.update(each, clip.init(each))[0].items()}

    return optax.stateless(update)


class UncorrectedAdamState(NamedTuple):
    """The first and second moments: trees with the structure and shapes of the parameters, in float32."""

    mu: Any
    nu: Any


def scale_by_uncorrected_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Returns Adam without bias correction, m / (sqrt(v) + eps).

    This is the Adam of google-research/bert's AdamWeightDecayOptimizer.
    """

    def init(params):
        return UncorrectedAdamState(optax.tree.zeros_like(params), optax.tree.zeros_like(params))

    def update(updates, state, params=None):
        del params
        mu, nu = _moments(b1, b2, state, updates)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu), UncorrectedAdamState(mu, nu)

    return optax.GradientTransformation(init, update)


def _moments(b1: float, b2: float, state: Any, updates: Any) -> tuple[Any, Any]:
    mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
    return mu, jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.nu, updates)


def scale_by_corrected_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Returns `optax.scale_by_adam` with the same state and a more precise bias correction.

    optax computes 1 - b2**t in float32 with a relative error of 1e-5 or more, which affects all updates in
    about the first 1,000 steps.
    """
    log_b1, log_b2 = (math.log(b) if b else -math.inf for b in (b1, b2))

    def update(updates, state, params=None):
        del params
        count = optax.safe_increment(state.count)
        mu, nu = _moments(b1, b2, state, updates)
        first, second = -jnp.expm1(count * log_b1), -jnp.expm1(count * log_b2)
        scaled = jax.tree.map(lambda m, v: (m / first) / (jnp.sqrt(v / second) + eps), mu, nu)
        return scaled, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(optax.scale_by_adam(b1, b2, eps).init, update)


def stable_adamw(
    b1: float, b2: float, eps: float, decay: optax.GradientTransformation, layers: Layers
) -> optax.GradientTransformation:
    """Returns StableAdamW (Wortsman et al. 2023, algorithm 2): AdamW with the update clipping of AdaFactor.

    The update is (m / (sqrt(v) + eps) + decay) / max(1, rms), with the bias-corrected moments m and v and
    rms = sqrt(mean(g^2 / max(v, eps^2))). The mean is taken over a parameter, and per layer over a parameter
    that is stacked over layers. No other clipping of the gradient is needed.
    """
    adam = scale_by_corrected_adam(b1, b2, eps)
    log_b2 = math.log(b2) if b2 else -math.inf

    def update(updates, state, params):
        direction, state = adam.update(updates, state, params)
        decayed, _ = decay.update(direction, decay.init(params), params)
        correction = -jnp.expm1(state.count * log_b2)

        def clipped(path, u, g, v):
            ratio = jnp.square(g) / jnp.maximum(v / correction, eps**2)
            return u / jnp.maximum(1, jnp.sqrt(jnp.mean(ratio, layers.axes(path, g), keepdims=True)))

        return jax.tree_util.tree_map_with_path(clipped, decayed, updates, state.nu), state

    return optax.GradientTransformation(adam.init, update)


def scale_by_trust_ratio(layers: Layers, no_decay: str = NO_DECAY) -> optax.GradientTransformation:
    """Returns the transformation that multiplies updates u by LAMB's trust ratio |p| / |u|.

    See You et al. 2020, algorithm 2. The ratio is 1 if either norm is 0, and for parameters without weight
    decay (by default biases and LayerNorm scales), as in tensorflow/models and ALBERT. The norms are taken
    per layer: a parameter that is stacked over layers has one ratio per layer.
    """

    def scale(updates, params):
        def scaled(path, u, p, decays):
            if decays is False:
                return u
            axes = layers.axes(path, p)
            norm, size = (jnp.sqrt(jnp.sum(jnp.square(x), axes, keepdims=True)) for x in (u, p))
            ratio = jnp.where((norm > 0) & (size > 0), size / jnp.where(norm > 0, norm, 1), 1)
            return u * (ratio if decays is True else jnp.where(decays > 0, ratio, 1))

        mask = decay_mask(params, layers, no_decay)
        return jax.tree_util.tree_map_with_path(scaled, updates, params, mask)

    return optax.stateless(scale)


def muon_dimensions(layers: Layers) -> Callable[[Any], Any]:
    """Maps parameters to the axes that Muon treats as rows and columns; None for parameters trained by Adam.

    As recommended by Muon's authors, Adam trains embeddings, heads, biases and LayerNorm scales.
    """

    def dimensions(path, p):
        stacked = layers.at(path)
        names = stacked.template.split("/") if stacked else [""]
        if names[-1] != "kernel":
            return None
        axes = layers.axes(path, p)
        # The rows of attention's output are heads x head size.
        rows = len(axes) - 1 if names[-2] in ("attention_output", "output") else 1
        return optax.contrib.MuonDimensionNumbers(axes[:rows], axes[rows:])

    return lambda params: jax.tree_util.tree_map_with_path(dimensions, params)


# Maps (b1, b2, eps) to the transformation of the gradient. It is followed by weight decay, and by the trust
# ratio for the optimizers in WITH_TRUST_RATIO.
_ADAM: dict[str, Callable[[float, float, float], optax.GradientTransformation]] = {
    "adamw": scale_by_uncorrected_adam,
    "adamw_bias_corrected": scale_by_corrected_adam,
    "lamb": scale_by_corrected_adam,
    "lamb_uncorrected": scale_by_uncorrected_adam,
}
WITH_TRUST_RATIO = ("lamb", "lamb_uncorrected")
_STABLE_ADAMW = "stable_adamw"

# Arguments that fields of the configuration replace.
_RATE_AND_DECAY = (
    "learning_rate", "adam_learning_rate", "mask", "weight_decay_mask", "weight_decay", "adam_weight_decay",
    "muon_weight_dimension_numbers",
)  # fmt: skip


def from_optax(name: str, layers: Layers, args: str) -> optax.GradientTransformation:
    """Returns the descent direction of one of `OPTAX_OPTIMIZERS`.

    `args` are other arguments of its function in Python syntax, such as `b1=0.95, nesterov=True`. It raises
    UserError if the optimizer does not accept them.
    """
    make: Any = getattr(optax, name, None) or getattr(optax.contrib, name)
    accepted = inspect.signature(make).parameters
    options: dict[str, Any] = {"weight_decay": 0.0} if "weight_decay" in accepted else {}
    if name == "muon":
        options["muon_weight_dimension_numbers"] = muon_dimensions(layers)
    try:
        call: Any = ast.parse(f"f({args})", mode="eval").body
        given = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        if call.args or not accepted.keys() - set(_RATE_AND_DECAY) >= given.keys():
            raise ValueError(f"it takes {', '.join(set(accepted) - set(_RATE_AND_DECAY))}")
        optimizer = make(learning_rate=1.0, **options | given)
        # Some arguments are only checked when the optimizer is used.
        jax.eval_shape(optimizer.init, {"w": jax.ShapeDtypeStruct((2, 2), np.float32)})
    except (SyntaxError, ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"optimizer.args={args!r}: expected keyword arguments of optax.{name}, such as b1=0.95 "
            f"({first_line(error)})"
        ) from error
    return optax.chain(optimizer, optax.scale(-1.0))


def finite_check(config: OptimizerConfig) -> str:
    """Returns the check, in addition to finite gradients, that keeps the parameters finite.

    Adam needs none: an element of its direction is bounded by (1 - b1) / sqrt((1 - b2) (1 - b1^2 / b2)), 7.3
    for b1=.9 and b2=.999, and bias correction multiplies it by less than 1 / (1 - b1). LAMB makes the update
    of a layer as large as its parameters, which therefore have to be far from an overflow. No bound is known
    for other optimizers or for `rates`. The result is "nothing", "norm" (of the parameters) or "update"; see
    `step.make_train_step`.
    """
    bounded = (
        not config.rates
        and 0 <= config.b1**2 < config.b2 < 1
        and config.eps > 0
        and config.learning_rate <= 1
        and 0 <= config.learning_rate * config.weight_decay <= 1
    )
    if bounded and config.name in ("adamw", "adamw_bias_corrected", _STABLE_ADAMW):
        return "nothing"
    return "norm" if bounded and config.name in WITH_TRUST_RATIO else "update"


def make_optimizer(
    config: OptimizerConfig, total_steps: int, objective: Objective | None
) -> tuple[optax.GradientTransformation, Schedule]:
    """Returns a transformation whose updates the train step multiplies by -schedule(step), and the schedule.

    Without `decay_steps`, the learning rate reaches 0 at `total_steps`. Without an objective, which defines
    the optimized parameters, no parameter is stacked over layers. It raises UserError if a value is invalid.
    """
    parse_rates(config.rates)
    layers = Layers.from_objective(objective) if objective is not None else Layers()
    if objective is not None and config.weight_decay and config.no_decay not in ("", NO_DECAY):
        mask = decay_mask(sharding.unbox(objective.init_shapes), layers, config.no_decay)
        if all(decays is True for decays in jax.tree.leaves(mask)):
            raise UserError(f"optimizer.no_decay={config.no_decay!r} matches no parameter")
    is_separate = objective is not None and has_own_table(objective.init_model_shapes)
    clip = clip_networks_by_norm if is_separate else optax.clip_by_global_norm
    steps = [clip(config.clip_norm)] if config.clip_norm else []
    decay = optax.identity()
    if config.weight_decay:
        decay = add_decay(config.weight_decay, layers, config.no_decay)
    adam = _ADAM.get(config.name)
    if config.name == _STABLE_ADAMW:
        steps.append(stable_adamw(config.b1, config.b2, config.eps, decay, layers))
    else:
        own = (config.b1, config.b2, config.eps)
        direction = adam(*own) if adam else from_optax(config.name, layers, config.args)
        steps += [direction, decay] if config.weight_decay else [direction]
    if config.name in WITH_TRUST_RATIO:
        steps.append(scale_by_trust_ratio(layers, config.no_decay))
    if config.layer_decay < 1:
        scales = functools.partial(layer_decay_scales, layers=layers, decay=config.layer_decay)
        steps.append(scale_by_tree(scales))
    if config.rates:
        scales = functools.partial(rate_factors, layers=layers, rates=config.rates)
        steps.append(scale_by_tree(scales))
    return optax.chain(*steps), make_schedule(config, total_steps)
