"""Plots the attention between the tokens of a text, with one square per head."""

import contextlib
import dataclasses

import numpy as np

from bert_jax.errors import UserError
from bert_jax.io import checks
from bert_jax.plots import figures

_MOST_LABELS = 72  # number of tokens above which the labels of a grid would be unreadable
_COLUMNS = 4
_LABEL_SIZE = 7  # points
_COLORS = dict(cmap="Blues", vmin=0, vmax=1)


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
    """The attention maps of one text or pair of texts.

    `tokens` are the L tokens, `first_length` of them, with [CLS] and [SEP], of the first text. `weights` are
    float32 [layers, heads, L queries, L keys].
    """

    tokens: list[str]
    first_length: int
    weights: np.ndarray


def choose(number: str, count: int, flag: str) -> list[int]:
    """Returns the numbers from 1 to `count` that --layer or --head selects: N, -N from the end, or "all"."""
    if number == "all":
        return list(range(1, count + 1))
    with contextlib.suppress(ValueError):
        value = int(number)
        if 1 <= abs(value) <= count:
            return [value % (count + 1)]
    raise UserError(f"--{flag}={number}: expected a number from 1 to {count}, or all")


def plot_attention(
    maps: AttentionMaps, output: str, layer: str = "all", head: str = "all", title: str = ""
) -> None:
    """Draws the attention maps that `choose` selects into a PNG, PDF or SVG file; a row is a query.

    Squares are labeled with tokens; all layers and heads together are thumbnails, one row per layer.
    """
    checks.check_output_file(output, checks.PICTURES)
    layers = choose(layer, maps.weights.shape[0], "layer")
    heads = choose(head, maps.weights.shape[1], "head")
    thumbnails = len(layers) > 1 and len(heads) > 1
    draw = _draw_thumbnails if thumbnails else _draw_squares
    figure, image, drawn = draw(maps, layers, heads)
    bar = figure.colorbar(image, ax=drawn, fraction=0.04, pad=0.02, aspect=40, shrink=0.9)
    bar.set_label("attention of a row's token to a column's (each row sums to 1)", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    where = ", ".join(
        f"{what} {numbers[0]}" if len(numbers) == 1 else f"{what}s {numbers[0]} to {numbers[-1]}"
        for what, numbers in (("layer", layers), ("head", heads))
    )
    figure.suptitle(f"{title}\n{where}" if title else where, fontsize=11)
    figures.save(figure, output)


def _draw_thumbnails(maps, layers, heads):
    # The thumbnails are one image, because matplotlib takes long to lay out hundreds of axes.
    tokens = len(maps.tokens)
    gap = -(-tokens // 16)
    tiles = np.pad(maps.weights, ((0, 0), (0, 0), (0, gap), (0, gap)), constant_values=np.nan)
    mosaic = tiles.swapaxes(1, 2).reshape(len(layers) * (tokens + gap), -1)[:-gap, :-gap]
    size = (len(heads) * 1.05 + 1.6, len(layers) * 1.05 + 1.0)
    figure, ((axis,),) = figures.subplots(size)
    axis.set_facecolor("0.8")
    image = axis.imshow(mosaic, **_COLORS)
    middle = (tokens - 1) / 2
    for set_ticks, what, numbers in ((axis.set_xticks, "head", heads), (axis.set_yticks, "layer", layers)):
        places = [middle + i * (tokens + gap) for i in range(len(numbers))]
        set_ticks(places, [f"{what} {number}" for number in numbers], fontsize=8)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return figure, image, [axis]


def _draw_squares(maps, layers, heads):
    squares = [(i, j) for i in layers for j in heads]
    tokens = len(maps.tokens)
    labeled = tokens <= _MOST_LABELS or len(squares) == 1
    columns = min(_COLUMNS, len(squares))
    inches = max(2.4 if len(squares) > 1 else 4.5, 0.125 * tokens) if labeled else 2.6
    figure, axes = figures.grid(len(squares), columns, (inches, inches), (1.6, 1.2))
    for place, (axis, (i, j)) in enumerate(zip(axes, squares, strict=True)):
        image = axis.imshow(maps.weights[i - 1, j - 1], **_COLORS)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.tick_params(length=0, pad=2)
        if maps.first_length < tokens:
            for draw in (axis.axhline, axis.axvline):
                draw(maps.first_length - 0.5, color="#D55E00", linewidth=0.6)
        if labeled and place % columns == 0:
            axis.set_yticks(range(tokens), maps.tokens, fontsize=_LABEL_SIZE)
        if labeled and place < columns:
            axis.set_xticks(range(tokens), maps.tokens, rotation=90, fontsize=_LABEL_SIZE)
            axis.xaxis.tick_top()
        if len(squares) > 1:
            axis.set_title(f"head {j}" if len(layers) == 1 else f"layer {i}", fontsize=9)
    return figure, image, axes
