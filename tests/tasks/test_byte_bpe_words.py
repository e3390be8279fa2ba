"""Words and answers inside a text have the tokens of byte-level BPE that follow a space."""

from pathlib import Path

import pytest

from bert_jax import tokenization
from bert_jax.tasks import question_answering as questions
from bert_jax.tasks import tagging
from bert_jax.tasks.question_answering.question_files import Questions
from bert_jax.tasks.tagging import TaggedSentences

FOLDER = Path(__file__).resolve().parents[1] / "testdata" / "bpe"


@pytest.fixture(scope="module")
def tokenizer():
    return tokenization.load(FOLDER)


def test_words_of_a_tagged_sentence(tokenizer):
    words = ["The", "capital", "of", "France", "."]
    sentences = TaggedSentences("f", [words], [["O"] * 5], [0], ["0"], rows=1)
    rows = tagging.encode(sentences, tokenizer, 32, ("O",))
    assert tokenizer.decode(rows.tokens) == "<s> The capital of France .</s>"
    assert rows.tokens.tolist()[1:-1] == tokenizer.encode_batch([" The capital of France ."])[0]
    first = [tokenizer.spelling(i) for i in rows.tokens[rows.word_tokens]]
    assert all(
        token.startswith(" ") and word.startswith(token[1:]) for token, word in zip(first, words, strict=True)
    )


@pytest.mark.parametrize("answer", ["In 1895", "1895", "12,345", "people", "12,345 people there"])
def test_the_tokens_of_an_answer(tokenizer, answer):
    """The words around it, with the punctuation that touches them, have no part in it."""
    context = "In 1895, (12,345 people there) said it."
    start = context.index(answer)
    given = Questions("f", ["1"], ["the"], [context], [0], [[answer]], [start], rows=1)
    rows = questions.encode(given, tokenizer, 64, 16, 16)
    begin, end = int(rows.targets["starts"][0]), int(rows.targets["ends"][0])
    span = rows.characters[begin][0], rows.characters[end][1]
    assert context[slice(*span)] == answer
