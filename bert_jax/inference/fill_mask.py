"""Mask filling: predicts tokens for each [MASK] of a text with a pre-trained model."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import convert
from bert_jax.convert import Model
from bert_jax.errors import UserError
from bert_jax.inference.engine import Engine, Row, text_rows, with_masked_lm
from bert_jax.io import files, progress
from bert_jax.kernels import platform
from bert_jax.models import Encoder
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.pretraining import MaskedLanguageModelHead
from bert_jax.models.heads.structures import MASKED_LM, MaskedLMHead
from bert_jax.models.layers import gather_positions
from bert_jax.models.row_inputs import INPUTS, TYPES, row_inputs
from bert_jax.parallel import placement
from bert_jax.tokenization import Tokenizer

# Tokens of a batch on each device. Each token may be a mask, and a mask has V outputs.
_BATCH_TOKENS = 1024


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A predicted token for a mask, and its probability."""

    token: str
    probability: float


def most_likely(tokenizer: Tokenizer, probabilities: np.ndarray, top: int) -> list[Candidate]:
    """Returns the `top` candidates for a mask, float32 [V], the most likely first; ties are ordered by id."""
    # The embedding table may have more entries than the vocabulary.
    order = np.argsort(-probabilities[: tokenizer.vocab_size], kind="stable")[:top]
    return [Candidate(tokenizer.spelling(i), float(probabilities[i])) for i in order]


def masked_lm_engine(
    model: Model,
    config: EncoderConfig,
    of_logits: Callable[..., jax.Array],
    **options: Any,
) -> Engine:
    """Returns an engine of `of_logits`(logits float32 [B, P, V], batch) at the batch's `positions`."""
    structure = dict(types=model.require_tokenizer().layout.types, head=model.family.masked_lm)

    @functools.partial(jax.jit, static_argnames="config")
    def compute(params, batch, config):
        lengths, positions = batch["lengths"][:, None], batch["positions"]
        logits = logits_at(params, batch["input_ids"], lengths, positions, config=config, **structure)
        return of_logits(logits, batch)

    limit = model.config.max_seq_length
    return Engine(model, config, ("encoder", "mlm"), compute, max_seq_length=limit, **options)


class MaskFiller:
    """Fills masks with a pre-trained model or the checkpoint at a path, on all devices of this process.

    `shared_with` is as in `Engine`. The attribute `mask` is the spelling of a mask in a text: "[MASK]", or
    "<mask>" for RoBERTa. UserError if the model has no masked LM head or no vocabulary, or if it is causal.
    """

    def __init__(
        self,
        model: Model | files.PathLike,
        log: Callable[[str], None] = print,
        dtype: str = "auto",
        shared_with: Engine | None = None,
    ):
        if isinstance(model, str | os.PathLike):
            model = convert.load(model, log=log)
        model = with_masked_lm(model)
        if model.config.causal:
            raise UserError(f"{model.source} is a causal model, which cannot fill masks")
        self.tokenizer = model.require_tokenizer()
        self.mask = self.tokenizer.special_tokens["mask"]
        self._limit = model.config.max_seq_length
        config = model.config.for_inference(platform.target(), dtype)
        self._engine = masked_lm_engine(
            model,
            config,
            lambda logits, batch: jax.nn.softmax(logits, axis=-1),
            batch_tokens=_BATCH_TOKENS,
            shared_with=shared_with,
            log=log,
        )

    def __call__(self, texts: Sequence[str], top: int = 5) -> list[list[list[Candidate]]]:
        """Returns the `top` most likely candidates for each mask of each text, the best first.

        UserError for a text that has no mask or more tokens than the model has positions, and for a pair.
        """
        rows = list(text_rows(self.tokenizer, texts, self._limit, special=(self.mask,)))
        for text, row in zip(texts, rows, strict=True):
            if not isinstance(text, str) or self.mask not in text or row.cut:
                limit = f"{self._limit} tokens"
                raise UserError(f"{text!r:.60}: expected a text with {self.mask} and at most {limit}")
        candidates: dict[int, list[list[Candidate]]] = {}
        for numbers, outputs in self._engine.outputs(rows, total=len(rows), arrays=self._positions):
            for i, output in zip(numbers, outputs, strict=True):
                masks = np.sum(rows[i].token_ids == self.tokenizer.mask_id)
                candidates[i] = [most_likely(self.tokenizer, output[j], top) for j in range(masks)]
        return [candidates[i] for i in range(len(rows))]

    def warm_up(self, most: int, on_program: Callable[[int, int], None] = progress.not_shown) -> int:
        """Compiles the programs for up to `most` texts with one mask each; see `Engine.warm_up`."""
        return self._engine.warm_up(
            most, lambda rows, size: {"positions": np.zeros((size, 1), np.int32)}, on_program
        )

    def _positions(self, rows: list[Row], size: int) -> dict[str, np.ndarray]:
        masks = [np.flatnonzero(row.token_ids == self.tokenizer.mask_id) for row in rows]
        # The number of positions is a power of two, which keeps the number of shapes small.
        positions = np.zeros((size, 1 << (max(map(len, masks)) - 1).bit_length()), np.int32)
        for i, places in enumerate(masks):
            positions[i, : len(places)] = places
        return {"positions": positions}


def logits_at(
    params,
    ids: jax.Array,
    lengths: jax.Array,
    positions: jax.Array,
    *,
    config: EncoderConfig,
    types: tuple[int, int] = TYPES,
    head: MaskedLMHead = MASKED_LM,
) -> jax.Array:
    """Returns the logits of the masked LM head at `positions`, int32 [B, P], as float32 [B, P, V].

    `ids`, int32 [B, L], have one text per row, and `lengths`, int32 [B, 1], are their numbers of tokens.
    """
    params = placement.restack(params)
    inputs = row_inputs(ids, lengths, types=types)
    given = (inputs[name] for name in INPUTS)
    hidden: Any = Encoder(config).apply({"params": params["encoder"]}, *given, for_masks=True)
    words = params["encoder"]["embeddings"]["word_embeddings"]
    logits: Any = MaskedLanguageModelHead(config, head).apply(
        {"params": params.get("mlm", {})}, gather_positions(hidden, positions), words
    )
    return logits.astype(jnp.float32)
