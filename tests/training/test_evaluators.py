"""Evaluators of one's own in the loop, and the best checkpoint that one of them keeps."""

import functools
import json
import os
import shutil
import signal
import types

import pytest
from jax.experimental import multihost_utils
from support import together
from support.regression import Recorder, Run, send

from bert_jax import checkpoint
from bert_jax.errors import Preempted
from bert_jax.training import evaluators
from bert_jax.training.evaluators import BestCheckpoint, Evaluator, read_best
from bert_jax.training.preemption import Interrupted
from bert_jax.workdir.run_directory import WorkDir

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_each_evaluation_that_was_missed_is_made_up_for(tmp_path):
    """Step 6 is saved and evaluated on the records, and then the other evaluator is interrupted."""
    run = Run(tmp_path / "run")

    def interrupt():
        send(signal.SIGTERM)
        raise Interrupted

    run.evaluators = [Recorder(interrupt, every=6)]
    with pytest.raises(Preempted, match="stopped at step 6, saved"):
        run.fit()
    assert run.steps_of("eval") == [6] and run.steps_of("recorder") == []
    run.evaluators = [Recorder(every=6)]
    run.fit()
    assert run.steps_of("eval") == [6, 12] and run.steps_of("recorder") == [6, 12]


def test_an_evaluator_ends_the_run_and_it_stays_ended(tmp_path):
    run = Run(tmp_path / "run")
    run.evaluators = [Recorder(every=3, until=2)]
    assert int(run.fit().step) == 6 and run.saved() == [4, 6]
    assert run.logged("stopped early, at step 6 of 12") and run.steps_of("recorder") == [3, 6]
    run.evaluators = [Recorder(every=3, until=0)]
    assert int(run.fit().step) == 6 and run.logged("nothing to train: the run was stopped early")


def test_all_processes_make_up_for_the_evaluations_that_process_0_misses(monkeypatch, tmp_path):
    """The others may see later what it has written, and an evaluation needs all of them."""
    views = [tmp_path / name for name in ("first", "second")]
    for view, kinds in zip(views, (["recorder"], []), strict=True):
        view.mkdir()
        lines = [json.dumps({"step": 6, "kind": kind}) + "\n" for kind in kinds]
        (view / "metrics.jsonl").write_text("".join(lines))

    def missed(view):
        found = evaluators.missed([Recorder(every=3), Scores({})], 6, 12, view)
        return [each.name for each in found]

    calls = [functools.partial(missed, view) for view in views]
    assert together.run(monkeypatch, *calls) == [["scores"], ["scores"]]
    calls.reverse()
    assert together.run(monkeypatch, *calls) == [["recorder", "scores"]] * 2


def test_all_processes_go_on_from_the_best_step_that_process_0_sees(monkeypatch, tmp_path):
    run = Run(tmp_path / "run", steps=4)
    best_of(run, {2: 0.5, 4: 0.7})
    run.fit()
    (tmp_path / "late").mkdir()
    monkeypatch.setattr(multihost_utils, "sync_global_devices", lambda name: None)

    def best(path):
        workdir = types.SimpleNamespace(path=path)
        return BestCheckpoint(Scores({}), workdir, "accuracy", log=pytest.fail).best

    calls = [functools.partial(best, path) for path in (run.path, tmp_path / "late")]
    first, second = together.run(monkeypatch, *calls)
    assert first == second and first["step"] == 4


class Scores(Evaluator):
    """Scores given by step, as a fine-tuning has them."""

    every = 2

    def __init__(self, scores):
        self.name, self.scores = "scores", scores

    def evaluate(self, step, state, context):
        return {"loss": 0.0, "accuracy": self.scores[step]}


def best_of(run, scores, **options):
    run.config.eval.every = 0
    with WorkDir(run.path) as workdir:
        best = BestCheckpoint(Scores(scores), workdir, "accuracy", log=run.output.append, **options)
    run.evaluators = [best]
    return best


def test_the_best_checkpoint_is_kept_and_the_run_ends_when_nothing_gets_better(tmp_path):
    run = Run(tmp_path / "run")
    written = []
    scores = {2: 0.5, 4: 0.7, 6: 0.6, 8: 0.7, 10: 0.9, 12: 0.9}
    best_of(run, scores, patience=2, on_best=lambda: written.append("on_best") or {"degenerate": False})
    assert int(run.fit().step) == 8
    assert read_best(run.path) == {
        "step": 4, "metric": "accuracy", "scores": {"accuracy": 0.7}, "degenerate": False, "since_best": 2,
        "last_step": 8,
    }  # fmt: skip
    assert [line["best_so_far"] for line in run.lines("scores")] == [1, 1, 0, 0] and len(written) == 2
    assert [path.name for path in (run.path / "best").iterdir() if path.name.isdigit()] == ["4"]
    best_of(run, scores, patience=2)
    run.fit()
    assert run.logged("the run was stopped early") and run.steps_of("scores") == [2, 4, 6, 8]


def test_the_old_best_step_is_deleted_last(tmp_path, monkeypatch):
    """Whichever operation is the last one before the process is killed, a best step can be read."""
    run, seen = Run(tmp_path / "run", steps=4, checkpoint__every=0), []
    best_of(run, {2: 0.5, 4: 0.7})

    def recorded(name):
        function = getattr(os, name)

        def call(*args, **kwargs):
            best = read_best(run.path)
            seen.append(best is None or best["step"] in checkpoint.list_steps(str(run.path / "best")))
            return function(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    for name in ("replace", "rename", "fsync", "unlink"):
        recorded(name)
    run.fit()
    assert len(seen) > 10 and all(seen)
    assert checkpoint.list_steps(str(run.path / "best")) == [4]


@pytest.mark.parametrize("every", [0, 2])
def test_the_best_step_is_the_best_again_when_its_evaluation_is_repeated(tmp_path, every):
    """Killed between best.json and the line of metrics."""
    run = Run(tmp_path / "run", steps=4, checkpoint__every=every)
    scores = {2: 0.5, 4: 0.7, 6: 0.7, 8: 0.7}
    best_of(run, scores, patience=2)
    run.fit()
    metrics = run.path / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(line for line in lines if '"step": 4, "kind": "scores"' not in line))
    if not every:
        shutil.rmtree(run.path / "checkpoints")
    run.config.steps = 12
    best = best_of(run, scores, patience=2)
    assert int(run.fit().step) == 8
    assert [line["best_so_far"] for line in run.lines("scores")] == [every > 0, 1, 0, 0]
    assert (best.best["step"], best.best["since_best"]) == (4, 2)
