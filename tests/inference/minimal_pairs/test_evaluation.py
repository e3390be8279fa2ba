"""Accuracies and files of minimal pairs, with a scorer whose scores are known."""

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.inference import minimal_pairs
from bert_jax.inference.minimal_pairs import Pair
from bert_jax.inference.sentence_scores import Scores

PAIRS = [
    Pair("length", "a b", "a b c"),
    Pair("length", "a b c", "a b"),
    Pair("tie", "x", "y"),
    Pair("length", "a b c d ?", "a b"),
]


def shorter_is_better(sentences, on_done):
    sentences = list(sentences)
    on_done(len(sentences))
    lengths = np.array([len(sentence.split()) for sentence in sentences])
    return Scores(-1.0 * lengths, lengths, np.array(["?" in sentence for sentence in sentences]))


def test_accuracies():
    done = []
    result = minimal_pairs.evaluate(shorter_is_better, PAIRS, done.append)
    assert result.correct.tolist() == [1, 0, 0.5, 0]
    assert result.unknown.tolist() == [False, False, False, True] and done == [8]
    assert result.summary() == {
        "length": {"accuracy": pytest.approx(1 / 3), "pairs": 3, "unequal": 3},
        "tie": {"accuracy": 0.5, "pairs": 1, "unequal": 0},
        "all": {"accuracy": 0.375, "pairs": 4, "unequal": 3},
    }


def test_scores_and_pairs_in_files(tmp_path):
    path = tmp_path / "scores.tsv"
    minimal_pairs.evaluate(shorter_is_better, PAIRS).write(str(path))
    assert path.read_text().splitlines()[:2] == [
        "phenomenon\tgood\tbad\tgood_score\tbad_score",
        "length\ta b\ta b c\t-2.000000\t-3.000000",
    ]
    assert minimal_pairs.read(str(path)) == PAIRS


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "no such file"),
        ("", "the file is empty"),
        ("phenomenon\tgood\tbad\n", "no pairs after the header"),
        ("phenomenon\tgood\nx\ty\n", "pairs.tsv: no column 'bad'; its columns are 'phenomenon'"),
        (
            "phenomenon,good,bad\nx,y,z\n",
            "pairs.tsv: no column 'phenomenon'; its columns are 'phenomenon,good,bad'",
        ),
        ("phenomenon\tgood\tbad\nx\ty\n", "pairs.tsv:2: 2 columns, expected 3"),
        ("phenomenon\tgood\tbad\nx\ty\tz\nx\t \tz\n", "pairs.tsv:3: the column good is empty"),
        ("phenomenon\tgood\tbad\nall\ty\tz\n", "pairs.tsv:2: the phenomenon 'all'"),
    ],
)
def test_mistakes(tmp_path, content, message):
    path = tmp_path / "pairs.tsv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message):
        minimal_pairs.read(str(path))
