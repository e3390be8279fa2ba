"""Numbers in data of users."""

import pytest

from bert_jax.io import numerals


@pytest.mark.parametrize("text, kind, expected", [("12", int, 12), (" -3 ", int, -3), ("1e3", float, 1000.0)])
def test_numbers(text, kind, expected):
    found = numerals.parse(text, kind)
    assert found == expected and isinstance(found, kind)


@pytest.mark.parametrize("text, kind", [("1_000", int), ("1_0.5", float), ("1.5", int), ("", float)])
def test_anything_else_is_no_number(text, kind):
    with pytest.raises(ValueError, match="underscore" if "_" in text else "."):
        numerals.parse(text, kind)
