"""Reranking: groups of candidates, a run that learns which one is right, and the search that it orders."""

import json

import numpy as np
import pytest
from support.fine_tuned import NO_DROPOUT, make_task

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


def command(files, workdir, pretrained, *more):
    return [
        *("finetune", "--config=finetune/reranking", f"--workdir={workdir}"),
        *(f"--config.init_from={pretrained}", "--config.data.text_a=question", "--config.data.text_b=answer"),
        *(f"--config.data.train={files / 'train.jsonl'}", f"--config.data.eval={files / 'dev.jsonl'}"),
        *("--config.data.negatives=others", "--config.max_seq_length=16", "--config.batch_size=16"),
        *("--config.optimizer.learning_rate=3e-3", *more),
    ]


@pytest.fixture(scope="module")
def run(files, pretrained, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run") / "run"
    assert cli.main(command(files, workdir, pretrained, "--config.epochs=8", *NO_DROPOUT)) == 0
    return workdir


@pytest.mark.long
def test_a_run_orders_candidates_and_documents(run, files, pretrained, tmp_path, capsys):
    best = json.loads((run / "best.json").read_text())["scores"]
    assert best["mrr"] > 0.95 and best["recall10"] == 1
    for name, count in (("dev", 1), ("train", 2)):
        capsys.readouterr()
        evaluate = ["evaluate", f"--workdir={run}", f"--input={files / name}.jsonl", "--json"]
        assert cli.main(evaluate) == 0
        scores = json.loads(capsys.readouterr().out)["scores"]
        assert scores["mrr"] > 0.95 and scores.get("loss", 0) < 0.3 * np.log(1 + count)

    search = [f"--model={pretrained}", f"--corpus={files / 'docs.txt'}", f"--index={tmp_path / 'index'}"]
    capsys.readouterr()
    query = "the one is"
    assert cli.main(["search", *search, f"--query={query}", f"--rerank={run}", "--json", "--top=8"]) == 0
    (found,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    scores = [one["score"] for one in found["results"]]
    assert {one["text"] for one in found["results"][:3]} == {*ANIMALS}
    assert len(scores) == 8 and scores == sorted(scores, reverse=True)

    pairs, out = tmp_path / "pairs.tsv", tmp_path / "out.jsonl"
    pairs.write_text("question\tanswer\n" + "".join(f"{query}\t{one['text']}\n" for one in found["results"]))
    assert cli.main(["predict", f"--workdir={run}", f"--input={pairs}", f"--output={out}"]) == 0
    predicted = [json.loads(line)["prediction"] for line in out.read_text().splitlines()]
    np.testing.assert_allclose(predicted, scores, atol=1e-3)


def test_rows_and_loss_are_those_of_the_softmax_over_the_candidates(vocabulary, files):
    data = dict(text_a="question", text_b="answer", negatives="others")
    task = make_task(vocabulary, "reranking", **data)
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
