"""The layers of an encoder as runs: layers that are alike, or repeat a pattern, are one scan."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

from bert_jax.models.config import EncoderConfig


@dataclasses.dataclass(frozen=True)
class LayerSpec:
    """What one layer of an encoder has of its own.

    Attributes:
        window: a token sees the tokens at most this far to each side; 0 for all.
        theta: base of the rotary angles.
        attention_norm: whether there is a norm for the attention.
    """

    window: int = 0
    theta: float = 10_000.0
    attention_norm: bool = True


@dataclasses.dataclass(frozen=True)
class Run:
    """Layers that one scan computes.

    Attributes:
        layers: applied one after the other in each repeat, each with parameters of its own.
        repeats: how often.
        shared: whether all repeats have the same parameters; otherwise these are stacked along a leading
            axis.
        first: number of the run's first layer.
    """

    layers: tuple[LayerSpec, ...]
    repeats: int
    shared: bool = False
    first: int = 0

    def numbers(self, member: int) -> tuple[int, ...]:
        """Returns the numbers of the layers that one of `layers` is, one for each repeat."""
        members = len(self.layers)
        return tuple(self.first + i * members + member for i in range(self.repeats))


def layer_runs(config: EncoderConfig) -> tuple[Run, ...]:
    """Returns the runs of an encoder, in order."""
    if config.layer_groups:
        each = config.num_hidden_layers / config.layer_groups
        groups = [int(i / each) for i in range(config.num_hidden_layers)]
        members = (LayerSpec(theta=config.rotary_theta),) * config.layers_per_group
        parts = [(members, groups.count(group), True) for group in range(config.layer_groups)]
    else:
        parts = _stacked(config)
    runs, first = [], 0
    for layers, repeats, shared in parts:
        if repeats:
            runs.append(Run(tuple(layers), repeats, shared, first))
            first += len(layers) * repeats
    return tuple(runs)


def _stacked(config: EncoderConfig) -> list[tuple[list[LayerSpec], int, bool]]:
    specs = [_spec(config, layer) for layer in range(config.num_hidden_layers)]
    # A first layer with other parameters than the rest is a run of its own.
    start = 0 if config.first_attention_norm else 1
    rest = specs[start:]
    period = 1 if len(set(rest)) <= 1 else config.global_every
    whole = len(rest) // period
    return [
        (specs[:start], min(start, 1), False),
        (rest[:period], whole, False),
        (rest[whole * period :], 1 if len(rest) % period else 0, False),
    ]


def _spec(config: EncoderConfig, layer: int) -> LayerSpec:
    has_norm = layer > 0 or config.first_attention_norm
    if layer % config.global_every == 0:
        return LayerSpec(0, config.rotary_theta, has_norm)
    return LayerSpec(config.local_window, config.local_rotary_theta, has_norm)


_STACKED = re.compile(r"(?:^|(?<=/))layers/stack(?:_(?P<run>\d+))?/layer(?:_(?P<member>\d+))?(?=/)")


def is_stacked(name: str) -> bool:
    """Returns whether a parameter has one value for each layer of its run, along its first axis.

    Args:
        name: like `encoder/layers/stack/layer/query/kernel`.
    """
    return _STACKED.search(name) is not None


def layer_names(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, list[tuple[int, str]]]:
    """Returns the number of each layer of stacked parameters, and the parameter's name in that layer alone.

    Args:
        shapes: of all parameters of a model, by name.

    Returns:
        {name: [(number, name in that layer), ...]} in the order of the first axis. Names in a layer are like
        `encoder/layers/11/query/kernel`, with the layer's number from 0.
    """
    found = {name: match for name in shapes if (match := _STACKED.search(name))}
    runs: dict[tuple[str, int], tuple[int, int]] = {}  # by what is in front of `layers`: repeats, members
    for name, match in found.items():
        key = (name[: match.start()], int(match["run"] or 0))
        members = max(runs.get(key, (0, 0))[1], int(match["member"] or 0) + 1)
        runs[key] = (shapes[name][0], members)
    names = {}
    for name, match in found.items():
        key = (name[: match.start()], int(match["run"] or 0))
        first = sum(math.prod(run) for other, run in runs.items() if other[0] == key[0] and other[1] < key[1])
        repeats, members = runs[key]
        numbers = [first + i * members + int(match["member"] or 0) for i in range(repeats)]
        before, after = name[: match.start()], name[match.end() :]
        names[name] = [(number, f"{before}layers/{number}{after}") for number in numbers]
    return names


def named(runs: tuple[Run, ...]) -> Iterator[tuple[str, Run]]:
    """Yields each run with the name of its parameters: `stack`, or of several `stack_0`, `stack_1`, ...

    Where all repeats share their parameters, which therefore have no axis of layers, it is `shared`.
    """
    for i, run in enumerate(runs):
        kind = "shared" if run.shared else "stack"
        yield (kind if len(runs) == 1 else f"{kind}_{i}"), run


def member_name(run: Run, member: int) -> str:
    """Returns the name of a layer's parameters inside its run: `layer`, or of several `layer_0`, ..."""
    return "layer" if len(run.layers) == 1 else f"layer_{member}"
