"""Windows of contexts, compared with cases computed by hand."""

import pytest

from bert_jax import tokenization
from bert_jax.tasks import question_answering
from bert_jax.tasks.question_answering.question_files import UNKNOWN, Questions


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    words = [*"abcdefghij", *"0123456789", *"()-.,?", "who", "japan", "japanese", "##s", "18", "##95"]
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    return tokenization.load(path)


def asked(context, question="who?", answer="", start=UNKNOWN):
    return Questions(
        "file.json", ["q"], [question], [context], [0], [[answer] if answer else []], [start], rows=1
    )


def rows(data, tokenizer):
    """Returns each row as text."""
    parts = zip(data.offsets[:-1], data.offsets[1:], strict=True)
    return [" ".join(tokenizer.tokens[i] for i in data.tokens[a:b]) for a, b in parts]


def test_a_short_context_is_one_window(tokenizer):
    data = question_answering.encode(asked("a b c", answer="b c", start=2), tokenizer, 10, 4, 6)
    assert rows(data, tokenizer) == ["[CLS] who ? [SEP] a b c [SEP]"]
    assert data.first_lengths.tolist() == [4]
    assert data.targets["starts"].tolist() == [5] and data.targets["ends"].tolist() == [6]
    assert data.characters.tolist() == [[-1, -1]] * 4 + [[0, 1], [2, 3], [4, 5]] + [[-1, -1]]
    assert data.is_max_context.tolist() == [False] * 4 + [True] * 3 + [False]


def test_windows_slide_and_each_token_has_one_best(tokenizer):
    # Windows have 10 - 2 - 3 = 5 tokens and start every 2 tokens. Left and right context by hand:
    #   c (2): window 0 has min(2, 2), window 1 min(0, 4): 0.   d (3): min(3, 1) against min(1, 3): a tie, 0.
    #   e (4): 0, 2, 0 in windows 0, 1, 2: 1.   f (5): 1 in both 1 and 2: 1.   g (6): 0 against 2: 2.
    data = question_answering.encode(asked("a b c d e f g h i", answer="e f", start=8), tokenizer, 10, 2, 6)
    assert rows(data, tokenizer) == [
        "[CLS] who ? [SEP] a b c d e [SEP]",
        "[CLS] who ? [SEP] c d e f g [SEP]",
        "[CLS] who ? [SEP] e f g h i [SEP]",
    ]
    best = data.is_max_context.reshape(3, 10)[:, 4:9].astype(int).tolist()
    assert best == [[1, 1, 1, 1, 0], [0, 0, 1, 1, 0], [0, 0, 1, 1, 1]]
    # Window 0 has only the answer's first token, so its label is [CLS].
    assert data.targets["starts"].tolist() == [0, 6, 4] and data.targets["ends"].tolist() == [0, 7, 5]
    assert data.examples.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "context, answer, expected",
    [
        ("a (1895-1943). b", "1895", "18 ##95"),
        ("a (1895-1943). b", "1895-1943", "18 ##95 - [UNK]"),
        ("a japanese b", "japan", "japanese"),
        ("a b japans.", "japan", "japan"),
        ("a japans b", "apan", "japan ##s"),
        ("a b japans.", "japans.", "japan ##s ."),
        ("a\u00a0b c", "b", "b"),
        ("a\u2003 b c", "b", "b"),
        ("  a b", "a", "a"),
    ],
)
def test_an_answer_is_the_tightest_stretch_of_its_words(tokenizer, context, answer, expected):
    data = question_answering.encode(asked(context, "a", answer, context.index(answer)), tokenizer, 40, 8, 6)
    first, last = data.targets["starts"][0], data.targets["ends"][0]
    assert " ".join(tokenizer.tokens[i] for i in data.tokens[first : last + 1]) == expected
