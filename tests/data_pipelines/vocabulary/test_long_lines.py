"""Lines and words that are too long for the trainers of `tokenizers` and of SentencePiece."""

import io
import random

import pytest

from bert_jax import tokenization
from bert_jax.io.progress import Progress
from data_pipelines import readers
from data_pipelines.vocabulary import Options, learners

RNG = random.Random(0)
WORDS = ["".join(RNG.choices("abcdefghijklm", k=RNG.randint(2, 9))) for _ in range(300)]


def words(count, size):
    """Returns `count` lines of at least `size` bytes each."""
    return tuple(" ".join(RNG.choices(WORDS, k=1 + size // 2)) for _ in range(count))


def learned(learn, kind, path, *passages, **flags):
    options = Options(input=("text",), output=str(path), kind=kind, **flags)
    documents = [readers.Document(f"text:{i}", lines, True) for i, lines in enumerate(passages)]
    path.write_bytes(learn(documents, options, Progress(io.StringIO())))
    return tokenization.load(str(path))


@pytest.mark.parametrize("space", [" ", ""])
def test_sentencepiece_learns_from_long_lines(tmp_path, space):
    (line,) = words(1, 70_000)
    line = f"{line}{space}{space.join(['öäü'] * 3000)}"
    assert len(line.encode()) > 1 << 16
    tokenizer = learned(
        *(learners.learn_sentence_piece, "sentencepiece", tmp_path / "vocab.model", (line,)),
        size=500,
        lower_case=False,
    )
    tokens = set(tokenizer.tokens)
    assert any("öäü" in token for token in tokens) and any(word in "".join(tokens) for word in WORDS)
    assert tokenizer.unk_id not in tokenizer.encode_batch([line])[0]


@pytest.mark.timeout(120)  # minutes, if the trainer gets the word
@pytest.mark.parametrize("letters", ["acgt", "01", "=-", " \t"])
def test_byte_bpe_is_not_slow_on_a_long_word(tmp_path, letters):
    word = "x" + "".join(RNG.choices(letters, k=300_000)) + "x"
    tokenizer = learned(
        *(
            learners.learn_byte_bpe,
            "bpe",
            tmp_path / "tokenizer.json",
            words(200, 100),
            (word, "another line"),
        ),
        size=700,
    )
    assert tokenizer.decode(tokenizer.encode_batch([word])[0]) == word
