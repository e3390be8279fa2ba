"""Parameter groups for weight decay, learning rates and freezing, selected by regular expressions.

A parameter's name is its path, such as `encoder/embeddings/word_embeddings`. A parameter that is stacked over
layers has one name per layer, with the layer's number from 0: `encoder/layers/11/query/kernel`. A regular
expression has to match a whole name.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import optax

from bert_jax.errors import UserError
from bert_jax.models.parameters import StackedLayers, name_of
from bert_jax.objectives.adapters import PartlyFrozen, encoder_config, stacked_parameters
from bert_jax.objectives.base import Objective

NO_DECAY = r"(.*/)?(bias|scale)"  # Biases and LayerNorm scales, as in google-research/bert.


@dataclasses.dataclass(frozen=True)
class Layers:
    """Which parameters of a train state are stacked over layers.

    Attributes:
        stacked: the axis and the layers of each stacked parameter, by name.
        count: the number of layers of the model; 0 if none of its parameters is stacked.
    """

    stacked: Mapping[str, StackedLayers] = dataclasses.field(default_factory=dict)
    count: int = 0

    @classmethod
    def of(cls, objective: Objective) -> Layers:
        """Returns the layers of an objective's trained parameters, read from their logical axis names."""
        config = encoder_config(objective)
        if config is None or not stacked_parameters(objective.init_model_shapes, config):
            return cls()
        return cls(stacked_parameters(objective.init_shapes, config), config.num_hidden_layers)

    def at(self, path: Any) -> StackedLayers | None:
        """Returns the layers of the parameter at a `jax.tree_util` path, or None if it is not stacked."""
        return self.stacked.get(name_of(path))

    def axes(self, path: Any, x: Any) -> tuple[int, ...] | None:
        """Returns the axes of a parameter within one layer; None, for all axes, if it is not stacked."""
        layers = self.at(path)
        return None if layers is None else tuple(axis for axis in range(x.ndim) if axis != layers.axis)

    def by_name(self, params: Any, value: Callable[[str], float]) -> Any:
        """Evaluates `value(name)` for each parameter.

        Returns:
            A tree of floats, and of float32 arrays such as [layers, 1, ...] for parameters that are stacked
            over layers.
        """

        def of_parameter(path, p):
            layers = self.at(path)
            if layers is None:
                return float(value(name_of(path)))
            return _along(layers, p, [value(name) for name in layers.names])

        return jax.tree_util.tree_map_with_path(of_parameter, params)


def _along(layers: StackedLayers, p: Any, values: Any) -> np.ndarray:
    """Returns one value for each layer, as an array that broadcasts to a parameter."""
    return np.asarray(values, np.float32).reshape(
        [-1 if axis == layers.axis else 1 for axis in range(p.ndim)]
    )


def decay_mask(params: Any, layers: Layers, no_decay: str = NO_DECAY) -> Any:
    """Returns the mask of the parameters with weight decay, which are those that `no_decay` does not match.

    Returns:
        A tree of bools, and of float32 arrays [layers, 1, ...] with values 1 and 0 if the layers of a
        parameter differ.
    """
    pattern = _compiled("no_decay", no_decay)
    mask = layers.by_name(params, lambda name: not pattern.fullmatch(name))
    return jax.tree.map(lambda x: bool(np.all(x)) if np.all(x == np.max(x)) else x, mask)


def check_no_decay(params: Any, layers: Layers, no_decay: str) -> None:
    """Raises UserError if all parameters have weight decay, because `no_decay` matches none of them."""
    if all(decays is True for decays in jax.tree.leaves(decay_mask(params, layers, no_decay))):
        raise UserError(
            f"optimizer.no_decay={no_decay!r} matches no parameter; expected a regular expression of whole "
            f"names, as the default, {NO_DECAY!r}, or an empty one for decay of all"
        )


def freeze(objective: Objective, *patterns: str) -> Objective:
    """Returns the objective with those parameters frozen that a regular expression matches.

    Args:
        objective: a training objective.
        patterns: regular expressions, of which empty ones are ignored.

    Raises:
        UserError: an expression matches no parameter, all expressions match every parameter, or one is not a
            regular expression.
    """
    compiled = [_compiled("freeze", pattern) for pattern in patterns if pattern]
    if not compiled:
        return objective
    frozen = PartlyFrozen(objective, lambda name: any(each.fullmatch(name) for each in compiled))
    flags = {name: flag for flags in frozen.flags.values() for name, flag in flags.items()}
    unmatched = [each.pattern for each in compiled if not any(map(each.fullmatch, flags))]
    if unmatched or all(flags.values()):
        pattern, what = (unmatched[0], "none") if unmatched else (compiled[-1].pattern, "every tensor")
        raise UserError(
            f"optimizer.freeze={pattern!r} matches {what}; names are like {', '.join(list(flags)[:2])}"
        )
    return frozen


