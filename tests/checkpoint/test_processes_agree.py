"""Which step the processes of a run read of another one, whose steps they see at different times."""

import functools
import shutil

import pytest
from support import together

from bert_jax import checkpoint
from bert_jax.errors import UserError

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
def test_all_read_the_same_step_while_another_run_saves(monkeypatch, views, saved, seen, read):
    found = read_in_all(monkeypatch, checkpoint.newest_leaves, *views(*seen))
    assert found == [checkpoint.describe(saved / read)] * 2


def test_none_reads_if_process_0_sees_no_step(monkeypatch, views):
    first, second = views("", "246")
    assert read_in_all(monkeypatch, checkpoint.newest_leaves, first, second) == [{}, {}]
    for error in read_in_all(monkeypatch, checkpoint.read_stored, first, second):
        assert isinstance(error, UserError) and f"{first}: no checkpoint in it" in str(error)


def test_a_step_is_found_where_process_0_finds_it(monkeypatch, views):
    first, second = views("24", "246")
    found = read_in_all(monkeypatch, lambda view: checkpoint.find_step(view, 6), first, second)
    assert found == [None, None]
    found = read_in_all(monkeypatch, lambda view: checkpoint.find_step(view.parent, 4), first, second)
    assert found == [str(first / "4"), str(second / "4")]
