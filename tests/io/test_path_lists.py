"""Texts of several paths with commas between them, of which some have commas themselves."""

import pytest

from bert_jax.io import path_lists

GRID = ("rate=1,size=8", "rate=1,size=16", "a", "a,b", "a,b,c")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", []),
        (" , ", []),
        ("none", ["none"]),
        (" none", [" none"]),
        ("x,y", ["x", "y"]),
        ("x, y,", ["x", "y"]),
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
    assert path_lists.split(text) == expected


@pytest.mark.parametrize("text", ["gs://a/x,gs://b/y", "a,gs://b/y", "gs://a/x"])
def test_urls_begin_a_path_without_a_request(text):
    def refuse(path):
        raise AssertionError(path)

    assert path_lists.split(text, refuse) == text.split(",")


def test_urls_with_commas():
    known = "gs://runs/rate=1,size=8"
    assert path_lists.split(f"{known},gs://b", known.__eq__) == [known, "gs://b"]