def parse_rates(rates: str) -> list[tuple[re.Pattern[str], float]]:
    """Parses a text like `encoder/embeddings/.*=0.1; classifier/.*=10`.

    Returns:
        The pairs of a regular expression and a factor.

    Raises:
        UserError: the text has another form.
    """
    groups = []
    for part in filter(None, (part.strip() for part in rates.split(";"))):
        pattern, _, factor = part.rpartition("=")
        try:
            number = float(factor)
        except ValueError:
            number = -1.0
        if not pattern or not 0 <= number < float("inf"):
            raise UserError(
                f"optimizer.rates={rates!r}: {part!r} is not REGEX=FACTOR, such as encoder/embeddings/.*=0.1"
            )
        groups.append((_compiled("rates", pattern), number))
    return groups


def rate_factors(params: Any, layers: Layers, rates: str) -> Any:
    """Returns the learning rate factor of each parameter, as a tree like that of `Layers.by_name`.

    Args:
        params: the parameters.
        layers: the layers of stacked parameters.
        rates: see `parse_rates`. The first expression that matches a name gives its factor, which is 1 if
            none matches.

    Raises:
        UserError: an expression gives no parameter its factor.
    """
    groups = parse_rates(rates)
    unused = {pattern.pattern for pattern, _ in groups}
    names = []

    def factor(name: str) -> float:
        names.append(name)
        for pattern, number in groups:
            if pattern.fullmatch(name):
                unused.discard(pattern.pattern)
                return number
        return 1.0

    tree = layers.by_name(params, factor)
    if unused:
        raise UserError(
            f"optimizer.rates={rates!r}: {sorted(unused)[0]!r} matches no tensor, or only those that an "
            f"expression before it matches; names are like {', '.join(names[:2])}"
        )
    return tree


def layer_decay_scales(params: Any, layers: Layers, decay: float) -> Any:
    """Returns the layer-wise learning rate decay of each parameter: decay ** (distance from the head).

    This is the decay of ELECTRA's fine-tuning (Clark et al. 2020, appendix B). The distance is 0 for
    parameters above the encoder, 1 for the final norm, 2 for the last layer, one more for each layer below
    it, and layers + 2 for the embeddings.

    Args:
        params: the parameters.
        layers: the layers of stacked parameters.
        decay: the factor between adjacent layers.

    Returns:
        A tree of floats, and of float32 arrays [layers, 1, ...] for parameters that are stacked over layers.

    Raises:
        UserError: the layers share their parameters.
    """
    if not layers.count:
        raise UserError(
            f"optimizer.layer_decay={decay}: the layers of this model share their parameters, which "
            "have one learning rate for all layers; leave it at 1"
        )

    def scale(path, p):
        if path[0].key != "encoder":
            return 1.0
        if name_of(path).startswith("encoder/final_norm/"):
            return decay
        of_layers = layers.at(path)
        if of_layers is None:
            return decay ** (layers.count + 2)
        return _along(of_layers, p, decay ** (layers.count + 1 - np.array(of_layers.numbers)))

    return jax.tree_util.tree_map_with_path(scale, params)


def scale_by_tree(scales: Callable[[Any], Any]) -> optax.GradientTransformation:
    """Returns the transformation that multiplies the updates elementwise by the tree `scales(params)`."""
    return optax.stateless(
        lambda updates, params: jax.tree.map(lambda u, scale: u * scale, updates, scales(params))
    )


def add_decay(weight_decay: float, layers: Layers, no_decay: str = NO_DECAY) -> optax.GradientTransformation:
    """Returns the transformation that adds weight decay to the updates; see `decay_mask`."""

    def decayed(u, p, decays):
        if decays is False:
            return u
        return u + weight_decay * p if decays is True else u + weight_decay * decays * p

    return optax.stateless(
        lambda updates, params: jax.tree.map(decayed, updates, params, decay_mask(params, layers, no_decay))
    )


def _compiled(field: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UserError(f"optimizer.{field}={pattern!r} is no regular expression ({error})") from error
