"""Question answering from files to files, as a user runs it, on a tiny checkpoint; and the task's methods."""

import json

import jax
import numpy as np
import pytest
from support.fine_tuned import command_that_learns

from bert_jax import cli
from bert_jax.inference.predictor import Predictor
from bert_jax.parallel import placement
from bert_jax.tasks.rows import batches
from bert_jax.training.step import make_eval_step

COLORS = ("red", "blue", "green")
OTHERS = "one two three cat dog bird the a is big small".split()


def questions(count, seed):
    """Yields texts of 14 words; the answer is the single color, in upper case, if there is one."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        words = [str(word) for word in rng.choice(OTHERS, 14)]
        answers = []
        if number % 4:
            place = int(rng.integers(14))
            words[place] = str(rng.choice(COLORS)).upper()
            answers = [{"text": words[place], "answer_start": len(" ".join([*words[:place], ""]))}]
        asked = {"id": f"q{number}", "question": "is the", "answers": answers, "is_impossible": not answers}
        yield {"context": " ".join(words), "qas": [asked]}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    path = tmp_path_factory.mktemp("squad") / "train-v2.0.json"
    path.write_text(
        json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": [*questions(20, 0)]}]})
    )
    (path.parent / "dev-v2.0.json").write_bytes(path.read_bytes())
    return path.parent


def arguments(files, workdir, pretrained, *more):
    fields = ["--config.max_query_length=4", "--config.doc_stride=4", "--config.epochs=30"]
    fields += ["--config.eval.every=90"]
    return command_that_learns("finetune/squad:v2", files, workdir, pretrained, *fields, *more)


@pytest.mark.long
def test_evaluation_and_prediction_agree_with_training(finetuned, files, tmp_path, capsys):
    capsys.readouterr()
    output = tmp_path / "predictions.json"
    assert cli.main(["evaluate", f"--workdir={finetuned}", "--json", f"--output={output}"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    best = json.loads((finetuned / "best.json").read_text())
    assert found["scores"] == pytest.approx(best["scores"], rel=1e-4) and found["examples"] == 20
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "nbest_predictions.json",
        "null_odds.json",
        "predictions.json",
    ]
    texts = json.loads(output.read_text())
    assert texts == json.loads((finetuned / "predictions-dev.json").read_text())

    # The same questions without answers, one JSON object per line, with other field names.
    rows = [
        {"n": asked["id"], "q": asked["question"], "text": paragraph["context"]}
        for paragraph in questions(20, 0)
        for asked in paragraph["qas"]
    ]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["predict", f"--workdir={finetuned}", f"--input={tmp_path}/new.jsonl"]
    command += [f"--output={tmp_path}/new.json", "--text=q,text", "--id=n"]
    assert cli.main(command) == 0
    assert json.loads((tmp_path / "new.json").read_text()) == texts
    assert (tmp_path / "nbest_new.json").exists() and (tmp_path / "null_odds_new.json").exists()
    assert cli.main(["evaluate", f"--workdir={finetuned}", f"--input={tmp_path}/new.jsonl"]) == 2
    assert "'question' is not a text" in capsys.readouterr().err


@pytest.mark.long
def test_the_loss_of_an_evaluation_is_that_of_training(finetuned, files):
    model = Predictor(str(finetuned))
    examples = model.task.read(str(files / "dev-v2.0.json"))
    data = model.task.encode(examples)
    batch = batches.make_batch(data, np.array([*range(len(data)), -1]), (16,))
    evaluate = jax.jit(make_eval_step(model.task.objective()))
    params = placement.restack(model._loaded[1])
    pairs = evaluate(params, batch, 0, 0)
    assert pairs["task_loss"][1] == len(data)
    expected = float(pairs["task_loss"][0] / pairs["task_loss"][1])
    assert model.task.loss(data, model(data)) == pytest.approx(expected, rel=1e-3, abs=1e-6)
    data.targets["starts"][:3] = -1  # unknown answers are skipped
    rest = batches.make_batch(data, np.array([*range(3, len(data)), -1, -1, -1, -1]), (16,))
    pairs = evaluate(params, rest, 0, 0)
    assert model.task.loss(data, model(data)) == pytest.approx(
        float(pairs["task_loss"][0] / pairs["task_loss"][1]), rel=1e-3, abs=1e-6
    )
