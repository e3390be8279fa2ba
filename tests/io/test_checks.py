"""Paths that users give."""

import os

import pytest

from bert_jax.errors import UserError
from bert_jax.io import checks


@pytest.mark.parametrize(
    "name, expected",
    [
        ("train.cvs", "train.cvs: no such file; did you mean {folder}/train.csv?"),
        ("other.tsv", "other.tsv: no such file; expected a CSV file"),
        ("none/train.csv", "none/train.csv: no such file; expected a CSV file"),
    ],
)
def test_a_missing_file_gets_the_nearest_one_or_what_is_expected(tmp_path, name, expected):
    (tmp_path / "train.csv").touch()
    with pytest.raises(UserError) as error:
        checks.check_input(tmp_path / name, "CSV")
    assert str(error.value) == f"{tmp_path}/{expected.format(folder=tmp_path)}"


def test_checkpoints_need_a_path_in_utf_8(tmp_path, monkeypatch):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    with pytest.raises(UserError, match="expected a path in UTF-8, where checkpoints can be stored"):
        checks.check_checkpoint_place(folder / "run")
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match="expected a path in UTF-8"):
        checks.check_checkpoint_place("run")
    monkeypatch.chdir(tmp_path)
    checks.check_checkpoint_place("räume")
