"""`bert-jax vocab --add_to`: the words of a text that a vocabulary splits, by how many tokens they save."""

import pytest
from support import conversions, models

from bert_jax import cli, tokenization
from bert_jax.convert import vocabulary
from bert_jax.convert.formats import huggingface
from data_pipelines.vocabulary import sample

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


def whole(documents):
    found = sample.Sample()
    for document in documents:
        found.add(document)
    return found


def vocab(files, *more, output="terms.txt"):
    return cli.main(
        [
            *("vocab", f"--input={files / 'domain.txt'}", f"--add_to={files / 'vocab.txt'}"),
            *(f"--output={files / output}", *more),
        ]
    )


def test_words_by_what_they_save(files, capsys, monkeypatch):
    monkeypatch.setattr(sample, "_hold_out", lambda documents, seed: (whole(documents), sample.Sample()))
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


def test_at_most_so_many_and_so_often(files):
    assert vocab(files, "--min_frequency=5", "--size=2", output="two.txt") == 0
    assert (files / "two.txt").read_text().split() == ["nephron", "ab"]
    assert vocab(files, "--min_frequency=5", "--size=1", output="one.txt") == 0
    assert (files / "one.txt").read_text().split() == ["nephron"]


def test_the_words_can_be_added(files):
    assert vocab(files, "--min_frequency=3") == 0
    old = tokenization.load(files / "vocab.txt")
    tokens = vocabulary.add_tokens(old, vocabulary.read_tokens(files / "terms.txt"))
    (files / "new.txt").write_text("\n".join(tokens) + "\n")
    new = tokenization.load(files / "new.txt", lower_case=True)
    ids = new.encode_batch(["Nephritis of the néphron, zz"])[0]
    assert [new.tokens[i] for i in ids if i != new.unk_id] == ["nephritis", "the", "nephron", "zz"]


def test_the_vocabulary_of_a_model(files, tmp_path):
    tokenizer = tokenization.load(files / "vocab.txt")
    config = models.tiny_config(vocab_size=tokenizer.vocab_size)
    model = conversions.random_model(config, tokenizer=tokenizer)
    (tmp_path / "model").mkdir()
    huggingface.FORMAT.write(model, tmp_path / "model")
    assert vocab(files, f"--add_to={tmp_path / 'model'}", "--min_frequency=3") == 0
    assert (files / "terms.txt").read_text().startswith("nephron\nnephritis\n")


@pytest.mark.parametrize(
    "more, told",
    [
        (["--min_frequency=50"], "splits occurs 50 times in the text; give more text, or a lower"),
        (["--size=0"], "--size=0: expected at least 1"),
        (["--kind=wordpiece"], "--kind has no effect with --add_to; leave it out"),
        (["--compare=x"], "--compare has no effect with --add_to"),
        (["--sampling_exponent=0.7"], "--sampling_exponent has no effect with --add_to"),
        (["--add_to=/missing"], "/missing"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(files, capsys, more, told):
    assert vocab(files, *more) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1
    assert not (files / "terms.txt").exists()


def test_held_out_text_is_not_counted_and_the_message_says_so(files, capsys):
    (files / "domain.txt").write_text("The nephron.\n" * 20)  # the last line is held out
    assert vocab(files, "--min_frequency=20") == 2
    assert "occurs 20 times in the text that is not held out; give more" in capsys.readouterr().err
    assert vocab(files, "--min_frequency=19") == 0


def test_what_exists_stays(files, capsys):
    (files / "terms.txt").write_text("mine\n")
    assert vocab(files) == 2
    assert "exists already; --overwrite replaces it" in capsys.readouterr().err
    assert (files / "terms.txt").read_text() == "mine\n"


def test_another_kind_of_vocabulary(files, capsys):
    bpe = files / "tokenizer.json"
    command = ["vocab", f"--input={files / 'domain.txt'}", "--kind=bpe", "--size=300", f"--output={bpe}"]
    assert cli.main(command) == 0
    capsys.readouterr()
    assert vocab(files, f"--add_to={bpe}") == 2
    assert "can be added to a WordPiece vocabulary, and this one is a bpe model" in capsys.readouterr().err
