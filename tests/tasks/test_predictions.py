"""Files of predictions, which are written row by row."""

import json

import numpy as np

from bert_jax.tasks.predictions import ClassPredictions
from bert_jax.tasks.table import Examples


def test_the_numbers_of_tables_are_those_of_json_lines(tmp_path):
    ids, labels = list("01234"), [f"label {number}" for number in range(4)]
    outputs = np.random.default_rng(0).random((5, 4), np.float32)
    outputs[0] = [0, 1e-9, 1, 0.1234565]
    predictions = ClassPredictions(Examples("x", ids, ids), outputs, np.arange(5), labels)
    names = ["tsv", "csv", "jsonl"]
    for suffix in names:
        predictions.write(str(tmp_path / f"out.{suffix}"))
    tsv, csv, rows = ((tmp_path / f"out.{suffix}").read_text().splitlines() for suffix in names)
    assert tsv[:2] == [
        "id\tprediction\tp(label 0)\tp(label 1)\tp(label 2)\tp(label 3)",
        "0\tlabel 2\t0.000000\t0.000000\t1.000000\t0.123457",
    ]
    assert [line.replace(",", "\t") for line in csv] == tsv
    for line, row in zip(tsv[1:], map(json.loads, rows), strict=True):
        expected = [row["id"], row["prediction"], *(f"{p:.6f}" for p in row["probabilities"].values())]
        assert line.split("\t") == expected


def test_mistakes_are_listed_with_the_surest_first(tmp_path):
    names = ["one", "two", "three", "four"]
    outputs = np.float32([[0.6, 0.4], [0.1, 0.9], [0.3, 0.7], [0.8, 0.2]])
    examples = Examples("x", list("0123"), names)
    found = ClassPredictions(examples, outputs, np.array([1, 1, 0, 0]), ["no", "yes"])
    found.write_mistakes(str(tmp_path))
    assert (tmp_path / "errors-dev.tsv").read_text().splitlines()[1:] == [
        "2\tno\tyes\t0.7000\tthree\t",
        "0\tyes\tno\t0.6000\tone\t",
    ]
    assert not found.is_degenerate({})
    same = ClassPredictions(examples, outputs[[0, 3, 0, 3]], np.array([1, 1, 0, 0]), ["no", "yes"])
    assert same.is_degenerate({})
