"""Parameter groups for weight decay, learning rates and freezing, selected by regular expressions.

A parameter's name is its path, such as `encoder/embeddings/word_embeddings`. A parameter that is stacked over
layers has one name per layer, with the layer's number from 0: `encoder/layers/11/query/kernel`. A regular
expression has to match a whole name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from bert_jax.errors import UserError
from bert_jax.models import runs

NO_DECAY = r"(.*/)?(bias|scale)"  # Biases and LayerNorm scales, as in google-research/bert.


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def is_stacked(path: Any) -> bool:
    """Returns whether the parameter at a `jax.tree_util` path is stacked over layers along axis 0."""
    return runs.is_stacked(_name(path))


def _layer_names(params: Any) -> dict[str, list[tuple[int, str]]]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return runs.layer_names({_name(path): p.shape for path, p in leaves})


def by_name(params: Any, value: Callable[[str], float]) -> Any:
    """Evaluates `value(name)` for each parameter.

    Returns:
        A tree of floats, and of float32 arrays [layers, 1, ...] for parameters that are stacked over layers.
    """
    layers = _layer_names(params)

    def of_parameter(path, p):
        name = _name(path)
        if name not in layers:
            return float(value(name))
        rows = [value(in_layer) for _, in_layer in layers[name]]
        return np.float32(rows).reshape(-1, *[1] * (p.ndim - 1))

    return jax.tree_util.tree_map_with_path(of_parameter, params)


def decay_mask(params: Any, no_decay: str = NO_DECAY) -> Any:
    """Returns the mask of the parameters with weight decay, which are those that `no_decay` does not match.

    Returns:
        A tree of bools, and of float32 arrays [layers, 1, ...] with values 1 and 0 if the layers of a
        parameter differ.
    """
    pattern = _compiled("no_decay", no_decay)
    mask = by_name(params, lambda name: not pattern.fullmatch(name))
    return jax.tree.map(lambda x: bool(np.all(x)) if np.all(x == np.max(x)) else x, mask)


def trained_mask(params: Any, freeze: str) -> Any:
    """Returns 0 for parameters that `freeze` matches and 1 for the others, as a tree like `by_name`'s.

    Raises:
        UserError: `freeze` matches no parameter or every parameter, or is not a regular expression.
    """
    frozen = _compiled("freeze", freeze)
    names: dict[str, bool] = {}

    def trained(name: str) -> bool:
        names[name] = not frozen.fullmatch(name)
        return names[name]

    tree = by_name(params, trained)
    if len(set(names.values())) < 2:
        what = "every parameter" if not any(names.values()) else "none"
        raise UserError(
            f"optimizer.freeze={freeze!r} matches {what}; names are like {', '.join(list(names)[:2])}"
        )
    return tree


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


def rate_factors(params: Any, rates: str) -> Any:
    """Returns the learning rate factor of each parameter, as a tree like `by_name`'s.

    Args:
        params: the parameters.
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

    tree = by_name(params, factor)
    if unused:
        raise UserError(
            f"optimizer.rates={rates!r}: {sorted(unused)[0]!r} matches no parameter, or only those that an "
            f"expression before it matches; names are like {', '.join(names[:2])}"
        )
    return tree


def layer_decay_scales(params: Any, decay: float) -> Any:
    """Returns the layer-wise learning rate decay of each parameter: decay ** (distance from the head).

    This is the decay of ELECTRA's fine-tuning (Clark et al. 2020, appendix B). The distance is 0 for
    parameters above the encoder, 1 for the final norm, 2 for the last layer, one more for each layer below
    it, and layers + 2 for the embeddings.

    Args:
        params: the parameters.
        decay: the factor between adjacent layers.

    Returns:
        A tree of floats, and of float32 arrays [layers, 1, ...] for parameters that are stacked over layers.

    Raises:
        UserError: the layers share their parameters.
    """
    names = _layer_names(params)
    if not names:
        raise UserError(
            f"optimizer.layer_decay={decay}: the layers of this model share their parameters, so that these "
            "are at no distance from the head; leave it at 1"
        )
    layers = 1 + max(number for each in names.values() for number, _ in each)

    def scale(path, p):
        name = _name(path)
        if path[0].key != "encoder":
            return 1.0
        if name.startswith("encoder/final_norm/"):
            return decay
        if name not in names:
            return decay ** (layers + 2)
        distances = layers + 1 - np.array([number for number, _ in names[name]])
        return np.float32(decay**distances).reshape(-1, *[1] * (p.ndim - 1))

    return jax.tree_util.tree_map_with_path(scale, params)


def scale_by_tree(scales: Callable[[Any], Any]) -> optax.GradientTransformation:
    """Returns the transformation that multiplies the updates elementwise by the tree `scales(params)`."""

    def update(updates, state, params):
        return jax.tree.map(lambda u, scale: u * scale, updates, scales(params)), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def add_decay(weight_decay: float, no_decay: str = NO_DECAY) -> optax.GradientTransformation:
    """Returns the transformation that adds weight decay to the updates; see `decay_mask`."""

    def update(updates, state, params):
        def decayed(u, p, decays):
            if decays is False:
                return u
            return u + weight_decay * p if decays is True else u + weight_decay * decays * p

        return jax.tree.map(decayed, updates, params, decay_mask(params, no_decay)), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _compiled(field: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UserError(f"optimizer.{field}={pattern!r} is no regular expression ({error})") from error
