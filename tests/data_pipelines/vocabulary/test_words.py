"""`bert-jax vocab --add_to`: the words of a text that a vocabulary splits, by how many tokens they save."""

import pytest

from bert_jax import cli
from data_pipelines.vocabulary import training

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = "the heart renal ne ##ph ##r ##itis ##on a ##b ##1 1 2 . -".split()

# Words with what a vocabulary of the PIECES makes of them, and how often they occur.
TEXT = {
    "Nephritis": 4,  # ne ##ph ##r ##itis: 3 tokens fewer each time
    "nephron": 5,  # ne ##ph ##r ##on: 3
    "néphron": 1,  # the same word
    "renal": 30,  # is in the vocabulary
    "heart": 30,
    "ab": 7,  # a ##b: 1
    "zz": 5,  # unknown: as many as its letters, 1
    "z": 3,  # unknown, of one letter: counts as two
    "12": 40,  # unknown, and has no letter
    "ab1": 2,  # a ##b ##1: too rare
    "heart-renal": 9,  # two words and a hyphen
}


@pytest.fixture
def files(tmp_path):
    """A vocabulary, and a corpus of 25 documents."""
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *PIECES]) + "\n")
    write(tmp_path, TEXT)
    return tmp_path


def write(folder, text):
    words = [word for word, count in text.items() for _ in range(count)]
    documents = [f"The {' '.join(words[i::25])} .\nThe heart.\n" for i in range(25)]
    (folder / "domain.txt").write_text("\n".join(documents))


def vocab(files, *more, output="terms.txt"):
    return cli.main(
        [
            *("vocab", f"--input={files / 'domain.txt'}", f"--add_to={files / 'vocab.txt'}"),
            *(f"--output={files / output}", *more),
        ]
    )


def test_words_by_what_they_save(files, capsys, monkeypatch):
    monkeypatch.setattr(training, "_hold_out", lambda documents, seed: (documents, []))
    text = TEXT | {"zzz": 4, "z1": 3}  # unknown: 2 and 1
    write(files, text)
    assert vocab(files, "--min_frequency=3") == 0
    expected = ["nephron", "nephritis", "zzz", "ab", "zz", "z", "z1"]  # 18, 12, 8, 7, 5, 3, 3
    assert (files / "terms.txt").read_text().split() == expected
    said = capsys.readouterr().out
    assert f"{files}/terms.txt: 7 words, each at least 3 times in 1.1 kB of text: nephron 6 times, " in said
    words = sum(text.values()) + 25 * (1 + 1 + 2)  # as spaces divide them, with "The", "." and "The heart."
    pieces = 4 * (4 + 6) + 30 + 30 + 2 * 7 + 5 + 4 + 3 + 3 + 40 + 3 * 2 + 3 * 9 + 25 * (1 + 1 + 3)
    told = f"{pieces / words:.3f} tokens per word of this text, and {(pieces - 37) / words:.3f} with these"
    assert told in said
