"""Predictions from a stream: lines become examples, and each is answered when it arrives."""

import io
import json
import os
import sys
import threading

import jax
import numpy as np
import pytest
from support.task_runs import RUNS

from bert_jax import cli
from bert_jax.errors import StorageError
from bert_jax.inference import predictor


@pytest.fixture
def predict(monkeypatch, capsys, tmp_path):
    """predict(text, *flags) returns the exit code, the objects on standard output, and standard error."""

    def call(text, *flags):
        (tmp_path / "stdin").write_text(text)
        with open(tmp_path / "stdin") as given:
            monkeypatch.setattr(sys, "stdin", given)
            code = cli.main(["predict", "--input=-", *flags])
        said = capsys.readouterr()
        return code, [json.loads(line) for line in said.out.splitlines()], said.err

    return call


@pytest.mark.long
@pytest.mark.parametrize("task", [task for task in RUNS if task not in ("reranking", "squad")])
def test_a_stream_gives_what_a_file_gives(run_of, predict, tmp_path, task):
    rows = RUNS[task][1] * 10  # more than a batch
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    code, answers, said = predict(lines, f"--workdir={run_of(task)}")
    assert code == 0 and "20 lines" in said and "bad" not in said
    model = predictor.Predictor(str(run_of(task)))
    reader = model.task.line_reader()
    examples = reader.examples([(n, reader.parse(json.dumps(row).encode())) for n, row in enumerate(rows, 1)])
    model.predict(examples).write(str(tmp_path / "out.jsonl"))
    if task == "squad2":
        expected = [*json.loads((tmp_path / "out.jsonl").read_text()).values()]
        assert [answer["prediction"] for answer in answers] == expected
        assert all({"id", "prediction", "probability", "null_odds"} == set(answer) for answer in answers)
        return
    expected = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for answer, row in zip(answers, expected, strict=True):
        np.testing.assert_allclose(_numbers(answer), _numbers(row), atol=3e-6)
        assert answer.keys() == row.keys() and answer["id"] == row["id"]
        if isinstance(row.get("prediction"), str):
            assert answer["prediction"] == row["prediction"]


def _numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for one in value for number in _numbers(one)]
    return [value] if isinstance(value, float) else []


@pytest.mark.parametrize(
    "task, plain, row",
    [
        ("classification", "the cat", {"text": "the cat"}),
        ("regression", "the cat\ta dog", {"text_a": "the cat", "text_b": "a dog"}),
        ("multiplechoice", "the\tcat\tdog", {"text": "the", "x": "cat", "y": "dog"}),
        ("multiplechoice", "the\tcat\tdog", {"text_a": "the", "choices": ["cat", "dog"]}),
        ("squad2", "is\tthe cat", {"question": "is", "context": "the cat"}),
        ("squad2", "is\tthe cat", {"text_a": "is", "text_b": "the cat"}),
        ("tagging", " the cat  is\u00a0big\r\n", {"words": ["the", "cat", "is\u00a0big"]}),
    ],
)
def test_plain_text_is_what_an_object_is(run_of, task, plain, row):
    reader = predictor.Predictor(str(run_of(task))).task.line_reader()
    assert reader.parse(plain.encode()) == reader.parse(json.dumps(row).encode())


@pytest.mark.long
def test_a_bad_line_is_answered_in_its_place(run_of, predict):
    text = 'the cat\n{"text": 3}\n{a dog}\n\n{"text": "red", "id": 5}\nbig'
    code, answers, said = predict(text, f"--workdir={run_of('classification')}")
    assert code == 0 and "6 lines, 3 of them not valid" in said
    assert [answer.get("id") for answer in answers] == ["0", None, None, None, "5", "5"]
    assert [answer["line"] for answer in answers if "error" in answer] == [2, 3, 4]
    assert predict("", f"--workdir={run_of('classification')}")[:2] == (0, [])


@pytest.mark.long
def test_answers_come_before_the_stream_ends_and_nothing_is_compiled_for_them(run_of):
    model = predictor.Predictor(str(run_of("classification")))
    assert model.warm_up() == 2  # one row per device, and a full batch
    reader = model.task.line_reader()
    (source, ours), (theirs, out) = os.pipe(), os.pipe()
    compiled = []
    listening = True
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if listening and "compile" in name else None
    )
    with open(source, "rb") as lines, open(out, "wb") as answers:
        server = threading.Thread(target=predictor.answer_lines, args=(model, reader, lines, answers))
        server.start()
        with open(theirs, "rb") as told:
            with open(ours, "wb", buffering=0) as asked:
                for number, text in enumerate(("the", "a cat " * 30, "the\n" * 39 + "a")):
                    asked.write(text.encode() + b"\n")
                    for _ in text.splitlines():
                        assert "prediction" in json.loads(told.readline()), number
            server.join()
    listening = False
    assert not compiled


class _Broken(io.BytesIO):
    def read1(self, size):
        raise OSError(5, "Input/output error")


def test_a_stream_that_breaks_off(run_of):
    model = predictor.Predictor(str(run_of("classification")))
    with pytest.raises(StorageError, match=r"standard input: cannot be read .Input/output error"):
        predictor.answer_lines(model, model.task.line_reader(), _Broken(), io.BytesIO())
