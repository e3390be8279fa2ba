"""Shared by all plots: figures without pyplot, so that the caller's backend is not changed, and colors."""

import io
import warnings
from typing import Any

from etils import epy

from bert_jax.io import atomic, files

with epy.lazy_imports():  # matplotlib takes a second to import
    import matplotlib
    from matplotlib import figure as matplotlib_figure
    from matplotlib import font_manager, text

DPI = 150
# Fonts that together cover most scripts: from Debian's fonts-noto-*, macOS and others.
_FALLBACKS = ("Noto Sans", "Arial Unicode", "WenQuanYi", "Droid Sans Fallback", "Unifont")

# Color-blind safe (Okabe and Ito).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def subplots(size: tuple[float, float], rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    """Returns a figure of a width and height in inches, and its axes, an array [rows, columns]."""
    figure = matplotlib_figure.Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def grid(count: int, columns: int, size: tuple[float, float], more: tuple[float, float] = (0, 0)) -> Any:
    """Returns a figure and a list of `count` axes in rows of `columns`.

    `size` is the width and height of each in inches, and `more` is added to those of the figure.
    """
    rows = -(-count // columns)
    figure, axes = subplots((size[0] * columns + more[0], size[1] * rows + more[1]), rows, columns)
    for axis in axes.flat[count:]:
        axis.remove()
    return figure, list(axes.flat[:count])


def describe(axis: Any, title: str, x_label: str) -> None:
    """Gives axes a title and a label; only the left and the bottom line are drawn."""
    axis.set_title(title, fontsize=11, loc="left")
    axis.set_xlabel(x_label)
    axis.spines[["top", "right"]].set_visible(False)


def render(figure: Any, suffix: str) -> bytes:
    """Renders a figure; other installed fonts provide the characters that its font lacks."""
    texts = figure.findobj(text.Text)
    families = matplotlib.rcParams["font.family"]
    if not all(part.get_text().isascii() for part in texts):
        installed = sorted({entry.name for entry in font_manager.fontManager.ttflist})
        families = [*families, *(name for name in installed if name.startswith(_FALLBACKS))]
    for part in texts:
        part.set_fontfamily(families)
        part.set_parse_math(False)  # dollar signs in names and texts stand for themselves
    picture = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(picture, format=suffix.removeprefix("."), dpi=DPI)
    return picture.getvalue()


def save(figure: Any, path: str) -> None:
    """Writes a figure in the format that the suffix of `path` names, and creates its directory."""
    picture = render(figure, files.suffix(path))
    files.make_directory(files.parent(path))
    atomic.write_file(path, picture)
