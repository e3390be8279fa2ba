"""Renders pictures with text in any script, using the installed fonts as fallbacks for one another."""

from __future__ import annotations

import functools
import io
import re
import sys
import unicodedata
import warnings
from typing import Any

from etils import epy

with epy.lazy_imports():  # matplotlib takes a second to import
    import matplotlib
    from matplotlib import font_manager, ft2font, text

_MISSING = re.compile(r"Glyph (\d+) .*missing from")
_PLACEHOLDERS = ("Last Resort",)  # draws a box for every character
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH")


def render(figure: Any, **options: Any) -> bytes:
    """Returns a matplotlib figure as the bytes of a picture.

    If the font has no glyph for a character, other installed fonts are tried. Characters that none of them
    has are drawn as boxes, and one line on standard error names a package that contains them.

    Args:
        figure: the figure; its fonts are changed where necessary.
        options: arguments of `figure.savefig`.
    """
    for part in figure.findobj(text.Text):
        part.set_parse_math(False)  # dollar signs in names and texts stand for themselves
    content, missing = _save(figure, options)
    if missing:
        families = _families(frozenset(missing))
        if families:
            for part in figure.findobj(text.Text):
                part.set_fontfamily([*matplotlib.rcParams["font.family"], *families])
            content, missing = _save(figure, options)
    if missing:
        print(f"note: {_advice(missing)}", file=sys.stderr)
    return content


def _save(figure: Any, options: dict[str, Any]) -> tuple[bytes, set[str]]:
    """Returns the picture and the characters without a glyph."""
    picture, missing = io.BytesIO(), set()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(picture, **options)
    for warning in caught:
        if found := _MISSING.search(str(warning.message)):
            missing.add(chr(int(found[1])))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return picture.getvalue(), missing


@functools.lru_cache(maxsize=64)
def _families(characters: frozenset[str]) -> tuple[str, ...]:
    """Returns few installed font families that together cover as many of the characters as possible."""
    manager = font_manager.fontManager
    # matplotlib caches the font list of its first start; other fonts may have been installed since.
    known = {entry.fname for entry in manager.ttflist}
    for path in sorted(set(font_manager.findSystemFonts()) - known):
        try:
            manager.addfont(path)
        except Exception:  # FreeType raises several kinds of errors for a font that it cannot read
            continue
    glyphs: dict[str, frozenset[str]] = {}
    for entry in manager.ttflist:
        if entry.name.startswith(_PLACEHOLDERS) or (entry.style, str(entry.weight)) not in _REGULAR:
            continue
        if entry.name not in glyphs:
            glyphs[entry.name] = characters & _characters(entry.fname)
    chosen, rest = [], set(characters)
    while rest and (best := max(sorted(glyphs), key=lambda name: len(glyphs[name] & rest), default="")):
        if not glyphs[best] & rest:
            break
        chosen.append(best)
        rest -= glyphs[best]
    return tuple(chosen)


_REGULAR = (("normal", "400"), ("normal", "normal"), ("normal", "regular"), ("normal", "book"))


def _characters(path: str) -> set[str]:
    try:
        return set(map(chr, ft2font.FT2Font(path).get_charmap()))
    except Exception:  # FreeType cannot read the font
        return set()


def _advice(missing: set[str]) -> str:
    shown = sorted(missing)
    east_asian = {one for one in shown if unicodedata.name(one, "").startswith(_EAST_ASIAN)}
    packages = [
        *(["fonts-noto-cjk"] if east_asian else []),
        *(["fonts-noto-core"] if missing - east_asian else []),
    ]
    more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
    return (
        f"no installed font has the characters {' '.join(shown[:5])}{more}, which are boxes in the picture; "
        f"install one that has them, such as Debian's {' and '.join(packages)}"
    )
