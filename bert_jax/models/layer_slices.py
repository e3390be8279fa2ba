"""Where the parameters of an encoder's layers are: one scan computes equal layers, or a repeated pattern."""

from __future__ import annotations

import dataclasses
import itertools

from bert_jax.models.config import EncoderConfig


@dataclasses.dataclass(frozen=True)
class LayerSlice:
    """Equal layers, whose parameters are stacked along one axis or shared.

    Attributes:
        numbers: indices of the layers, counted from 0, in the order of the parameters' axis.
        scan: name of the scan that computes them: `stack`, or `stack_0`, `stack_1`, ... for several scans;
            `shared` in place of `stack` if the layers share their parameters.
        name: name of the layer in one repeat of the scan: `layer`, or `layer_0`, ... for several.
        shared: whether the layers share their parameters, which then have no layer axis.
        group: index of the scan.
        window: a token attends to the tokens at most this far to each side; 0 for all tokens.
        theta: base of the rotary angles.
        attention_norm: whether attention has a norm.
        axis: the layer axis of a parameter that is not shared.
        template: the name of a parameter in one layer, with `{}` in place of the index.
    """

    numbers: tuple[int, ...] = (0,)
    scan: str = "stack"
    name: str = "layer"
    shared: bool = False
    group: int = 0
    window: int = 0
    theta: float = 10_000.0
    attention_norm: bool = True
    axis: int = 0
    template: str = "{}"

    @property
    def path(self) -> str:
        """Returns the name of the parameters under `layers`, such as `stack/layer`."""
        return f"{self.scan}/{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """Returns a parameter's name in each layer, such as `encoder/layers/11/query/kernel`."""
        return tuple(self.template.format(number) for number in self.numbers)


def layer_slices(config: EncoderConfig) -> list[LayerSlice]:
    """Returns the slices of an encoder, in the order in which their first layers are applied."""
    layers = config.num_hidden_layers
    if config.layer_groups:
        group_of = [int(i / (layers / config.layer_groups)) for i in range(layers)]
        patterns = [
            [[i for i in range(layers) if group_of[i] == group]] for group in range(config.layer_groups)
        ]
    else:
        # A first layer whose parameters differ from the others has a scan for itself.
        start = 0 if config.first_attention_norm else 1
        is_mixed = len({config.is_local(layer) for layer in range(start, layers)}) > 1
        period = config.global_every if is_mixed else 1
        whole = start + (layers - start) // period * period
        patterns = [
            [[i] for i in range(start)],
            [list(range(first, whole, period)) for first in range(start, min(start + period, whole))],
            [[i] for i in range(whole, layers)],
        ]
    patterns = [pattern for pattern in patterns if pattern]
    kind = "shared" if config.layer_groups else "stack"
    return [
        LayerSlice(
            numbers=tuple(numbers),
            scan=kind if len(patterns) == 1 else f"{kind}_{group}",
            name="layer" if len(pattern) == 1 else f"layer_{member}",
            shared=bool(config.layer_groups),
            group=group,
            window=config.local_window if config.is_local(numbers[0]) else 0,
            theta=config.local_rotary_theta if config.is_local(numbers[0]) else config.rotary_theta,
            attention_norm=numbers[0] > 0 or config.first_attention_norm,
        )
        for group, pattern in enumerate(patterns)
        for member, numbers in enumerate(pattern)
    ]


def scans(config: EncoderConfig) -> list[tuple[LayerSlice, ...]]:
    """Returns the slices that each scan computes; a repeat applies one layer of each slice."""
    return [tuple(scan) for _, scan in itertools.groupby(layer_slices(config), key=lambda each: each.scan)]
