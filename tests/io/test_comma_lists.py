"""Texts with commas: of names, and of several paths, of which some have commas themselves."""

import pytest

from bert_jax.errors import UserError
from bert_jax.io import comma_lists

GRID = ("rate=1,size=8", "rate=1,size=16", "a", "a,b", "a,b,c")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", []),
        (" ", []),
        ("none", ["none"]),
        (" none", [" none"]),
        ("x,y", ["x", "y"]),
        ("x, y", ["x", "y"]),
        ("rate=1,size=8", ["rate=1,size=8"]),
        ("rate=1,size=8,rate=1,size=16", ["rate=1,size=8", "rate=1,size=16"]),
        ("x, rate=1,size=8 ,y", ["x", "rate=1,size=8", "y"]),
        ("rate=1,size=32", ["rate=1", "size=32"]),
        ("a,b,c", ["a,b,c"]),
        ("a,b,a", ["a,b", "a"]),
        ("a,c", ["a", "c"]),
    ],
)
def test_a_path_that_exists_is_one(tmp_path, monkeypatch, text, expected):
    monkeypatch.chdir(tmp_path)
    for name in GRID:
        (tmp_path / name).mkdir()
    assert comma_lists.paths(text) == expected


@pytest.mark.parametrize("text", ["gs://a/x,gs://b/y", "a,gs://b/y", "gs://a/x"])
def test_urls_begin_a_path_without_a_request(text):
    def refuse(path):
        raise AssertionError(path)

    assert comma_lists.paths(text, refuse) == text.split(",")


@pytest.mark.parametrize(
    "text, part", [("x,", 2), ("x,,y", 2), (",x", 1), ("x, ,y", 2), (" , ", 1), ("a,b,", 3)]
)
def test_empty_parts_are_refused(text, part):
    with pytest.raises(UserError, match=f"^{text}: part {part} of the list is empty; expected paths .*leave"):
        comma_lists.paths(text, lambda path: False)
    with pytest.raises(UserError, match=f"^--clean={text}: part {part} of the list is empty; expected names"):
        comma_lists.names(text, "--clean")


def test_names():
    assert comma_lists.names(" x, y", "--clean") == ["x", "y"]
    assert comma_lists.names("", "--clean") == comma_lists.names(" ", "--clean") == []


def test_urls_with_commas():
    known = "gs://runs/rate=1,size=8"
    assert comma_lists.paths(f"{known},gs://b", known.__eq__) == [known, "gs://b"]
