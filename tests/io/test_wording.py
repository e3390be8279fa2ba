"""Parts of messages."""

import pytest

from bert_jax.io import wording


@pytest.mark.parametrize("number, expected", [(0, "0 files"), (1, "1 file"), (1234, "1,234 files")])
def test_counted(number, expected):
    assert wording.counted(number, "file") == expected


@pytest.mark.parametrize(
    "number, expected",
    [(0, "0"), (3 / 7.8, "0.385"), (119.9, "120"), (999.4, "999"), (999.6, "1,000"), (12345.6, "12,346")],
)
def test_rate(number, expected):
    assert wording.rate(number) == expected


@pytest.mark.parametrize(
    "number, expected",
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (99_949, "99.9 kB"),
        (99_950, "0.1 MB"),
        (73_800_000, "73.8 MB"),
        (2_060_000_000, "2,060.0 MB"),
    ],
)
def test_size(number, expected):
    assert wording.size(number) == expected


@pytest.mark.parametrize("number, expected", [(0, "0 rows are"), (1, "1 row is"), (2, "2 rows are")])
def test_counted_with_a_verb(number, expected):
    assert wording.counted(number, "row is", "rows are") == expected


@pytest.mark.parametrize(
    "error, expected",
    [
        (ValueError("no such axis"), "ValueError: no such axis"),
        (RuntimeError("\n  out of memory  \nwhile computing\n"), "RuntimeError: out of memory"),
        (KeyError(), "KeyError"),
    ],
)
def test_first_line_of_an_error(error, expected):
    assert wording.first_line(error) == expected


@pytest.mark.parametrize(
    "values, expected", [([15], "15"), ([15, 16], "15 or 16"), ([15, 16, 19], "15, 16, or 19")]
)
def test_alternatives(values, expected):
    assert wording.alternatives(values) == expected


@pytest.mark.parametrize(
    "names, expected", [("a", "a"), ("abc", "a, b, c"), ("abcd", "a, b, c and 1 more")], ids=str
)
def test_some_names(names, expected):
    assert wording.some(names) == expected


def test_did_you_mean():
    assert wording.did_you_mean("mrcp", ["sst2", "mrpc"]) == "; did you mean mrpc?"
    assert wording.did_you_mean("stpes", {"steps": 1}, "--") == "; did you mean --steps?"
    assert wording.did_you_mean("qqqq", ["sst2", "mrpc"]) == ""
