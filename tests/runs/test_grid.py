"""Seeds, grids, early stopping, class weights and what is reported, on a tiny checkpoint."""

import json
import os
from urllib.parse import unquote

import numpy as np
import pytest
from support import fine_tuned

from bert_jax import cli, tasks
from bert_jax.io.files import is_remote
from bert_jax.runs import sweep


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    for name, count in (("train", 64), ("dev", 21)):
        lines = [f"the {c} is {rng.choice(['big', 'small'])},{c}" for c in rng.choice(["red", "blue"], count)]
        (directory / f"{name}.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    return directory


def command(files, workdir, pretrained, *more):
    fields = "max_seq_length=16 batch_size=32 mesh.data=1 mesh.fsdp=8 optimizer.learning_rate=0.003"
    flags = (f"--config.{field}" for field in fields.split())
    return fine_tuned.command(files, workdir, pretrained, *flags, *more)


@pytest.mark.slow
def test_seeds_and_a_grid_are_run_and_summed_up_and_not_run_again(files, pretrained, tmp_path, capsys):
    more = ["--seeds=2", "--grid=optimizer.learning_rate=0.003,1e-9", "--config.seed=5"]
    more += ["--config.epochs=24", "--config.eval.every=24", "--config.model.hidden_dropout_prob=0"]
    assert cli.main(command(files, tmp_path, pretrained, *more)) == 0
    shown = capsys.readouterr().out
    found = json.loads((tmp_path / "summary.json").read_text())
    assert [one["setting"] for one in found] == ["learning_rate=0.003", "learning_rate=1e-09"]
    for one in found:
        runs = [tmp_path / one["setting"] / f"seed-{seed}" for seed in (5, 6)]
        scores = [json.loads((run / "best.json").read_text())["scores"]["accuracy"] for run in runs]
        assert [json.loads((run / "config.json").read_text())["config"]["seed"] for run in runs] == [5, 6]
        assert one["scores"]["accuracy"]["all"] == scores
        assert one["scores"]["accuracy"]["median"] == pytest.approx(np.median(scores))
        assert one["scores"]["accuracy"]["deviation"] == pytest.approx(np.std(scores, ddof=1))
    # A rate of nearly 0 leaves the untrained classifier, which calls everything the same.
    assert found[1]["scores"]["degenerate"]["mean"] > 0 and found[0]["scores"]["accuracy"]["median"] > 0.9
    assert "| learning_rate=1e-09 | 2 | " in shown
    scores = found[0]["scores"]["accuracy"]["all"]
    best = tmp_path / "learning_rate=0.003" / f"seed-{5 + scores.index(max(scores))}"
    assert shown.splitlines()[-1].startswith(f"saved in {best}; try: bert-jax predict --workdir={best} ")
    (tmp_path / "results.json").unlink()  # as of an earlier version
    assert cli.main(command(files, tmp_path, pretrained, *more)) == 0
    assert "compiled" not in capsys.readouterr().out
    assert json.loads((tmp_path / "summary.json").read_text()) == found


@pytest.mark.parametrize(
    "path", ["../../ckpt/mini", "/home/ada/mini", "gs://bucket/mini", "a%2Fb", "a/b", ".."]
)
def test_the_directory_of_a_setting_with_a_path_is_a_folder_of_the_grid(path):
    points = [f"init_from={path}", "optimizer.learning_rate=3e-5"]
    name = sweep.grid(tasks.default_config(), points).variants[0].name
    found = os.path.join("runs", name)
    assert not is_remote(found) and os.path.normpath(found) == found and "/" not in name
    assert unquote(name) == f"init_from={path},learning_rate=3e-05"


@pytest.mark.parametrize("metric, best", [("accuracy", 2), ("mean_squared_error", 1)])
def test_the_best_run_of_a_setting(metric, best):
    work = sweep.Sweep(
        sweep.Experiment("", [sweep.Variant("")], [sweep.MinimalPairs()], is_grid=True), "runs"
    )
    work.results = [
        {"variant": "", "measure": "minimal pairs", "seed": seed, "scores": {metric: score}}
        for seed, score in enumerate((0.5, 0.1, 0.8))
    ]
    found = work.summaries()[0]["best"]
    assert found == os.path.join("runs", f"seed-{best}")
