import dataclasses
import json

import jax
import numpy as np
import pytest
from support import processes

from bert_jax import cli
from bert_jax.data import loader, manifests, records
from bert_jax.demo import data, steps


@dataclasses.dataclass
class Document:
    package: str
    sentences: tuple[str, ...]


def test_the_task_is_made_of_every_sentence_once(tmp_path):
    documents = [
        Document("email", tuple(f"The message has {i} parts and\tno more." for i in range(30))),
        Document("xml", ("Too short.", *(f"The element has {i} children or none." for i in range(10)))),
    ]
    train, dev = data.make_task(documents, 25)
    assert (len(train), len(dev)) == (25, 15)
    assert len(set(train) | set(dev)) == 40
    assert data.make_task(documents, 25) == (train, dev)
    data.write_task(tmp_path / "task" / "dev.tsv", dev)
    rows = data.read_task(tmp_path / "task" / "dev.tsv")
    assert rows == [(" ".join(sentence.split()), package) for sentence, package in dev]
    assert data.majority_share([package for _, package in rows]) == pytest.approx(
        max(sum(p == "email" for _, p in rows), sum(p == "xml" for _, p in rows)) / 15
    )


def test_masks_are_put_inside_short_sentences():
    sentences = [
        "file names are given to this function as strings.",
        "Open the profile and then read all that is in it.",
        "It returns the default when the file is not there at all.",
        "Close the file and return the default encoding of it.",
        "The file is closed " + "and closed " * 10 + "again.",
    ]
    chosen = data.choose_masks(sentences, ("file", "default", "absent"))
    assert chosen == [
        ("It returns the default when the [MASK] is not there at all.", "file"),
        ("Close the file and return the [MASK] encoding of it.", "default"),
    ]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """Records, and the work directory of a run on them, without its checkpoints."""
    root = tmp_path_factory.mktemp("demo")
    records = processes.write_records(root / "records")
    config = {
        "seed": 3,
        "steps": 8,
        "batch_size": 8,
        "data": {"dir": str(records), "eval_split": "eval"},
        "eval": {"batches": 0},
        "masking": {"prob": 0.15, "strategy": "token", "max_predictions": 8},
        "model": {"vocab_size": 100, "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1},
    }
    manifest = manifests.read(str(records))
    run = {"command": "pretrain", "config": config, "vocabulary": manifest["vocabulary"]}
    (root / "config.json").write_text(json.dumps(run))
    (root / "vocab.txt").write_bytes((records / "vocab.txt").read_bytes())
    return root, records


def test_baselines_are_of_the_tokens_that_the_evaluation_masks(pretrained):
    root, directory = pretrained
    found = data.pretraining_baselines(str(root))
    rows = records.open_dataset(str(directory), "eval")
    batches = list(loader.eval_batches(rows, 8))
    labels = np.concatenate([batch["next_sentence_labels"].ravel() for batch in batches])
    labels = labels[labels >= 0]
    assert found.nsp_majority == pytest.approx(max(labels.mean(), 1 - labels.mean()))
    real = sum(int(batch["lengths"].sum()) for batch in batches)
    assert 0.08 * real < found.masked < 0.2 * real
    # Random tokens: few of them are twice among the masked ones.
    assert np.log(found.masked) - 1 < found.unigram_entropy <= np.log(found.masked)
    assert found == data.pretraining_baselines(str(root))


def test_a_command_that_fails_ends_the_demo_with_its_code(tmp_path, capsys):
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "dev.tsv").write_text("sentence\tpackage\n")
    (tmp_path / "corpus").mkdir()
    assert cli.main(["demo", f"--workdir={tmp_path}"]) == 2
    captured = capsys.readouterr()
    assert "$ bert-jax vocab" in captured.out and captured.err.count("\n") == 1


@pytest.mark.parametrize("quick, theirs", [(True, "with --quick"), (False, "without --quick")])
def test_the_two_kinds_do_not_share_a_directory(quick, theirs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(steps.Demo, "write_corpus", _stop)
    first, second = (["demo", *(["--quick"] if kind else [])] for kind in (quick, not quick))
    assert cli.main(first) == 7
    root = "demo-quick" if quick else "demo"
    assert [path.name for path in tmp_path.iterdir()] == [root]
    capsys.readouterr()
    assert cli.main([*second, f"--workdir={root}"]) == 2
    captured = capsys.readouterr()
    assert f"--workdir={root} contains a demo {theirs}" in captured.err
    assert captured.out == "" and captured.err.count("\n") == 1
    assert cli.main(first) == 7  # its own directory is gone on with
    assert cli.main(second) == 7  # and the other kind has another one


def _stop(self):
    """A step of the demo"""
    raise steps.Stopped(7)


@pytest.mark.slow
def test_the_whole_way(tmp_path, capsys):
    assert jax.device_count() == 8
    assert cli.main(["demo", "--quick", f"--workdir={tmp_path}"]) == 0
    said = capsys.readouterr().out
    for text in (
        "$ bert-jax vocab",
        "$ bert-jax data",
        "$ bert-jax pretrain",
        "$ bert-jax plot",
        "unigram entropy",
    ):
        assert text in said
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    assert all((tmp_path / f"finetune-{name}" / "best.json").exists() for name in ("pretrained", "scratch"))
    assert "accuracy on" in said
    assert "too few steps to learn anything" in said.splitlines()[-1]
    # Again: nothing is computed that is there.
    assert cli.main(["demo", "--quick", f"--workdir={tmp_path}"]) == 0
    assert "compiled the train step" not in capsys.readouterr().out
