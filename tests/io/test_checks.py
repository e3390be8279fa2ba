"""Paths that users give."""

import os

import pytest

from bert_jax.errors import UserError
from bert_jax.io import atomic, checks


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


def test_an_output_is_renamed_in_a_directory_that_has_to_be_writable(tmp_path, monkeypatch):
    folder, file, pipe = (str(tmp_path / name) for name in ("folder", "folder/file.tsv", "folder/pipe.tsv"))
    os.mkdir(folder)
    atomic.write_text(file, "old")
    os.mkfifo(pipe)
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder)
    for path in (file, f"{folder}/new.tsv"):
        with pytest.raises(UserError, match=f"^--output={path}: cannot be written there; choose another"):
            checks.check_output_file(path)
    checks.check_output_file(pipe)  # which is written in place
    monkeypatch.setattr(os, "access", lambda path, mode: path == folder)
    checks.check_output_file(file)
    with pytest.raises(UserError, match=f"^--output={pipe}: cannot be written there"):
        checks.check_output_file(pipe)


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
