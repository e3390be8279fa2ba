"""Which steps of a directory are listed, kept, renamed and deleted, by their names alone."""

import errno
import os
from pathlib import Path

import pytest

from bert_jax.checkpoint.directory import StepDirectory


@pytest.fixture
def directory(tmp_path):
    """Returns a function that makes a directory of steps 1 to 6."""

    def make(*, keep=3, keep_every=0):
        for step in range(1, 7):
            (tmp_path / str(step)).mkdir()
        return StepDirectory(tmp_path, keep, keep_every, [].append)

    return make


def left(directory):
    directory.close()
    return sorted(os.listdir(directory.path))


def test_a_step_that_is_being_written_is_not_listed(directory):
    found = directory()
    found.begin(6)
    assert found.steps() == found.agreed_steps() == [1, 2, 3, 4, 5]
    assert found.end() and not found.end() and found.steps()[-1] == 6


@pytest.mark.parametrize(
    "options, kept",
    [
        (dict(keep=2), "56"),
        (dict(keep=1), "6"),
        (dict(keep=9), "123456"),
        (dict(keep=1, keep_every=2), "246"),
        (dict(keep=1, keep_every=4), "46"),
    ],
)
def test_what_is_kept(directory, options, kept):
    found = directory(**options)
    found.delete_old()
    assert left(found) == list(kept)


def test_going_back_sets_later_steps_aside_and_those_that_are_damaged(directory):
    found = directory()
    for step in (5, 2):
        found.set_aside(step, "it is damaged")
    assert sorted(found.damaged()) == ["bad-2", "bad-5"]
    os.mkdir(found.of(5))
    found.set_aside(5, "it is damaged again")
    found.abandon_after(4)
    assert found.steps() == [1, 3, 4] and found.damaged() == ["bad-2"]
    names = ["1", "3", "4", "abandoned-5", "abandoned-5-2", "abandoned-6", "bad-2"]
    assert left(found) == names


def test_a_step_that_a_run_repeats_is_deleted(directory):
    found = directory()
    found.delete(4)
    found.delete(40)
    assert found.steps() == [1, 2, 3, 5, 6] and left(found) == ["1", "2", "3", "5", "6"]


@pytest.mark.parametrize("delete", [StepDirectory.delete_old, lambda found: found.delete_others(6)])
def test_steps_are_deleted_once_the_new_one_is_on_the_disk(directory, monkeypatch, delete):
    """All its files, its directory and its name are flushed before an old step gets another name."""
    found, calls, paths = directory(keep=1), [], {}
    (Path(found.of(6)) / "d").mkdir()
    for name in ("6/_METADATA", "6/d/data"):
        Path(found.of(name)).write_text("content")
    open_, fsync, replace = os.open, os.fsync, os.replace

    def opened(path, *args, **kwargs):
        descriptor = open_(path, *args, **kwargs)
        paths[descriptor] = os.path.relpath(path, found.path)
        return descriptor

    def flushed(descriptor):
        calls.append(paths[descriptor])
        fsync(descriptor)

    def renamed(*names):
        calls.append("rename")
        replace(*names)

    for name, function in (("open", opened), ("fsync", flushed), ("replace", renamed)):
        monkeypatch.setattr(os, name, function)
    delete(found)
    first = calls.index("rename")
    assert {"6/_METADATA", "6/d/data", "6/d", "6", "."} <= set(calls[:first])
    assert calls[first:] == ["rename"] * 5 and left(found) == ["6"]


def test_no_step_is_deleted_if_the_new_one_cannot_be_flushed(directory, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    found = directory(keep=1)
    Path(found.of("6/_METADATA")).write_text("content")
    monkeypatch.setattr(os, "fsync", fail)
    for delete in (found.delete_old, lambda: found.delete_others(6)):
        with pytest.raises(OSError, match="Input/output error"):
            delete()
    assert left(found) == list("123456")
