"""Reranking: groups of candidates, a run that learns which one is right, and the search that it orders."""

import json

import numpy as np
import pytest
from support import fine_tuned

from bert_jax import cli
from bert_jax.tasks.multiple_choice import RankingPredictions
from bert_jax.tasks.table import Examples

ANIMALS, OTHERS = ("cat", "dog", "bird"), ("red", "green", "blue", "small", "big")


def groups():
    """Queries of an animal, and two other words."""
    rng = np.random.default_rng(0)
    for number in range(96):
        yield "the one is", ANIMALS[number % 3], rng.choice(OTHERS, 2, replace=False).tolist()


def lines(count):
    return "".join(
        json.dumps({"question": query, "answer": right, "others": others[:count]}) + "\n"
        for query, right, others in groups()
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("candidates")
    (directory / "train.jsonl").write_text(lines(2))
    (directory / "dev.jsonl").write_text(lines(1))
    (directory / "docs.txt").write_text("\n".join((*OTHERS, *ANIMALS)) + "\n")
    return directory


@pytest.mark.long
def test_a_run_orders_candidates_and_documents(files, pretrained, tmp_path, capsys):
    run = tmp_path / "run"
    flags = ["--config.data.text_b=answer", "--config.data.negatives=others", "--config.epochs=8"]
    columns = dict(config="finetune/reranking", suffix="jsonl", text="question", label="")
    command = fine_tuned.command(files, run, pretrained, *flags, *fine_tuned.LEARNING, **columns)
    _, best = fine_tuned.learn(command, run, capsys)
    assert best["mrr"] > 0.95 and best["recall10"] == 1
    evaluate = ["evaluate", f"--workdir={run}", f"--input={files / 'train'}.jsonl", "--json"]
    assert cli.main(evaluate) == 0  # with another number of candidates
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert scores["mrr"] > 0.95 and scores.get("loss", 0) < 0.3 * np.log(3)
    (found,) = fine_tuned.rerank(
        run, pretrained, files / "docs.txt", ["the one is"], "question\tanswer", capsys
    )
    assert {*found[:3]} == {*ANIMALS}


def test_rows_and_loss_are_those_of_the_softmax_over_the_candidates(vocabulary, files):
    data = dict(text_a="question", text_b="answer", negatives="others")
    task = fine_tuned.make_task(vocabulary, "reranking", **data)
    assert task.objective().choices == 1
    examples = task.read_training(str(files / "train.jsonl"))
    rows = task.encode(examples)
    assert rows.rows_per_example == task.objective().choices == 3 and set(rows.example_targets()) == {0}
    scores = np.random.default_rng(0).normal(size=(96, 3)).astype(np.float32)
    loss = np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[:, 0])
    assert task.loss(rows, scores) == pytest.approx(loss, rel=1e-5)
    pairs = task.encode(Examples("pairs", ["0"], ["the cat"], ["a dog"]))
    assert (len(pairs), pairs.rows_per_example) == (1, 1)


def test_ranks_count_equal_scores_as_better():
    scores = np.array([[1, 0, 2, 1], [3, 1, 1, 1], [0, 0, 0, 0]], np.float32)
    negatives = [list("xyz")] * 3
    examples = Examples("x.tsv", list("012"), list("abc"), list("def"), [0] * 3, negatives=negatives)
    found = RankingPredictions(examples, scores, np.zeros(3, int))
    assert found.predicted.tolist() == [3, 1, 4] and not found.is_degenerate({})
    assert RankingPredictions(examples, scores[2:], np.zeros(1, int)).is_degenerate({})
