"""The front door of the library: a checkpoint of any format as a model to compute with and to go on from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import convert
from bert_jax.checkpoint.leaves import nest
from bert_jax.errors import UserError
from bert_jax.inference.embedding import Embedder, Features, Row, Text
from bert_jax.io import files
from bert_jax.kernels import platform
from bert_jax.models import Pooler
from bert_jax.models.assembled import AssembledModel
from bert_jax.models.config import EncoderConfig
from bert_jax.models.row_inputs import INPUTS, row_inputs
from bert_jax.tokenization import Tokenizer

POOLINGS = ("mean", "cls", "pooler")


@dataclasses.dataclass(frozen=True)
class Encoding:
    """What a model makes of B texts, of which the longest has L tokens.

    Attributes:
        tokens: int32 [B, L] ids, with [CLS] and [SEP]; [PAD] behind shorter texts.
        lengths: int32 [B], the tokens of each text.
        states: float32 [B, L, H], the last layer's; 0 at padding.
        pooled: float32 [B, H], one vector per text.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    states: np.ndarray
    pooled: np.ndarray


class LoadedModel:
    """A model in memory.

    Attributes:
        module: the Flax module with every part that the checkpoint has; see `AssembledModel`.
        params: its parameters, a nested dict of float32 arrays.
        config: its architecture, and how it is computed on this platform.
        tokenizer: of its vocabulary.
        labels: names of the classes of a fine-tuned model; None for others.
    """

    def __init__(self, model: convert.Model, dtype: str = "auto", log: Callable[[str], None] = print):
        if model.tokenizer is None:
            raise UserError(f"{model.source}: no vocabulary beside it; copy the model's vocab.txt there")
        self._source = model.source
        self._embedder = Embedder(model, pooling="none", dtype=dtype, log=log)
        self.config: EncoderConfig = model.config.for_inference(platform.target(), dtype)
        self.module: AssembledModel = model.module.clone(config=self.config)
        self.params: dict[str, Any] = nest(model.params)
        self.tokenizer: Tokenizer = model.tokenizer
        self.labels = model.labels

    def encode(self, texts: Iterable[Text], pooling: str = "mean") -> Encoding:
        """Returns the tokens and the last hidden states of texts, or of pairs of texts.

        A text that is longer than the model's positions loses its end.

        Args:
            texts: each is a str, or (first, second).
            pooling: what `pooled` is: "mean" over the tokens of a text, as `bert-jax embed` has it; "cls",
                the state at [CLS]; "pooler", the same after the pre-trained dense layer and tanh.

        Raises:
            UserError: a pooling that there is not, or that this model does not have.
        """
        if pooling not in POOLINGS:
            raise UserError(f"pooling={pooling!r}: expected one of {', '.join(POOLINGS)}")
        if pooling == "pooler" and "pooler" not in self.params:
            raise UserError(f"{self._source} has no pooler; try pooling='mean' or 'cls'")
        if isinstance(texts, str):
            raise UserError("texts is one text: expected a list of them, such as ['one text']")
        rows = list(self._embedder.stream(texts))
        tokens, lengths = self._padded(rows)
        states = np.zeros((*tokens.shape, self.config.hidden_size), np.float32)
        for i, row in enumerate(rows):
            states[i, : lengths[i]] = row.values[:, 0]
        return Encoding(tokens, lengths, states, self._pool(states, lengths, pooling))

    def inputs(self, texts: Iterable[Text]) -> dict[str, np.ndarray]:
        """Returns what `module` takes for texts: int32 [B, L] arrays by the names of its arguments.

        Args:
            texts: see `encode`.
        """
        rows = list(self._embedder.rows(texts))
        tokens, lengths = self._padded(rows)
        first_lengths = np.array([row.first_length for row in rows], np.int32)
        arrays = row_inputs(
            jnp.asarray(tokens), jnp.asarray(lengths), jnp.asarray(first_lengths), self.tokenizer.layout.types
        )
        return {name: np.asarray(arrays[name]) for name in INPUTS}

    def _padded(self, rows: Sequence[Features | Row]) -> tuple[np.ndarray, np.ndarray]:
        """Returns int32 tokens [B, L] and lengths [B]."""
        lengths = np.array([len(row.token_ids) for row in rows], np.int32)
        tokens = np.full((len(rows), int(lengths.max(initial=0))), self.tokenizer.pad_id, np.int32)
        for i, row in enumerate(rows):
            tokens[i, : lengths[i]] = row.token_ids
        return tokens, lengths

    def _pool(self, states: np.ndarray, lengths: np.ndarray, pooling: str) -> np.ndarray:
        if not len(states):
            return np.zeros((0, self.config.hidden_size), np.float32)
        if pooling == "mean":
            return states.sum(axis=1) / lengths[:, None]
        if pooling == "cls":
            return states[:, 0]
        pooled = Pooler(self.config).apply({"params": self.params["pooler"]}, jnp.asarray(states[:, 0]))
        return np.asarray(jax.device_get(pooled), np.float32)


def load(path: files.PathLike, *, dtype: str = "auto", log: Callable[[str], None] = print) -> LoadedModel:
    """Returns the model of a checkpoint.

    Args:
        path: what `--checkpoint` takes: a work directory or one of its checkpoints, a Hugging Face folder,
            the prefix of a TF1 checkpoint; local or a URL.
        dtype: of the computation: "float32", "bfloat16", or "auto" for what suits the platform.
        log: called with one line when there is something to say.

    Raises:
        UserError: no checkpoint, a damaged one, or one without a vocabulary.
    """
    return LoadedModel(convert.load(path, log=log), dtype, log)
