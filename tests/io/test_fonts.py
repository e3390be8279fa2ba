"""Text of any script in pictures: another installed font, or one line that says what to install."""

import unicodedata
import warnings

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib import font_manager, ft2font

from bert_jax.io import atomic, fonts
from bert_jax.tasks import error_analysis


@pytest.fixture
def draw(tmp_path):
    """Saves a picture with a text as title and as label of a tick; the size of the file."""

    def save(text):
        figure, axis = plt.subplots(figsize=(2, 1))
        axis.set_title(text)
        axis.set_xticks([0], [text])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                atomic.save_figure(figure, tmp_path / "picture.png", 50)
            return figure
        finally:
            plt.close(figure)

    return save


def characters_of(name):
    return set(ft2font.FT2Font(font_manager.findfont(name)).get_charmap())


def test_another_font_stands_in(draw, capsys):
    """STIX comes with matplotlib, and has characters that its default has not."""
    only = characters_of("STIXGeneral") - characters_of("DejaVu Sans")
    letter = next(chr(number) for number in sorted(only) if unicodedata.category(chr(number)) == "Ll")
    figure = draw(f"A {letter}")
    assert capsys.readouterr().err == ""
    families = figure.axes[0].title.get_fontfamily()
    assert families[0] == "sans-serif" and len(families) == 2 and not families[1].startswith("Last Resort")


@pytest.mark.parametrize(
    "text, package",
    [
        ("猫が", "fonts-noto-cjk"),
        ("한국", "fonts-noto-cjk"),
        ("ไทย", "fonts-noto-core"),
        ("猫ไ", "fonts-noto-cjk and fonts-noto-core"),
    ],
)
def test_what_no_font_has_is_one_line(draw, capsys, monkeypatch, text, package):
    """No warning of matplotlib with the place in a source."""
    monkeypatch.setattr(fonts, "_families", lambda characters: ())
    draw(f"cat {text}")
    error = capsys.readouterr().err
    assert error.startswith("note: no installed font has the characters ") and error.count("\n") == 1
    assert all(character in error for character in text) and error.endswith(f"such as Debian's {package}\n")


def test_other_warnings_are_not_swallowed(draw):
    figure = draw("cat")
    figure.savefig = lambda *args, **options: warnings.warn("something else", UserWarning, stacklevel=1)
    with pytest.warns(UserWarning, match="something else"):
        fonts.render(figure)


def test_dollar_signs_are_no_formulas():
    """Classes of prices are called $, $$ and so on."""
    confusions = error_analysis.Confusions.of(np.array([0, 1]), np.array([0, 1]), ["$$", "$1m_$5m"])
    assert confusions.png().startswith(b"\x89PNG")
