"""Optimizers by name: the Adam of google-research/bert, LAMB, StableAdamW, and every optimizer of optax.

Each optimizer returns a descent direction, which the train step multiplies by the learning rate. The learning
rate depends only on the step of the run, so skipped steps do not shift the schedule.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

from bert_jax.errors import UserError
from bert_jax.io.wording import did_you_mean
from bert_jax.objectives.base import Objective
from bert_jax.parallel import sharding
from bert_jax.settings.run_config import OptimizerConfig
from bert_jax.training.optimization import param_groups
from bert_jax.training.optimization.layerwise import by_layer
from bert_jax.training.optimization.param_groups import NO_DECAY, Layers, decay_mask
from bert_jax.training.optimization.schedules import Schedule, make_schedule


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

    optax computes 1 - b2**t in float32 with a relative error of 1e-5 and more, which affects every update of
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

    Args:
        b1: the decay rate of the first moment.
        b2: the decay rate of the second moment.
        eps: added to the root of the second moment.
        decay: adds weight decay to a direction; it has no state.
        layers: the layers of stacked parameters.
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

    Args:
        layers: the layers of stacked parameters.
        no_decay: regular expression that matches the names of the parameters without weight decay.
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
    """Returns a function that returns the axes that Muon treats as rows and columns, for each parameter.

    The result is None for all parameters except kernels that are stacked over layers. Embeddings, heads,
    biases and LayerNorm scales are trained by Adam, as Muon's authors do.
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
_OWN = (*_ADAM, _STABLE_ADAMW)

# Maps the layers to arguments with which these models need to call optimizers of optax.
_OPTAX_ARGUMENTS: dict[str, Callable[[Layers], dict[str, Any]]] = {
    "muon": lambda layers: {"muon_weight_dimension_numbers": muon_dimensions(layers)},
}

# Those that compute norms of parameters, so that the layers of a stacked one have to be apart.
_BY_LAYER = ("adafactor",)

# Optimizers of optax that these train states do not hold, or that would compute something else with them.
_UNUSABLE = dict.fromkeys(("lars", "novograd"), "its norms or moments contain the weight decay") | {
    "galore": "it projects matrices, and here an array holds those of all layers",
    "sm3": "the form of its state changes with the first step",
    "noisy_sgd": "its state holds a random key",
}
_EXAMPLES = ("adafactor", "lion", "muon", "sgd")

# Those that multiply by a rate of their own: weight decay is added to their gradient, as in optax, because
# decay outside would be that of a rate of 1.
_DECAY_IN_GRADIENT = ("dog", "dowg")

# Maps arguments of optax's functions to the fields of the configuration that replace them.
_FIELD_OF = {
    "learning_rate": "learning_rate",
    "adam_learning_rate": "rates",
    "mask": "no_decay",
    "weight_decay_mask": "no_decay",
} | dict.fromkeys(("weight_decay", "weight_decay_rate", "adam_weight_decay"), "weight_decay")
_EXAMPLE_OF = {"adam_learning_rate": ", such as '.*layers/.*/kernel=1; .*=0.1'"}  # to end a message
_ADAM_DEFAULTS = {"b1": 0.9, "b2": 0.999, "eps": 1e-6}


