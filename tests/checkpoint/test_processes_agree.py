"""Which step the processes of a run read of another one, whose steps they see at different times."""

import functools
import os
import shutil

import numpy as np
import pytest
from jax.experimental import multihost_utils
from support import together

from bert_jax import checkpoint
from bert_jax.checkpoint import reading
from bert_jax.checkpoint.reading import Step
from bert_jax.errors import UserError
from bert_jax.io import files

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture
def views(saved, tmp_path):
    """Returns a function (steps that a process sees, ...) that returns their views of the same directory."""

    def make(*seen):
        made = [tmp_path / str(process) / "checkpoints" for process in range(len(seen))]
        for view, steps in zip(made, seen, strict=True):
            view.mkdir(parents=True)
            for step in steps:
                shutil.copytree(saved / step, view / step)
        return made

    return make


def read_in_all(monkeypatch, read, *views):
    return together.run(monkeypatch, *(functools.partial(read, view) for view in views))


@pytest.mark.parametrize(
    "seen, read",
    [(("24", "246"), "4"), (("246", "246"), "6"), (("246", "24"), "4")],
    ids=["newer in 1", "same", "newer in 0"],
)
def test_all_read_the_same_step_while_another_run_saves(monkeypatch, views, seen, read):
    def newest(view):
        return reading._read_newest(view, lambda step: files.name(Step.open(step, alone=True).path), print)

    assert read_in_all(monkeypatch, newest, *views(*seen)) == [read] * 2


def test_none_reads_if_process_0_sees_no_step(monkeypatch, views):
    first, second = views("", "246")
    assert read_in_all(monkeypatch, checkpoint.parameter_names, first, second) == [frozenset()] * 2
    here, there = read_in_all(monkeypatch, checkpoint.parameter_names, second, first)
    assert here == there != frozenset()
    for error in read_in_all(monkeypatch, checkpoint.read_stored, first, second):
        assert isinstance(error, UserError) and f"{first}: no checkpoint found" in str(error)


@pytest.mark.parametrize("process", [0, 1])
def test_what_one_process_finds_damaged_is_read_by_none(monkeypatch, views, process):
    """Otherwise it would wait for the others while they compute checksums of arrays together."""

    def digests_together(arrays):
        multihost_utils.process_allgather(np.int32(0))
        return array_digests(arrays)

    array_digests = reading.array_digests
    monkeypatch.setattr(reading, "array_digests", digests_together)
    both, said = views("46", "46"), []
    os.truncate(both[process] / "6" / "manifest.ocdbt", 20)
    found = read_in_all(monkeypatch, functools.partial(checkpoint.read_stored, log=said.append), *both)
    assert [path for path, _, _ in found] == [str(view / "4") for view in both]
    assert len(said) == 2 and all("cannot be read" in line for line in said)
