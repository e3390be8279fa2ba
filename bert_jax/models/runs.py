"""Groups the layers of an encoder into runs: one scan computes equal layers, or a repeated pattern."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from bert_jax.models.config import EncoderConfig


@dataclasses.dataclass(frozen=True)
class LayerSpec:
    """Settings of one layer that may differ between the layers of an encoder.

    Attributes:
        window: a token attends to the tokens at most this far to each side; 0 for all tokens.
        theta: base of the rotary angles.
        attention_norm: whether attention has a norm.
    """

    window: int = 0
    theta: float = 10_000.0
    attention_norm: bool = True


@dataclasses.dataclass(frozen=True)
class Run:
    """Layers that one scan computes.

    Attributes:
        layers: layers of one repeat, applied one after the other, each with its own parameters.
        repeats: number of repeats.
        shared: whether all repeats use the same parameters; otherwise these are stacked along a leading
            axis.
        first: index of the run's first layer.
    """

    layers: tuple[LayerSpec, ...]
    repeats: int
    shared: bool = False
    first: int = 0

    def numbers(self, member: int) -> tuple[int, ...]:
        """Returns the indices of the layers that `layers[member]` computes, one for each repeat."""
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
    # A first layer whose parameters differ from the others forms a run of its own.
    start = 0 if config.first_attention_norm else 1
    rest = specs[start:]
    if config.attention_pattern:  # without a period: one run for equal layers that follow each other
        groups = [list(group) for _, group in itertools.groupby(specs)]
        return [(group[:1], len(group), False) for group in groups]
    period = 1 if len(set(rest)) <= 1 else config.global_every
    whole = len(rest) // period
    return [
        (specs[:start], min(start, 1), False),
        (rest[:period], whole, False),
        (rest[whole * period :], 1 if len(rest) % period else 0, False),
    ]


def _spec(config: EncoderConfig, layer: int) -> LayerSpec:
    has_norm = layer > 0 or config.first_attention_norm
    if config.is_local(layer):
        return LayerSpec(config.local_window, config.local_rotary_theta, has_norm)
    return LayerSpec(0, config.rotary_theta, has_norm)


class Place(NamedTuple):
    """Where the parameters of some layers are.

    Attributes:
        path: the name of these parameters under `layers`, such as `stack/layer`.
        numbers: indices of the layers, in the order of the parameters' first axis.
        shared: whether the layers share the parameters, which then have no layer axis.
        group, member: index of the run, and of the layer in one of its repeats.
    """

    path: str
    numbers: tuple[int, ...]
    shared: bool
    group: int
    member: int


def places(config: EncoderConfig) -> list[Place]:
    """Returns the places of the parameters of all layers."""
    return [
        Place(f"{name}/{member_name(run, member)}", run.numbers(member), run.shared, group, member)
        for group, (name, run) in enumerate(named(layer_runs(config)))
        for member in range(len(run.layers))
    ]


def named(runs: tuple[Run, ...]) -> Iterator[tuple[str, Run]]:
    """Yields (name of its parameters, run): `stack`, or `stack_0`, `stack_1`, ... for several runs.

    If all repeats share their parameters, which then have no layer axis, the name is `shared`.
    """
    for i, run in enumerate(runs):
        kind = "shared" if run.shared else "stack"
        yield (kind if len(runs) == 1 else f"{kind}_{i}"), run


def member_name(run: Run, member: int) -> str:
    """Returns the name of a layer's parameters inside its run: `layer`, or `layer_0`, ... for several."""
    return "layer" if len(run.layers) == 1 else f"layer_{member}"
