"""Pre-training with replay: what it says and writes, that it resumes bit for bit, and what cannot be."""

import shutil

import numpy as np
import pytest
from support import fine_tuned, processes
from support.processes import error_of

from bert_jax import cli
from bert_jax.data.records import count_tokens
from bert_jax.runs import pretrain as pretraining
from bert_jax.settings import defaults, pretrain_config

pytestmark = pytest.mark.usefixtures("quick_compilation")

FIELDS = {"steps": 6, "checkpoint.every": 2, "eval.every": 3, "masking.copies": 2}


@pytest.fixture(scope="session")
def general(tmp_path_factory):
    """Records of other text with the same vocabulary, without next sentences."""
    directory = tmp_path_factory.mktemp("general") / "records"
    return processes.write_records(directory, rows=20, eval_rows=9, seed=1, nsp="none")


def metrics(directory):
    timed = ("per_second", "_seconds", "mfu", "goodput", "time")
    return [
        {name: value for name, value in line.items() if not any(part in name for part in timed)}
        for line in processes.metrics(directory)
    ]


@pytest.mark.slow
def test_a_run_and_its_end_after_a_kill(pretrain, records, general, tmp_path, capsys):
    straight = tmp_path / "straight"
    fields = FIELDS | {"data.replay": general, "data.replay_share": 0.25}
    code, output, error = pretrain(straight, **fields)
    assert (code, error) == (0, "")
    assert "0.562 epochs of " in output  # 36 of 64 rows
    assert f"0.6 epochs of 20 rows in {general}" in output  # 12 of 20 rows
    assert f"evaluating on 9 of 9 held-out rows of {general}\n" in output
    assert "eval_replay 3" in output.replace("  ", " ")
    lines = metrics(straight)
    assert [(line["kind"], line["step"]) for line in lines if line["kind"] != "train"] == [
        ("eval", 3), ("eval_replay", 3), ("eval", 6), ("eval_replay", 6),
    ]  # fmt: skip
    one, other = (
        [line["mlm_loss"] for line in lines if line["kind"] == kind] for kind in ("eval", "eval_replay")
    )
    assert not set(one) & set(other) and np.isfinite(one + other).all()
    resumed = tmp_path / "resumed"
    fine_tuned.assert_resumes_to_the_same_end(
        lambda copy: cli.main(processes.command(copy, records, **fields)), straight, resumed, capsys
    )
    assert metrics(resumed) == lines

    # Another share, or none, is another run.
    error = error_of(pretrain(straight, **fields | {"data.replay_share": 0.5}))
    assert "data.replay_share is 0.25 there and 0.5 here" in error
    error = error_of(pretrain(straight, **FIELDS))
    assert "is 'random-95-64-0, replay random-95-20-1' there and 'random-95-64-0' here" in error
    moved = shutil.copytree(general, tmp_path / "moved")
    code, output, _ = pretrain(straight, **fields | {"data.replay": moved})
    assert code == 0 and "nothing to train" in output


def test_both_count_by_their_share(records, general, tmp_path):
    config = defaults.pretrain("tiny")
    config.data.update(dir=str(records), replay=str(general))
    found = pretraining.open_records(pretrain_config.pretraining(config).data, print)
    of_own, of_other = (count_tokens(each, 100) for each in (found.train, found.replay))
    shares = 0.9 * of_own / of_own.sum() + 0.1 * of_other / of_other.sum()
    counts = found.token_counts()
    np.testing.assert_allclose(counts / counts.sum(), shares)
    assert found.next_sentence  # of one of them
