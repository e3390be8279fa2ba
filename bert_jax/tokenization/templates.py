"""Defines how rows are assembled: `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`. Only this module defines it.

A `Template` names the special tokens by role, and a `Layout` is a template with the ids of a vocabulary. The
room for tokens, the positions of A and B, and the token types are derived from them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

FIRST, SECOND = "A", "B"

Places = tuple[tuple[str, int], ...]  # (role, A or B; token type) from left to right


def _places(text: str) -> Places:
    places = [place.partition(":") for place in text.split()]
    return tuple((name, int(number)) for name, _, number in places)


@dataclasses.dataclass(frozen=True)
class Template:
    """The form of a row for a single text and for a pair, as `role:type` items separated by spaces.

    `BERT` is an example.

    Attributes:
        single: the special tokens around A.
        pair: the special tokens around A and B. All items before B must have the same token type, and so must
            B and all items after it, so that the number of tokens before B determines the types.

    Raises:
        ValueError: the text is not a valid row.
    """

    single: str
    pair: str

    def __post_init__(self):
        single, pair = (self._names(text) for text in (self.single, self.pair))
        valid = [name for name in single if name in (FIRST, SECOND)] == [FIRST]
        valid &= [name for name in pair if name in (FIRST, SECOND)] == [FIRST, SECOND]
        if valid:
            types = [number for _, number in _places(self.pair)]
            before, after = types[: pair.index(SECOND)], types[pair.index(SECOND) :]
            valid = single[: single.index(FIRST)] == pair[: pair.index(FIRST)]
            valid &= len({number for _, number in _places(self.single)} | set(before)) == 1
            valid &= len(set(after)) == 1
        if not valid:
            raise ValueError(
                f"rows {self.single!r} and {self.pair!r}: expected A, in a pair B after it, with the same "
                "before A, one token type before B, and one from B on"
            )

    @property
    def types(self) -> tuple[int, int]:
        """The token types of the part before B and of the part from B on."""
        places = _places(self.pair)
        return places[0][1], places[-1][1]

    def special_count(self, pair: bool) -> int:
        """Returns the number of special tokens in a row."""
        return len(_places(self.pair)) - 2 if pair else len(_places(self.single)) - 1

    def room(self, max_seq_length: int, pair: bool) -> int:
        """Returns the number of tokens of A, or of A and B together, that fit into a row."""
        return max_seq_length - self.special_count(pair)

    def layout(self, special_ids: Mapping[str, int]) -> Layout:
        """Returns the template with the ids of a vocabulary, given its special ids by role."""

        def ids(names: Sequence[str]) -> np.ndarray:
            return np.array([special_ids[name] for name in names], np.int32)

        single, pair = self._names(self.single), self._names(self.pair)
        first, second = pair.index(FIRST), pair.index(SECOND)
        return Layout(
            template=self,
            before=ids(pair[:first]),
            end=ids(single[single.index(FIRST) + 1 :]),
            between=ids(pair[first + 1 : second]),
            pair_end=ids(pair[second + 1 :]),
        )

    def with_one_type(self) -> Template:
        """Returns the template with the token type 0 at every place."""
        return Template(*(re.sub(r":\d+", ":0", rows) for rows in (self.single, self.pair)))

    def places(self, which: str) -> Places:
        """Returns (role, or A or B; token type) of each place of the `single` or `pair` template."""
        return _places(getattr(self, which))

    @staticmethod
    def _names(text: str) -> list[str]:
        return [name for name, _ in _places(text)]


BERT = Template(single="cls:0 A:0 sep:0", pair="cls:0 A:0 sep:0 B:1 sep:1")
# `<s> A </s></s> B </s>` (Liu et al. 2019); the only token type is 0.
ROBERTA = Template(single="cls:0 A:0 sep:0", pair="cls:0 A:0 sep:0 sep:0 B:0 sep:0")
# The same as BERT's, with one token type (Warner et al. 2024).
MODERNBERT = Template(single="cls:0 A:0 sep:0", pair="cls:0 A:0 sep:0 B:0 sep:0")

# The forms of rows that can be chosen for records.
NAMED = {"bert": BERT, "roberta": ROBERTA, "modernbert": MODERNBERT}


def of(settings: Mapping[str, Any]) -> Template:
    """Returns the template in the settings of a tokenizer; BERT's template if the settings have none."""
    return Template(**settings["template"]) if settings.get("template") else BERT


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """Assembles rows with the special tokens of a vocabulary, int32 ids, and splits rows into their texts."""

    template: Template
    before: np.ndarray
    end: np.ndarray
    between: np.ndarray
    pair_end: np.ndarray

    @property
    def types(self) -> tuple[int, int]:
        """The token types of the part before B and of the part from B on."""
        return self.template.types

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of the special tokens without duplicates, in the order of a row."""
        arrays = (self.before, self.end, self.between, self.pair_end)
        return tuple(dict.fromkeys(np.concatenate(arrays).tolist()))

    def room(self, max_seq_length: int, pair: bool) -> int:
        """Returns the number of tokens of A, or of A and B together, that fit into a row."""
        return self.template.room(max_seq_length, pair)

    def first_length(self, length_a: int, pair: bool) -> int:
        """Returns the number of tokens before B, or of the whole row for a single text."""
        return len(self.before) + length_a + len(self.between if pair else self.end)

    def row(
        self, first: Sequence[int] | np.ndarray, second: Sequence[int] | np.ndarray | None = None
    ) -> np.ndarray:
        """Returns the ids of a row, int32; `second` is None for a single text."""
        first = np.asarray(first, np.int32)
        if second is None:
            return np.concatenate([self.before, first, self.end])
        second = np.asarray(second, np.int32)
        return np.concatenate([self.before, first, self.between, second, self.pair_end])

    def split(self, row: np.ndarray, first_length: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns the ids of A and B in a row without padding; B is None for a single text.

        `first_length` is the number of tokens before B, or of the whole row for a single text.
        """
        if first_length == len(row):
            return row[len(self.before) : len(row) - len(self.end)], None
        first = row[len(self.before) : first_length - len(self.between)]
        return first, row[first_length : len(row) - len(self.pair_end)]

    def matches(
        self, ids: np.ndarray, rows: np.ndarray, starts: np.ndarray, ends: np.ndarray, firsts: np.ndarray
    ) -> np.ndarray:
        """Returns bool [N], whether each sequence has its special tokens in the right places.

        Sequence i is `ids[rows[i], starts[i]:ends[i]]`, for token ids [B, L] and int arrays [N]. `firsts` are
        the numbers of tokens before B, or of the whole sequence for a single text.
        """

        def found(positions: np.ndarray, expected: np.ndarray) -> np.ndarray:
            columns = positions[:, None] + np.arange(len(expected))
            return np.all(ids[rows[:, None], columns] == expected, axis=1)

        middle = starts + firsts
        single = found(ends - len(self.end), self.end)
        pair = found(middle - len(self.between), self.between)
        pair &= found(ends - len(self.pair_end), self.pair_end)
        return found(starts, self.before) & np.where(middle == ends, single, pair)
