"""Mask filling: the tokens that a pre-trained model predicts for each [MASK] of a text."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import convert
from bert_jax.checkpoint.leaves import nest
from bert_jax.errors import UserError
from bert_jax.kernels import check as kernel_check
from bert_jax.kernels import platform
from bert_jax.models import Encoder
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads import MaskedLanguageModelHead, gather_positions
from bert_jax.models.row_inputs import INPUTS, TYPES, row_inputs

MASK = "[MASK]"
_BATCH = 16


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A predicted token for a mask, and its probability."""

    token: str
    probability: float


class MaskFiller:
    """Fills masks with a pre-trained checkpoint, which is loaded on construction.

    Args:
        path: the path of a checkpoint in any supported format.
        log: called with each line to be logged.
        dtype: the dtype of the computation: "float32", "bfloat16", or "auto", see
            `EncoderConfig.for_inference`.

    Raises:
        UserError: there is no checkpoint at `path`, or it has no masked LM head or no vocabulary.
    """

    def __init__(self, path: str, log: Callable[[str], None] = print, dtype: str = "auto"):
        model = convert.load(path, log=log)
        if "mlm/bias" not in model.params:
            raise UserError(
                f"{model.source} has no masked LM head: expected a pre-trained checkpoint with its heads"
            )
        if model.tokenizer is None:
            raise UserError(f"{model.source}: no vocabulary beside it; copy the model's vocab.txt there")
        self.tokenizer = model.tokenizer
        self._config = model.config.for_inference(platform.target(), dtype)
        kernel_check.ensure(self._config, log)
        params = {name: x for name, x in model.params.items() if name.startswith(("encoder/", "mlm/"))}
        self._params = jax.tree.map(jnp.asarray, nest(params))

    def __call__(self, texts: Sequence[str], top: int = 5) -> list[list[list[Candidate]]]:
        """Returns the candidates for each [MASK] of each text, the most likely first.

        Args:
            texts: the texts.
            top: the number of candidates for each mask.

        Returns:
            For each text, a list with the candidates of each of its masks, in the order of the text.

        Raises:
            UserError: a text has no [MASK], or more tokens than the model has positions.
        """
        rows = [self._encode(text) for text in texts]
        found = []
        for begin in range(0, len(rows), _BATCH):
            found += self._fill(rows[begin : begin + _BATCH], top)
        return found

    def _encode(self, text):
        tokenizer = self.tokenizer
        if MASK not in text:
            raise UserError(f"no {MASK} in {_shorten(text)!r}: put it where a word should be filled in")
        ids = tokenizer.encode_batch([text], allow_special=(MASK,))[0]
        row = tokenizer.layout.row(ids)
        limit = self._config.max_position_embeddings
        if len(row) > limit:
            raise UserError(
                f"{_shorten(text)!r} has {len(row)} tokens and the model {limit} positions; shorten it"
            )
        return row

    def _fill(self, rows, top):
        places = [np.flatnonzero(row == self.tokenizer.mask_id) for row in rows]
        # Sizes are rounded up to powers of two to limit the number of compiled shapes.
        length = min(_power_of_two(max(map(len, rows)), 16), self._config.max_position_embeddings)
        masks = _power_of_two(max(map(len, places)), 1)
        batch = _power_of_two(len(rows), 1)
        ids = np.full((batch, length), self.tokenizer.pad_id, np.int32)
        lengths = np.zeros((batch, 1), np.int32)
        positions = np.zeros((batch, masks), np.int32)
        for i, (row, place) in enumerate(zip(rows, places, strict=True)):
            ids[i, : len(row)], lengths[i], positions[i, : len(place)] = row, len(row), place
        types = self.tokenizer.layout.types
        found = np.asarray(
            probabilities(self._params, ids, lengths, positions, config=self._config, types=types)
        )
        return [[self._best(found[i, j], top) for j in range(len(place))] for i, place in enumerate(places)]

    def _best(self, probabilities, top):
        # The embedding table may have more entries than the vocabulary.
        tokens = self.tokenizer.tokens
        order = np.argsort(-probabilities[: len(tokens)], kind="stable")[:top]
        return [Candidate(tokens[i], float(probabilities[i])) for i in order]


@functools.partial(jax.jit, static_argnames=("config", "types"))
def probabilities(
    params,
    ids: jax.Array,
    lengths: jax.Array,
    positions: jax.Array,
    *,
    config: EncoderConfig,
    types: tuple[int, int] = TYPES,
) -> jax.Array:
    """Returns the probability of each token of the vocabulary at some positions: float32 [B, P, V].

    Args:
        params: the parameters `encoder` and `mlm`.
        ids: int32 [B, L], the tokens of rows with one text each.
        lengths: int32 [B, 1], the number of tokens of each row.
        positions: int32 [B, P], the positions in each row.
        config: the configuration of the encoder.
        types: the token types of the first and the second text.
    """
    inputs = row_inputs(ids, lengths, types=types)
    hidden = Encoder(config).apply({"params": params["encoder"]}, *(inputs[name] for name in INPUTS))
    words = params["encoder"]["embeddings"]["word_embeddings"]
    logits = MaskedLanguageModelHead(config).apply(
        {"params": params["mlm"]}, gather_positions(hidden, positions), words
    )
    return jax.nn.softmax(logits.astype(jnp.float32), axis=-1)


def _power_of_two(number: int, least: int) -> int:
    while least < number:
        least *= 2
    return least


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
