"""Vocabularies: their special tokens, that every run makes the same, and what a user can get wrong."""

import collections
import io
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax import tokenization
from bert_jax.cli import main
from bert_jax.io.progress import Progress
from bert_jax.tokenization import byte_bpe
from bert_jax.tokenization.templates import BERT, ROBERTA
from bert_jax.tokenization.wordpiece import parse_vocabulary
from data_pipelines import readers, vocabulary

ROOT = Path(__file__).resolve().parents[2]
BPE = {"kind": "bpe", "output": "tokenizer.json"}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """200 documents of invented words, with capitals, accents, digits, Chinese and a rare character."""
    rng = random.Random(1)
    syllables = [c + v for c in "bdfgklmnprst" for v in ("a", "e", "i", "o", "u")]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(3000)]
    words += ["Été", "Straße", "中文", "2,014", "don't"] * 20
    lines = []
    for _ in range(200):
        for _ in range(rng.randint(2, 8)):
            sentence = rng.choices(words, k=rng.randint(3, 20))
            lines.append(" ".join(sentence).capitalize() + ".\n")
        lines.append("\n")
    lines[0] = "A rare \u2603 and a word of " + "x" * 300 + " letters.\n"
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


def train(path, format, output, **options):
    return vocabulary.train(vocabulary.Options(input=(path,), output=output, input_format=format, **options))


def tokens_of(path):
    return parse_vocabulary(Path(path).read_bytes())


def test_a_small_vocabulary_is_compact(text, tmp_path):
    output = str(tmp_path / "new" / "vocab.txt")
    trained = train(text, "text", output, size=800)
    tokens = tokens_of(output)
    assert trained.size == len(tokens) == 800 and tokens[:5] == SPECIAL
    assert len(set(tokens)) == 800
    tokenizer = tokenization.load(output)
    assert tokenizer.lower_case
    assert (
        {"ete", "strasse"} & set(tokens) == {"ete"}
        and "straße" in tokens
        and "." in tokens
        and "中" in tokens
    )
    # Characters that are words of their own never continue one.
    assert "##e" in tokens and not {"##.", "##中", "\u2603", "x" * 50} & set(tokens)
    (measured,) = trained.parts
    assert measured.held_out and measured.words > 100
    assert 1 < measured.tokens_per_word < 4 and measured.unknown_rate < 0.001


def test_special_tokens_are_where_bert_has_them():
    before, after = vocabulary.special_layout(4999)
    assert (before, after) == (SPECIAL, [])
    for size, unused in ((5000, 99), (19999, 99), (20000, 994), (30522, 994)):
        before, after = vocabulary.special_layout(size)
        assert [before.index(name) for name in SPECIAL] == [0, 100, 101, 102, 103]
        assert len(before) == 104
        tokens = before + after
        assert [t for t in tokens if t not in SPECIAL] == [f"[unused{i}]" for i in range(unused)]


@pytest.mark.long
@pytest.mark.parametrize(
    "kind, name", [("wordpiece", "vocab.txt"), ("sentencepiece", "vocab.model"), ("bpe", "tokenizer.json")]
)
def test_processes_and_threads_agree(text, tmp_path, kind, name):
    contents = []
    for number in (1, 2, 4):
        output = str(tmp_path / f"{number}" / name)
        environment = {**os.environ, "RAYON_NUM_THREADS": str(number), "PYTHONHASHSEED": str(number)}
        command = [sys.executable, "-m", "bert_jax", "vocab", f"--input={text}", f"--output={output}"]
        command += [f"--kind={kind}", "--size=600"]
        subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True, timeout=120)
        contents.append(Path(output).read_bytes())
    assert contents[0] == contents[1] == contents[2]


@pytest.mark.parametrize("family, cls, template", [("roberta", "<s>", ROBERTA), ("bert", "[CLS]", BERT)])
def test_byte_bpe(text, tmp_path, family, cls, template):
    output = str(tmp_path / "tokenizer.json")
    trained = train(text, "text", output, size=700, kind="bpe", special_tokens=family)
    tokenizer = tokenization.load(output)
    assert trained.size == tokenizer.vocab_size == 700 and not tokenizer.lower_case
    assert tokenizer.special_ids == {"cls": 0, "pad": 1, "sep": 2, "unk": 3, "mask": 4}
    assert tokenizer.tokens[0] == cls and tokenizer.template == template
    assert tokenizer.tokens[5:261] == sorted(byte_bpe.ALPHABET)
    (measured,) = trained.parts
    assert 1 < measured.tokens_per_word < 4 and measured.unknown_rate == 0
    lines = Path(text).read_text("utf-8").split("\n")
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(lines)] == lines
    # Sentences of a document are learned as they stand in it, after a space.
    capitals = tuple("BDFGKLMNPRST")
    first, inside = (
        [token for token in tokenizer.tokens[261:] if token.startswith(starts)]
        for starts in (capitals, tuple(f"\u0120{letter}" for letter in capitals))
    )
    assert len(first) < len(inside)


