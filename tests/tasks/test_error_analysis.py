"""Mistakes and pictures of tasks whose outputs are drawn, beside their scores."""

import csv
import json

import numpy as np
import pytest
from support.fine_tuned import make_task

QUESTION_FIELDS = {"max_query_length": 4, "doc_stride": 4}


def report(task, path, outputs_of, directory):
    """(predictions, data, outputs, scores, the rows of errors-dev.tsv) of outputs that `outputs_of` draws."""
    examples = task.read(str(path))
    data = task.encode(examples)
    outputs = outputs_of(np.random.default_rng(0), data)
    predictions = task.decode(examples, data, outputs)
    predictions.report(directory)
    assert (directory / "scores-dev.png").read_bytes().startswith(b"\x89PNG")
    with open(directory / "errors-dev.tsv", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    confidence = [float(row["confidence"]) for row in rows]
    assert rows and confidence == sorted(confidence, reverse=True)
    return predictions, data, outputs, task.score(predictions), rows


@pytest.mark.parametrize("v2", [False, True], ids=["1.1", "2.0"])
def test_questions(vocabulary, tmp_path, v2):
    words = "one two three cat dog bird red blue is big small one two three cat".split()
    path = tmp_path / "dev.json"
    asked = [
        {
            "id": f"q{i}",
            "question": f"is {words[i]}\tthe",
            "answers": []
            if v2 and i % 3 == 0
            else [{"text": words[i], "answer_start": len(" ".join([*words[:i], ""]))}],
        }
        for i in range(3, 15)
    ]
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": " ".join(words), "qas": asked}]}]}))
    task = make_task(vocabulary, "squad2" if v2 else "squad", fields=QUESTION_FIELDS | {"v2": v2})

    def outputs_of(rng, data):
        outputs = rng.normal(size=(len(data.tokens), 2)).astype(np.float32)
        for row in range(0, len(data), 2):  # some are right
            for column, name in enumerate(("starts", "ends")):
                outputs[data.offsets[row] + max(0, data.targets[name][row]), column] += 9
        return outputs

    predictions, data, outputs, scores, rows = report(task, path, outputs_of, tmp_path)
    exact = scores["exact" if v2 else "exact_match"]
    assert 0 < exact < 100 and len(rows) == round(12 * (1 - exact / 100))
    assert not predictions.is_degenerate(scores)
    if v2:  # every question gets none
        silent = np.zeros_like(outputs)
        silent[data.offsets[:-1]] = 9
        unanswered = task.decode(predictions.examples, data, silent)
        scored = task.score(unanswered)
        assert scored["exact"] > 0 and unanswered.is_degenerate(scored)
    predicted = {row["id"]: row for row in predictions.records()}
    for row in rows:
        number = int(row["id"][1:])
        assert row["question"] == f"is {words[number]} the"
        assert row["answers"] == ("" if v2 and number % 3 == 0 else words[number]) != row["prediction"]
        assert row["prediction"] == predicted[row["id"]]["prediction"]
        assert float(row["confidence"]) == pytest.approx(predicted[row["id"]]["probability"], abs=1e-4)
    missing = 100 * 12 - sum(float(row["f1"]) for row in rows) - 100 * (12 - len(rows))
    assert missing == pytest.approx(12 * (100 - scores["f1"]), abs=1)
