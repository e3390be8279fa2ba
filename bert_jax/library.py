"""Loads a checkpoint of any format as a model for inference or further training."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import convert
from bert_jax.checkpoint.leaves import nest
from bert_jax.convert.sentences import SentenceVectors, unit_length
from bert_jax.errors import UserError
from bert_jax.inference import engine
from bert_jax.inference.embedding import POOLINGS, Embedder, check_reads_cls, pool
from bert_jax.inference.engine import Row, Text, tokenizer_of
from bert_jax.io import files
from bert_jax.kernels import platform
from bert_jax.models import Pooler
from bert_jax.models.assembled import AssembledModel
from bert_jax.models.config import EncoderConfig
from bert_jax.models.row_inputs import INPUTS, row_inputs
from bert_jax.tokenization import PortableTokenizer, Tokenizer


@dataclasses.dataclass(frozen=True)
class Encoding:
    """The encodings of B texts, of which the longest has L tokens.

    Attributes:
        tokens: int32 [B, L], token ids with [CLS] and [SEP], padded with [PAD].
        lengths: int32 [B], the number of tokens of each text.
        states: float32 [B, L, H], the hidden states of the last layer; 0 at padding.
        pooled: float32 [B, H], one vector per text.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    states: np.ndarray
    pooled: np.ndarray


class LoadedModel:
    """A model in memory. It can be copied and pickled, also to where its checkpoint is not.

    Attributes:
        module: the Flax module with every part that the checkpoint has; see `AssembledModel`.
        params: the parameters, a nested dict of float32 arrays that cannot be written to: on a CPU, `encode`
            may compute with the same memory.
        config: the architecture, and how it is computed on this platform.
        tokenizer: the tokenizer with the model's vocabulary.
        labels: the class names of a fine-tuned model; None for other models.
    """

    def __init__(
        self,
        model: convert.Model,
        dtype: str = "auto",
        log: Callable[[str], None] = print,
    ):
        self.tokenizer: Tokenizer = tokenizer_of(model)
        # The network and the updates that `encode` does not compute are not kept in memory.
        self._model, self._dtype = model.replace(generator=None, adapter=None), dtype
        self._source, self._sentence = model.source, model.sentence or SentenceVectors()
        self._size = f"{model.family.name}, {model.size}"
        self._embedder = Embedder(model, pooling="none", dtype=dtype, log=log)
        self.config: EncoderConfig = model.config.for_inference(platform.target(), dtype)
        self.module: AssembledModel = model.module.clone(config=self.config)
        self.params: dict[str, Any] = nest({name: _read_only(x) for name, x in model.params.items()})
        self.labels = model.labels

    def __reduce__(self):
        tokenizer = PortableTokenizer.of(self.tokenizer)
        return _restored, (self._model.replace(tokenizer=None), tokenizer, self._dtype)

    def __repr__(self) -> str:
        return f"LoadedModel({self._source!r}: {self._size})"

    def encode(self, texts: Iterable[Text], pooling: str = "") -> Encoding:
        """Returns the tokens and the last hidden states of texts, or of pairs of texts.

        Texts are truncated at the end, at the length that a model for sentence embeddings was trained with,
        and otherwise at the number of positions. Such a model may also scale `pooled` to length 1. Both hold
        for every pooling.

        Args:
            texts: each is a str, or a tuple (first, second).
            pooling: how `pooled` is computed: "mean" or "max" over the tokens of a text; "cls" or "last", the
                hidden state at the first or last token; "pooler", the state at [CLS] after the pre-trained
                dense layer and tanh. "" for the pooling of a sentence encoder, and "mean" for other models.

        Raises:
            UserError: the model has no such pooling, or `texts` is no list of texts and pairs.
        """
        if not pooling:
            self._model.check_sentence()
        pooling = pooling or self._sentence.pooling
        if pooling == "none" or pooling not in POOLINGS:
            raise UserError(f"pooling={pooling!r}: expected one of {', '.join(POOLINGS[:-1])}")
        if pooling == "pooler" and "pooler" not in self.params:
            raise UserError(f"{self._source} has no pooler; try pooling='mean' or 'cls'")
        check_reads_cls(f"pooling={pooling!r}", pooling, self.config, self._source)
        rows = list(self._embedder.stream(texts))
        batch = self._padded(rows)
        tokens, lengths = batch["input_ids"], batch["lengths"]
        states = np.zeros((*tokens.shape, self.config.hidden_size), np.float32)
        for row, of_text in zip(rows, states, strict=True):
            of_text[: len(row.token_ids)] = row.values[:, 0]
        pooled = self._pool(states, lengths, pooling)
        if self._sentence.normalize:
            pooled = unit_length(pooled)
        return Encoding(tokens, lengths, states, pooled)

    # Not dict[str, np.ndarray], because mypy would not accept `module.init(key, **inputs)`.
    def inputs(self, texts: Iterable[Text]) -> dict[str, Any]:
        """Returns the inputs of `module` for the texts of `encode`: int32 [B, L] arrays by argument name."""
        batch = jax.device_put(self._padded(list(self._embedder.rows(texts))))
        arrays = jax.device_get(_row_inputs(**batch, types=self.tokenizer.layout.types))
        return {name: arrays[name] for name in INPUTS}

    def _padded(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        longest = max((len(row.token_ids) for row in rows), default=0)
        return engine.padded(rows, self.tokenizer.pad_id, len(rows), longest)

    def _pool(self, states: np.ndarray, lengths: np.ndarray, pooling: str) -> np.ndarray:
        if not len(states):
            return np.zeros((0, self.config.hidden_size), np.float32)
        pooler = self.params["pooler"] if pooling == "pooler" else None
        arrays = jax.device_put((states, lengths, pooler))
        return np.array(jax.device_get(_pooled(*arrays, pooling=pooling, config=self.config)))


# Compiled, with explicit transfers of arrays, so that both work under `jax.transfer_guard("disallow")`.
_row_inputs = jax.jit(row_inputs, static_argnames="types")


@functools.partial(jax.jit, static_argnames=("pooling", "config"))
def _pooled(states: jax.Array, lengths: jax.Array, pooler: Any, *, pooling: str, config: EncoderConfig):
    real = (jnp.arange(states.shape[1]) < lengths[:, None]).astype(jnp.int32)
    vectors: Any = pool(states, real, pooling)
    if pooler is not None:
        vectors = Pooler(config).apply({"params": pooler}, vectors)
    return vectors.astype(jnp.float32)


def _restored(model: convert.Model, tokenizer: PortableTokenizer, dtype: str) -> LoadedModel:
    return LoadedModel(model.replace(tokenizer=tokenizer.tokenizer()), dtype, log=lambda line: None)


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.setflags(write=False)
    return view


def load(path: files.PathLike, *, dtype: str = "auto", log: Callable[[str], None] = print) -> LoadedModel:
    """Loads the model of a checkpoint, with its parameters and its tokenizer.

    Args:
        path: the same as for `--model`: a work directory or one of its checkpoints, a Hugging Face or PEFT
            folder, or the prefix of a TF1 checkpoint; a local path or a URL.
        dtype: the dtype of the computation: "float32", "bfloat16", or "auto", which depends on the platform.
        log: called with one line of text for each notice.

    Raises:
        UserError: there is no checkpoint, it is damaged, or it has no vocabulary.
    """
    return LoadedModel(convert.load(path, log=log), dtype, log)