def from_optax(name: str, layers: Layers, args: str = "") -> optax.GradientTransformation:
    """Returns the descent direction of an optimizer of optax or optax.contrib.

    Args:
        name: the name of a function of optax or optax.contrib that has an argument `learning_rate`.
        layers: the layers of stacked parameters.
        args: other arguments of the function in Python syntax, such as `b1=0.95, nesterov=True`.

    Raises:
        UserError: there is no such optimizer, or it does not accept the arguments.
    """
    make, taken = _function_of_optax(name)
    given = _arguments(args)
    for argument in given:
        _check_argument(name, args, argument, taken)
    refused = f"optimizer.name={name!r}{f' with optimizer.args={args!r}' if args else ''} cannot be used"
    options = {"weight_decay": 0.0} if "weight_decay" in taken else {}
    try:
        options |= _OPTAX_ARGUMENTS.get(name, lambda layers: {})(layers)
        with_rate = functools.partial(make, **options | given)
        # As in the train step.
        with jax.numpy_dtype_promotion("standard"), sharding.intended_transfer():
            is_direction = _follows_rate(with_rate)
    except (TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{refused}: {reason}") from error
    if not is_direction:
        others = ", ".join(example for example in _EXAMPLES if example != name)
        raise UserError(
            f"{refused}: it does not only multiply by its learning rate, which follows a schedule here; "
            f"choose another, such as {others}"
        )
    optimizer = with_rate(learning_rate=1.0)
    return optax.chain(by_layer(optimizer, layers) if name in _BY_LAYER else optimizer, optax.scale(-1.0))


def _function_of_optax(name: str) -> tuple[Callable[..., optax.GradientTransformation], Collection[str]]:
    """Returns the function of optax or optax.contrib of this name, and the names of its arguments."""
    make: Any = getattr(optax, name, None) or getattr(optax.contrib, name, None)
    is_function = inspect.isfunction(make) or isinstance(make, functools.partial)
    taken = tuple(inspect.signature(make).parameters) if is_function else ()
    if "learning_rate" not in taken:
        raise UserError(
            f"optimizer.name={name!r} is unknown; choose one of {', '.join(_OWN)}, or an optimizer of "
            f"optax, such as {', '.join(_EXAMPLES)}{did_you_mean(name, (*_OWN, *_EXAMPLES))}"
        )
    if reason := _UNUSABLE.get(name):
        raise UserError(
            f"optimizer.name={name!r} cannot be used: {reason}; choose another, such as {_EXAMPLES[0]}"
        )
    return make, taken


def _check_argument(name: str, args: str, argument: str, taken: Collection[str]) -> None:
    """Raises UserError if an argument in `optimizer.args` is a field of its own, or not one of `taken`."""
    if argument in _FIELD_OF:
        raise UserError(
            f"optimizer.args={args!r}: set optimizer.{_FIELD_OF[argument]} instead of {argument}"
            f"{_EXAMPLE_OF.get(argument, '')}"
        )
    if argument not in taken:
        known = ", ".join(known for known in taken if known not in _FIELD_OF)
        raise UserError(f"optimizer.args={args!r}: {name} has no {argument}; it has {known}")


def _follows_rate(with_rate: Callable[..., optax.GradientTransformation]) -> bool:
    """Returns whether the updates of an optimizer are linear in the rates of its steps.

    Means of updates are linear in them, and estimates that weigh gradients by their rates are not. All rates
    see the same gradients, and the same weights, which move against the gradients.

    Args:
        with_rate: returns the optimizer with its argument `learning_rate`.
    """
    start, slope = jnp.array([[1.0, -2.0], [3.0, -4.0]]), jnp.array([[0.3, -0.1], [0.2, 0.5]])

    @jax.jit
    def updates_with(rates):
        def step(state, numbered):
            number, rate = numbered
            gradient, weights = slope * (1 + 0.1 * number), start - 0.1 * number * slope
            updates, state = with_rate(learning_rate=rate).update({"w": gradient}, state, {"w": weights})
            return state, updates["w"]

        initial = with_rate(learning_rate=rates[0]).init({"w": start})
        return jax.lax.scan(step, initial, (jnp.arange(len(rates)), rates))[1]

    # Enough steps for step sizes that grow to reach their limit.
    constant = jnp.ones(40)
    decaying = 1 / jnp.arange(1, 1 + len(constant))
    apart = updates_with(constant) + updates_with(decaying)
    return bool(np.allclose(updates_with(constant + decaying), apart, rtol=1e-3, atol=1e-6))


def _arguments(text: str) -> dict[str, Any]:
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("no keyword arguments")
        return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise UserError(
            f"optimizer.args={text!r}: expected arguments as Python writes them, such as b1=0.95, "
            "nesterov=True"
        ) from error


def finite_check(config: OptimizerConfig) -> str:
    """Returns what a train step has to check, besides its gradients, so that the parameters stay finite.

    Nothing for Adam: an element of its direction is bounded by (1 - b1) / sqrt((1 - b2) (1 - b1^2 / b2))
    (from the Cauchy-Schwarz inequality; 7.3 for b1=.9 and b2=.999), and bias correction multiplies it by less
    than 1 / (1 - b1). With a learning rate of at most 1, and weight decay that does not overshoot, the
    parameters cannot overflow float32. LAMB's trust ratio makes the update of a layer as large as its
    parameters, so that these have to be far from an overflow, too. No bound is known for other optimizers or
    for `rates`.

    Args:
        config: the `optimizer` part of a run's configuration, as for `make_optimizer`.

    Returns:
        "nothing", "norm", the norm of the parameters, or "update"; see `step.make_train_step`.
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
    """Returns the optimizer and the learning rate schedule of a configuration.

    Args:
        config: the `optimizer` part of a run's configuration. For `freeze`, see `param_groups.freeze`.
        total_steps: the step at which the learning rate reaches 0, unless decay_steps is set.
        objective: has the parameters that are optimized. With None, no parameter is stacked over layers.

    Returns:
        A transformation whose updates the train step multiplies by -schedule(step), and the schedule.

    Raises:
        UserError: a name is unknown, or a value is invalid.
    """
    param_groups.parse_rates(config.rates)
    layers = Layers.of(objective) if objective is not None else Layers()
    if objective is not None and config.weight_decay and config.no_decay not in ("", NO_DECAY):
        param_groups.check_no_decay(sharding.unbox(objective.init_shapes), layers, config.no_decay)
    steps = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    decay = optax.identity()
    if config.weight_decay:
        decay = param_groups.add_decay(config.weight_decay, layers, config.no_decay)
    if config.name in _OWN and config.args:
        raise UserError(
            f"optimizer.args={config.args!r}: {config.name} has none; set optimizer.b1, optimizer.b2 and "
            "optimizer.eps"
        )
    if config.name == _STABLE_ADAMW:
        steps.append(stable_adamw(config.b1, config.b2, config.eps, decay, layers))
    else:
        adam = _ADAM.get(config.name)
        direction = adam(config.b1, config.b2, config.eps) if adam else _direction_of_optax(config, layers)
        pair = [direction, decay] if config.weight_decay else [direction]
        steps += reversed(pair) if config.name in _DECAY_IN_GRADIENT else pair
    if config.name in WITH_TRUST_RATIO:
        steps.append(scale_by_trust_ratio(layers, config.no_decay))
    if config.layer_decay < 1:
        scales = functools.partial(param_groups.layer_decay_scales, layers=layers, decay=config.layer_decay)
        steps.append(param_groups.scale_by_tree(scales))
    if config.rates:
        scales = functools.partial(param_groups.rate_factors, layers=layers, rates=config.rates)
        steps.append(param_groups.scale_by_tree(scales))
    return optax.chain(*steps), make_schedule(config, total_steps)


def _direction_of_optax(config: OptimizerConfig, layers: Layers) -> optax.GradientTransformation:
    direction = from_optax(config.name, layers, config.args)
    for field, default in _ADAM_DEFAULTS.items():
        if (value := getattr(config, field)) != default:
            raise UserError(
                f"optimizer.{field}={value}: is not used by optimizer.name={config.name!r}; leave it at "
                f"{default}, and give the optimizer's own arguments by optimizer.args"
            )
    return direction