@pytest.mark.parametrize(
    "flags",
    [
        *({"input": "none-*.txt"}, {"input": "blank.txt"}, {"size": "20"}),
        *({"size": "100", "lower_case": "false", "input": "letters.txt"}, {"kind": "sentencepiece"}),
        *({"output": "folder"}, {"output": "there.txt"}, {"character_coverage": "0.5"}),
        *({"text_field": "key"}, {"sampling_exponent": "0"}),
        *({"special_tokens": "bert"}, BPE | {"size": "260"}, BPE | {"lower_case": "true"}),
        {"kind": "sentencepiece", "output": "a.model", "size": "100", "input": "letters.txt"},
    ],
)
def test_wrong_flags(text, tmp_path, monkeypatch, capfd, flags):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blank.txt").write_text(" \n\n")
    (tmp_path / "letters.txt").write_text("".join(chr(c) + chr(c) + " " for c in range(0x400, 0x500)) * 9)
    (tmp_path / "there.txt").touch()
    (tmp_path / "folder").mkdir()
    flags = {"input": text, "output": "out/vocab.txt"} | flags
    assert main(["vocab", *(f"--{name}={value}" for name, value in flags.items())]) == 2
    error = capfd.readouterr().err
    assert error.startswith("bert-jax: error: ") and error.count("\n") == 1


@pytest.fixture
def two_languages(tmp_path):
    """A large input and one of a hundredth of it, of other letters."""
    for name, first, documents in (("large", "a", 20_000), ("small", "\u0430", 100)):
        rng = random.Random(name)
        letters = [chr(ord(first) + number) for number in range(20)]
        with open(tmp_path / f"{name}.txt", "w", encoding="utf-8") as file:
            for _ in range(documents):
                words = ("".join(rng.choices(letters, k=4)) for _ in range(20))
                file.write(" ".join(words) + ".\n\n")
    return [str(tmp_path / "large.txt"), str(tmp_path / "small.txt")]


def test_the_exponent_levels_the_languages(two_languages):
    paths = two_languages
    sizes = [os.path.getsize(path) for path in paths]
    shares = {}
    for exponent in (0.7, 0.3):
        parts = vocabulary.sample(
            vocabulary.Options(input=tuple(paths), output="", seed=1, sampling_exponent=exponent),
            400_000,
            Progress(io.StringIO()),
        )
        assert all(part.held_out for part in parts)
        assert min(part.times for part in parts) == 1 and parts[0].times < 1.1
        learned, progress = collections.Counter(), Progress(io.StringIO())
        progress.start("learning")
        for document in vocabulary._documents(parts, progress):
            learned[document.key.partition(".")[0]] += document.size
        shares[exponent] = learned["small"] / learned.total()
        expected = sizes[1] ** exponent / sum(size**exponent for size in sizes)
        assert shares[exponent] == pytest.approx(expected, rel=0.005)
    assert shares[0.3] > shares[0.7] > 2 * sizes[1] / sum(sizes)


def test_the_sample_is_bounded_and_spread(tmp_path):
    paths = []
    for number in range(10):
        path = tmp_path / f"{number}.txt"
        path.write_text("".join(f"Word{number}x number {i} is here.\n\n" for i in range(4000)))
        paths.append(str(path))

    def sampled(seed):
        options = vocabulary.Options(input=tuple(paths), output="", input_format="text", seed=seed)
        (part,) = vocabulary.sample(options, 100_000, Progress(io.StringIO()))
        return part.training, part.held_out

    sample, held_out = sampled(seed=1)
    assert 90_000 < sum(d.size for d in sample + held_out) < 200_000
    assert len({document.key.split(":")[0] for document in sample}) >= 2
    assert sampled(seed=1)[0] == sample != sampled(seed=2)[0]
    assert not {d.key for d in sample} & {d.key for d in held_out}


def learned(learn, kind, path, *passages, **flags):
    options = vocabulary.Options(input=("text",), output=str(path), kind=kind, **flags)
    documents = [readers.Document(f"text:{i}", lines, True) for i, lines in enumerate(passages)]
    path.write_bytes(learn(documents, options, Progress(io.StringIO())))
    return tokenization.load(str(path))


def long_line(size):
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklm", k=rng.randint(2, 9))) for _ in range(300)]
    return " ".join(rng.choices(words, k=size))


@pytest.mark.parametrize("space", [" ", ""])
def test_sentencepiece_learns_from_long_lines(tmp_path, space):
    line = f"{long_line(35_000)}{space}{space.join(['öäü'] * 3000)}"
    flags = {"size": 500, "lower_case": False}
    path = tmp_path / "vocab.model"
    tokenizer = learned(vocabulary.learn_sentence_piece, "sentencepiece", path, (line,), **flags)
    assert any("öäü" in token for token in tokenizer.tokens)
    assert tokenizer.unk_id not in tokenizer.encode_batch([line])[0]


@pytest.mark.timeout(120)  # minutes, if the trainer gets the word
@pytest.mark.parametrize("letters", ["acgt", "01", "=-", " \t"])
def test_byte_bpe_is_not_slow_on_a_long_word(tmp_path, letters):
    word = "x" + "".join(random.Random(0).choices(letters, k=300_000)) + "x"
    path, texts = tmp_path / "tokenizer.json", ((long_line(10_000),), (word, "another line"))
    tokenizer = learned(vocabulary.learn_byte_bpe, "bpe", path, *texts, size=700)
    assert tokenizer.decode(tokenizer.encode_batch([word])[0]) == word
