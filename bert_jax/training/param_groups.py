"""Groups of parameters, by regular expressions over their names: which decay, at which rate, and which stay.

A parameter's name is its path, such as `encoder/embeddings/word_embeddings`. One that has a value for each
layer has as many names, with the layer's number from 0: `encoder/layers/11/query/kernel`. An expression has
to match a whole name.
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

NO_DECAY = r"(.*/)?(bias|scale)"  # biases and LayerNorm's weights, as in google-research/bert


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def is_stacked(path: Any) -> bool:
    """Returns whether the parameter at a path of `jax.tree_util` has a value for each layer, along axis 0."""
    return runs.is_stacked(_name(path))


def _layer_names(params: Any) -> dict[str, list[tuple[int, str]]]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return runs.layer_names({_name(path): p.shape for path, p in leaves})


def by_name(params: Any, value: Callable[[str], float]) -> Any:
    """Returns a tree of `value(name)` for each parameter.

    Returns:
        Floats, and float32 [layers, 1, ...] for a parameter that has a value for each layer.
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
    """Returns for each parameter whether it decays: all but those that `no_decay` matches.

    Returns:
        A tree of bools, and of float32 [layers, 1, ...] with 1 and 0 where the layers differ.
    """
    pattern = _compiled("no_decay", no_decay)
    mask = by_name(params, lambda name: not pattern.fullmatch(name))
    return jax.tree.map(lambda x: bool(np.all(x)) if np.all(x == np.max(x)) else x, mask)


def trained_mask(params: Any, freeze: str) -> Any:
    """Returns 1 for parameters that are trained and 0 for those that `freeze` matches; see `by_name`.

    Raises:
        UserError: it matches nothing, or everything, or is no regular expression.
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
    """Returns the expressions and factors of a text like `encoder/embeddings/.*=0.1; classifier/.*=10`.

    Raises:
        UserError: a text of another form.
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
    """Returns the factor of each parameter's learning rate; see `by_name`.

    Args:
        params: the parameters.
        rates: see `parse_rates`. The first expression that matches a name counts, and 1 if none does.

    Raises:
        UserError: an expression matches nothing.
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
    """decay ** (distance from the head) of each parameter, as in ELECTRA's fine-tuning (Clark et al. 2020,
    appendix B): 0 for what is above the encoder, 2 for its last layer, and one more for each layer below.

    Returns:
        A tree of floats and, for parameters of all layers, of float32 arrays [layers, 1, ...].

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
    """Multiplies every update by what `scales(params)` has in its place."""

    def update(updates, state, params):
        return jax.tree.map(lambda u, scale: u * scale, updates, scales(params)), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def add_decay(weight_decay: float, no_decay: str = NO_DECAY) -> optax.GradientTransformation:
    """Adds `weight_decay` times the parameter to the update of each one that decays; see `decay_mask`."""

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
