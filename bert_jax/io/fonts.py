"""Renders pictures with text in any script that an installed font has."""

from __future__ import annotations

import io
import warnings
from typing import Any

from etils import epy

with epy.lazy_imports():  # matplotlib takes a second to import
    import matplotlib
    from matplotlib import font_manager, text

# Fonts that together cover most scripts: from Debian's fonts-noto-*, macOS and others.
_FALLBACKS = "Noto Sans CJK,Noto Sans,Arial Unicode,WenQuanYi,Droid Sans Fallback,Unifont".split(",")


def render(figure: Any, **options: Any) -> bytes:
    """Returns a matplotlib figure as the bytes of a picture; `options` are arguments of `savefig`.

    Characters that the font lacks are drawn in other installed fonts, or as boxes if no font has them: the
    fonts of the figure's texts are changed.
    """
    texts = figure.findobj(text.Text)
    if not all(part.get_text().isascii() for part in texts):
        installed = sorted({entry.name for entry in font_manager.fontManager.ttflist})
        fallbacks = [name for prefix in _FALLBACKS for name in installed if name.startswith(prefix)]
        for part in texts:
            part.set_fontfamily([*matplotlib.rcParams["font.family"], *fallbacks])
    for part in texts:
        part.set_parse_math(False)  # dollar signs in names and texts stand for themselves
    picture = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(picture, **options)
    return picture.getvalue()
