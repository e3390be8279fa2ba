"""Assembles examples into rows of tokens. All tasks build their rows here."""

from __future__ import annotations

import array
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.tasks.rows import windows
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.rows.windows import Ids, Pair
from bert_jax.tasks.table import Examples
from bert_jax.tokenization import Tokenizer

_ENCODE_CHUNK = 8192
_MANY_UNKNOWN = 0.05  # fraction of [UNK] above which the vocabulary is probably of another language
_MOST_ARRAYS = 1 << 15  # that are kept before they are concatenated: each takes a hundred bytes


class RowBuilder:
    """Collects rows in the layout of a tokenizer, such as [CLS] A [SEP] or [CLS] A [SEP] B [SEP].

    Attributes:
        total: the number of tokens of all rows so far.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._blocks: list[np.ndarray] = []
        self._parts: list[np.ndarray] = []
        self._lengths, self._first_lengths, self._examples = (array.array("q") for _ in range(3))
        self.total = 0

    def add(
        self,
        example: int,
        first: Sequence[int] | np.ndarray,
        second: Sequence[int] | np.ndarray | None = None,
    ) -> int:
        """Adds a row, of ids without special tokens, and returns where it begins in `tokens`."""
        begin, layout = self.total, self._tokenizer.layout
        parts = layout.parts(first, second)
        self._parts += parts
        if len(self._parts) > _MOST_ARRAYS:
            self._blocks.append(np.concatenate(self._parts))
            self._parts = []
        self._lengths.append(sum(map(len, parts)))
        self._first_lengths.append(layout.first_length(len(first), second is not None))
        self._examples.append(example)
        self.total += self._lengths[-1]
        return begin

    def arrays(self, max_seq_length: int) -> dict[str, Any]:
        """Returns the collected rows as keyword arguments of `EncodedRows`, with this `max_seq_length`."""
        blocks = [*self._blocks, *self._parts]
        return {
            "tokens": np.concatenate(blocks) if blocks else np.zeros(0, np.int32),
            "offsets": np.concatenate([np.zeros(1, np.int64), np.cumsum(self._lengths, dtype=np.int64)]),
            "first_lengths": np.array(self._first_lengths, np.int32),
            "pad_id": self._tokenizer.pad_id,
            "max_seq_length": max_seq_length,
            "examples": np.array(self._examples, np.int64),
        }


class UnknownTokens:
    """Counts [UNK] in the rows of a model, and logs one warning if it is more than 5% of the tokens.

    The text of the object ends a line: "; 1.2% of the tokens are [UNK]", or "" if there are none, as always
    with byte-level tokenizers.
    """

    def __init__(self, tokenizer: Tokenizer, log: Callable[[str], None]):
        self._tokenizer, self._log = tokenizer, log
        self._unknown = self._total = 0
        self._warned = False

    def add(self, tokens: np.ndarray) -> UnknownTokens:
        """Counts the tokens of rows, int32 [N], without their special tokens."""
        self._unknown += int(np.sum(tokens == self._tokenizer.unk_id))
        self._total += int(np.sum(np.isin(tokens, self._tokenizer.layout.special_ids, invert=True)))
        if not self._warned and self._unknown > _MANY_UNKNOWN * self._total:
            self._warned = True
            self._log(
                f"warning: {str(self)[2:]}: the vocabulary {self._tokenizer.path} does not fit the text"
            )
        return self

    def __str__(self) -> str:
        unknown = self._tokenizer.special_tokens["unk"]
        return f"; {self._unknown / self._total:.1%} of the tokens are {unknown}" if self._unknown else ""


def encode(
    examples: Examples,
    tokenizer: Tokenizer,
    max_seq_length: int,
    doc_stride: int = 0,
    target_dtype: type = np.int32,
) -> EncodedRows:
    """Tokenizes texts or pairs of texts, with or without labels, and returns their rows.

    A row has at most `max_seq_length` tokens, including special tokens. Longer examples are truncated
    (`truncate_pair`), or with a `doc_stride` split into windows (`windows.split_pair`).
    """
    first, second = tokenize(tokenizer, examples.texts_a), itertools.repeat(None, len(examples))
    if examples.texts_b:
        second = tokenize(tokenizer, examples.texts_b)
    room = tokenizer.layout.room(max_seq_length, pair=bool(examples.texts_b))
    rows = (
        windows.split_pair(a, b, room, doc_stride) if doc_stride else truncate(a, b, room)
        for a, b in zip(first, second, strict=True)
    )
    options: dict[str, Any] = {"target_dtype": target_dtype, "has_windows": bool(doc_stride)}
    return assemble(rows, examples.labels, tokenizer, max_seq_length, **options)


def encode_choices(
    texts: Sequence[str],
    choices: Sequence[Sequence[str]],
    labels: Sequence[Any],
    tokenizer: Tokenizer,
    max_seq_length: int,
) -> EncodedRows:
    """Tokenizes texts with choices and returns a group of rows for each text, one for each of its choices.

    All texts have the same number of choices. `labels` are int, of each text, or empty. Rows are truncated to
    `max_seq_length` tokens, including special tokens.
    """
    count = len(choices[0])
    room = tokenizer.layout.room(max_seq_length, pair=True)
    endings = tokenize(tokenizer, [choice for group in choices for choice in group])

    def group(text: Ids) -> tuple[list[Pair], bool]:
        of_text = list(itertools.islice(endings, count))
        rows, cut = zip(*(truncate(text, choice, room) for choice in of_text), strict=True)
        return list(itertools.chain.from_iterable(rows)), any(cut)

    rows = map(group, tokenize(tokenizer, texts))
    return assemble(rows, labels, tokenizer, max_seq_length, rows_per_example=count)


def tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[Ids]:
    """Yields the token ids of each text, without special tokens. Texts are tokenized in batches."""
    for begin in range(0, len(texts), _ENCODE_CHUNK):
        yield from tokenizer.encode_batch(texts[begin : begin + _ENCODE_CHUNK])


def assemble(
    rows_of_examples: Iterable[tuple[Sequence[Pair], bool]],
    labels: Sequence[Any],
    tokenizer: Tokenizer,
    max_seq_length: int,
    *,
    target_dtype: Any = np.int32,
    rows_per_example: int = 1,
    has_windows: bool = False,
) -> EncodedRows:
    """Assembles the rows of all examples.

    Args:
        rows_of_examples: for each example, a list of pairs (A, B) of token ids without special tokens, one
            pair for each row, where B is None for a single text; and whether the example was truncated.
        labels: the label of each example; empty if they have no labels.
        tokenizer: the tokenizer of the model.
        max_seq_length: the maximum number of tokens of a row, including special tokens.
        target_dtype: the dtype of the targets.
        rows_per_example: the number of consecutive rows that form one question.
        has_windows: whether the rows of an example are windows whose outputs are averaged.
    """
    builder, truncated = RowBuilder(tokenizer), 0
    for number, (pairs, cut) in enumerate(rows_of_examples):
        truncated += cut
        for first, second in pairs:
            builder.add(number, first, second)
    arrays = builder.arrays(max_seq_length)
    owners = arrays["examples"]
    return EncodedRows(
        **arrays,
        targets={} if not labels else {"targets": np.asarray(labels, target_dtype)[owners]},
        truncated=truncated,
        rows_per_example=rows_per_example,
        row_weights=windows.row_weights(owners) if has_windows else None,
    )


def truncate(a: Ids, b: Ids | None, room: int) -> tuple[list[Pair], bool]:
    """Returns the single row of a text or pair, with at most `room` tokens, and whether it was truncated."""
    if b is None:
        return [(a[:room], None)], len(a) > room
    keep_a, keep_b = truncate_pair(len(a), len(b), room)
    return [(a[:keep_a], b[:keep_b])], keep_a + keep_b < len(a) + len(b)


def truncate_pair(length_a: int, length_b: int, budget: int) -> tuple[int, int]:
    """Returns how many of the tokens of A and B remain if tokens are removed one by one from the longer text.

    If both have the same length, B loses a token. This is the result of the loop in `_truncate_seq_pair` of
    google-research/bert, in closed form. `budget` is the maximum number of tokens of both together.
    """
    keep_a = min(length_a, max(budget - length_b, budget - budget // 2))
    return keep_a, min(length_b, budget - keep_a)
