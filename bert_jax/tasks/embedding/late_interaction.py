"""Late interaction: vectors of tokens, from pairs of texts with or without hard negatives."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Iterator
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.models.heads.structures import TOKEN_VECTORS, ClassificationHead
from bert_jax.objectives.embedding.late_interaction import LateInteraction
from bert_jax.settings.config_fields import option
from bert_jax.tasks.embedding.predictions import LateInteractionPredictions, TokenVectors
from bert_jax.tasks.embedding.task import GroupsConfig, GroupsTask
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.rows.windows import Ids
from bert_jax.tasks.table import Examples
from bert_jax.tokenization import Tokenizer

_MARKERS = ("[unused0]", "[unused1]")  # [Q] and [D] of the published models


@dataclasses.dataclass(frozen=True)
class LateInteractionConfig(GroupsConfig):
    """The fields of late interaction."""

    vector_size: int = option(128, "dimensions of the vector of each token", minimum=1, maximum=2**16)
    query_length: int = option(
        32, "tokens of each first text, which is cut, or filled up with [MASK]", minimum=4, maximum=2**16
    )


class LateInteractionTask(GroupsTask):
    """Late interaction; see `objectives.embedding.late_interaction`.

    Rows are `[CLS] [Q] query [SEP] [MASK] ...` and `[CLS] [D] document [SEP]`. The markers are left out if
    the vocabulary lacks them. The [MASK] tokens, which expand the query, are read as any other token: the
    others attend to them, too (`attend_to_mask_tokens` in ColBERT's code, where it is off by default).

    Attributes:
        markers: the ids of [Q] and of [D], in a list each that is empty if the vocabulary lacks them.
        skipped: the ids of punctuation, which does not count in the score of a document.
    """

    Config = LateInteractionConfig
    config: LateInteractionConfig
    title = "late interaction"
    next_command = "search --index=DIR --rerank={workdir}"

    def set_up(self) -> None:
        super().set_up()
        c = self.config
        if not self.columns.text_b or self.eval_columns.label:
            raise UserError("late interaction compares pairs: data.text_b and data.eval_columns=TEXT,TEXT")
        if c.query_length > c.max_seq_length:
            raise UserError(
                f"query_length={c.query_length}: expected at most max_seq_length={c.max_seq_length}"
            )
        known = {token: number for number, token in enumerate(self.tokenizer.tokens)}
        has_markers = all(marker in known for marker in _MARKERS)
        self.markers = [[known[marker]] if has_markers else [] for marker in _MARKERS]
        self.skipped = punctuation(self.tokenizer)

    @classmethod
    def unused(cls, config: Any, spec: TaskSpec) -> Iterator[tuple[str, str]]:
        yield from super().unused(config, spec)
        yield "data.label", "late interaction has no labels"

    @property
    def scores_pairs(self) -> bool:
        return True

    @property
    def classifier(self) -> ClassificationHead:
        return TOKEN_VECTORS

    def form(self, is_anchor: bool) -> tuple[int, Ids]:
        """Returns the largest number of tokens of a row, and the ids to put before its text."""
        if is_anchor:
            return self.config.query_length, self.markers[0]
        return self.config.max_seq_length, self.markers[1]

    def encode(self, examples: Examples) -> EncodedRows:
        rows = super().encode(examples)
        lengths = rows.lengths.copy()
        lengths[:: rows.rows_per_example] = self.config.query_length
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        tokens = np.full(offsets[-1], self.tokenizer.mask_id, np.int32)
        shifts = np.repeat(offsets[:-1] - rows.offsets[:-1], rows.lengths)
        tokens[np.arange(len(rows.tokens)) + shifts] = rows.tokens
        first_lengths = lengths.astype(np.int32)  # each row has one text
        return dataclasses.replace(rows, tokens=tokens, offsets=offsets, first_lengths=first_lengths)

    def objective(self) -> LateInteraction:
        c = self.config
        return LateInteraction(
            self.model_config,
            c.vector_size,
            c.query_length,
            self._group,
            c.temperature,
            self.skipped,
            self.tokenizer.layout.types,
            self.classifier,
        )

    def decode(
        self, examples: Examples, rows: EncodedRows, outputs: np.ndarray
    ) -> LateInteractionPredictions:
        """Returns the scores of pairs, and the ranks of the second texts.

        Args:
            examples: pairs.
            rows: the rows of both texts of each.
            outputs: float16 [total, H], the vectors of all tokens.
        """
        spans = np.stack([rows.offsets[:-1], rows.offsets[1:]], axis=1)
        places = spans[::2, :1] + np.arange(self.config.query_length)
        documents = TokenVectors(outputs, spans[1::2], ~np.isin(rows.tokens, self.skipped))
        return LateInteractionPredictions.of(examples, outputs[places], documents)


def punctuation(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Returns the ids of the tokens that are one character of ASCII punctuation."""
    marks = (tokenizer.word_start, tokenizer.continuation)

    def text(token: str) -> str:
        found = next((mark for mark in marks if mark and token.startswith(mark) and token != mark), "")
        return token.removeprefix(found)

    return tuple(
        number
        for number, token in enumerate(tokenizer.tokens)
        if len(text(token)) == 1 and text(token) in string.punctuation
    )
