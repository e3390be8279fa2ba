"""Embeddings of texts: the hidden states of any layers, for each token or pooled to one vector per text."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.checkpoint.leaves import nest
from bert_jax.convert import Model
from bert_jax.errors import UserError
from bert_jax.kernels import check as kernel_check
from bert_jax.kernels import platform
from bert_jax.models import Encoder, Pooler
from bert_jax.models.config import EncoderConfig
from bert_jax.models.row_inputs import INPUTS, TYPES, row_inputs
from bert_jax.parallel import pipelining, sharding
from bert_jax.tasks.rows.assembly import truncate_pair

POOLINGS = ("mean", "cls", "pooler", "none")

_ENCODE_CHUNK = 2048  # texts that are tokenized at a time
_WINDOW_TEXTS = 16384  # maximum number of texts that are sorted by length at a time
_WINDOW_BYTES = 128 << 20  # size of the results at which fewer texts are sorted at a time
_TOKENS = {"cpu": 4096}  # tokens of a batch on each device
_TOKENS_ELSEWHERE = 32768

Text = str | tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Features:
    """The features of one text or pair of texts.

    Attributes:
        token_ids: int32 [L], including [CLS] and [SEP].
        values: float32 [layers x H], or [L, layers, H] with pooling "none".
        cut: whether the text was truncated.
    """

    token_ids: np.ndarray
    values: np.ndarray
    cut: bool


@dataclasses.dataclass(frozen=True)
class Row:
    """The tokens of one text or pair of texts.

    Attributes:
        token_ids: int32 [L], including [CLS] and [SEP].
        first_length: the number of tokens before the second text.
        cut: whether the text was truncated.
    """

    token_ids: np.ndarray
    first_length: int
    cut: bool


class Embedder:
    """Embeds texts with a model, on all devices of this process.

    Args:
        model: the model, with a tokenizer.
        layers: the numbers of the layers whose hidden states are returned: 0 for the embeddings, 1 for the
            first layer, -1 for the last one. The states of several layers are concatenated in this order.
        pooling: "mean" over the tokens of a text, including [CLS] and [SEP]; "cls" for the state of [CLS];
            "pooler" for the same after the pre-trained dense layer and tanh; "none" for the state of each
            token.
        normalize: whether each text's vector is scaled to length 1.
        max_seq_length: the maximum number of tokens of a text, including [CLS] and [SEP]; 0 for the number of
            the model's positions. Longer texts are truncated; of a pair, the longer text is.
        dtype: the dtype of the computation: "float32", "bfloat16", or "auto", see
            `EncoderConfig.for_inference`.
        batch_tokens: the approximate number of tokens, including padding, of a batch on each device; 0 for a
            number that suits the platform.
        log: called with each line to be logged.

    Raises:
        UserError: the model lacks a layer, the pooler or a tokenizer, or options contradict each other.
    """

    def __init__(
        self,
        model: Model,
        *,
        layers: Sequence[int] = (-1,),
        pooling: str = "mean",
        normalize: bool = False,
        max_seq_length: int = 0,
        dtype: str = "auto",
        batch_tokens: int = 0,
        log: Callable[[str], None] = print,
    ):
        self.tokenizer = model.tokenizer
        self.layers = tuple(layers)
        self.pooling = pooling
        self.config = model.config.for_inference(platform.target(), dtype)
        self.max_seq_length = max_seq_length or self.config.max_position_embeddings
        self._check(model, normalize, batch_tokens)
        self._lengths = padded_lengths(self.max_seq_length)
        kernel_check.ensure(self.config, log)
        self._mesh = sharding.make_mesh()
        tokens = batch_tokens or _TOKENS.get(self._mesh.devices.flat[0].platform, _TOKENS_ELSEWHERE)
        self._batch_tokens = self._mesh.size * tokens
        replicated = jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec())
        groups = ("encoder", "pooler") if pooling == "pooler" else ("encoder",)
        params = {name: x for name, x in model.params.items() if name.split("/")[0] in groups}
        self._params = jax.device_put(nest(params), replicated)
        states = self.config.num_hidden_layers + 1
        self._apply = functools.partial(
            features,
            config=self.config,
            layers=tuple(layer % states for layer in self.layers),
            pooling=pooling,
            normalize=normalize,
            types=self.tokenizer.layout.types,
        )

    def _check(self, model, normalize, batch_tokens):
        config, source = self.config, model.source or "the model"
        if self.tokenizer is None:
            raise UserError(f"{source} has no vocabulary: put its vocab.txt beside it")
        if self.pooling not in POOLINGS:
            raise UserError(f"--pooling={self.pooling}: expected one of {', '.join(POOLINGS)}")
        if not self.layers:
            raise UserError("--layers: expected numbers of layers such as -4,-3,-2,-1")
        last = config.num_hidden_layers
        for layer in self.layers:
            if not -last - 1 <= layer <= last:
                raise UserError(
                    f"--layers: {source} has no layer {layer}; expected 0 (the embeddings) to {last}, or -1 "
                    f"(the last) to -{last}"
                )
        if len({layer % (last + 1) for layer in self.layers}) < len(self.layers):
            raise UserError(f"--layers={','.join(map(str, self.layers))}: a layer is named twice")
        if self.pooling == "pooler":
            if [layer % (last + 1) for layer in self.layers] != [last]:
                raise UserError("--pooling=pooler is of the last layer: expected no other --layers")
            if "pooler/dense/kernel" not in model.params:
                raise UserError(f"{source} has no pooler; try --pooling=mean or cls")
        if normalize and self.pooling == "none":
            raise UserError("--normalize is of one vector a text: expected --pooling=mean, cls or pooler")
        most = config.max_position_embeddings
        if not 4 <= self.max_seq_length <= most:
            raise UserError(
                f"--max_seq_length={self.max_seq_length}: expected 4 to {most}, the positions of {source}"
            )
        if batch_tokens < 0:
            raise UserError(f"--batch_tokens={batch_tokens}: expected a number of tokens, or 0 to choose it")

    @property
    def width(self) -> int:
        """Returns the size of a text's vector, or, with pooling "none", the number of values of a token."""
        return len(self.layers) * self.config.hidden_size

    def embed(self, texts: Iterable[Text]) -> np.ndarray | list[np.ndarray]:
        """Returns the features of N texts or pairs: float32 [N, width].

        With pooling "none", it returns a list of N arrays of shape [L, layers, H].
        """
        values = [features.values for features in self.stream(texts)]
        if self.pooling == "none":
            return values
        return np.stack(values) if values else np.zeros((0, self.width), np.float32)

    def stream(
        self, texts: Iterable[Text], progress: Callable[[int], None] = lambda computed: None
    ) -> Iterator[Features]:
        """Yields the features of each text or pair of texts (first, second), in their order.

        Thousands of texts are read ahead and sorted by length, so that batches have little padding and few
        shapes. Memory is bounded for any number of texts.

        Args:
            texts: any number of texts or pairs.
            progress: called after each batch with the number of texts that have been computed.
        """
        before = 0
        window: list[Row] = []
        size, only = 0, True
        for row in self.rows(texts):
            window.append(row)
            size += 4 * self.width * (len(row.token_ids) if self.pooling == "none" else 1)
            if len(window) == _WINDOW_TEXTS or size >= _WINDOW_BYTES:
                yield from self._window(window, before, progress)
                before += len(window)
                window, size, only = [], 0, False
        yield from self._window(window, before, progress, len(window) if only else None)

    def rows(self, texts: Iterable[Text]) -> Iterator[Row]:
        """Yields the tokens of each text or pair, truncated to `max_seq_length`."""
        layout = self.tokenizer.layout
        texts = iter(texts)
        while chunk := list(itertools.islice(texts, _ENCODE_CHUNK)):
            pairs = [(text, None) if isinstance(text, str) else text for text in chunk]
            ids_a = self.tokenizer.encode_batch([a for a, _ in pairs])
            ids_b = iter(self.tokenizer.encode_batch([b for _, b in pairs if b is not None]))
            for a, (_, text_b) in zip(ids_a, pairs, strict=True):
                b = next(ids_b) if text_b is not None else None
                if b is None:
                    keep_a, keep_b = min(len(a), layout.room(self.max_seq_length, pair=False)), 0
                    ids = layout.row(a[:keep_a])
                else:
                    room = layout.room(self.max_seq_length, pair=True)
                    keep_a, keep_b = truncate_pair(len(a), len(b), room)
                    ids = layout.row(a[:keep_a], b[:keep_b])
                cut = keep_a + keep_b < len(a) + len(b or ())
                yield Row(ids, layout.first_length(keep_a, b is not None), cut)

    def _window(self, rows, before, progress, texts=None):
        lengths = np.array([len(row.token_ids) for row in rows], np.int64)
        # The longest rows come first, so that the first batch shows how much memory the window needs.
        order = np.argsort(-lengths, kind="stable")
        values: list[np.ndarray | None] = [None] * len(rows)
        for indices, result in pipelining.computed(self._compute, self._batches(rows, lengths, order, texts)):
            for i, value in zip(indices, result, strict=False):
                # A copy does not keep the whole batch, with its padding, in memory.
                values[i] = value[: lengths[i]].copy() if self.pooling == "none" else value
            before += len(indices)
            progress(before)
        for row, value in zip(rows, values, strict=True):
            yield Features(row.token_ids, value, row.cut)

    def _compute(self, batch):
        with sharding.on_mesh(self._mesh):
            return self._apply(self._params, batch)

    def _batches(self, rows, lengths, order, texts):
        """Yields (row numbers, batch of these rows), where rows are taken in the given order."""
        begin = 0
        while begin < len(order):
            length = self._lengths[bisect.bisect_left(self._lengths, lengths[order[begin]])]
            size = self._batch_size(length, texts)
            indices = order[begin : begin + size]
            yield indices, self._batch([rows[i] for i in indices], size, length)
            begin += size

    def _batch_size(self, length, texts):
        """Returns the number of rows of batches of one length; fewer if the input has only `texts` texts."""
        devices = self._mesh.size
        rows = max(1, self._batch_tokens // (length * devices))
        if texts is not None:
            rows = min(rows, 1 << max(0, -(-texts // devices) - 1).bit_length())
        return devices * rows

    def _batch(self, rows, size, length):
        batch = {
            "input_ids": np.full((size, length), self.tokenizer.pad_id, np.int32),
            "lengths": np.zeros(size, np.int32),
            "first_lengths": np.zeros(size, np.int32),
        }
        for i, row in enumerate(rows):
            batch["input_ids"][i, : len(row.token_ids)] = row.token_ids
            batch["lengths"][i], batch["first_lengths"][i] = len(row.token_ids), row.first_length
        return sharding.global_batch(batch, self._mesh)


def padded_lengths(longest: int) -> list[int]:
    """Returns the padded lengths 16, 24, 32, 48, 64, 96, ..., `longest`.

    These are few shapes to compile, with less padding than powers of two.
    """
    lengths = [length for power in range(4, 31) for length in (1 << power, 3 << (power - 1))]
    return [*itertools.takewhile(lambda length: length < longest, lengths), longest]


@functools.partial(jax.jit, static_argnames=("config", "layers", "pooling", "normalize", "types"))
def features(
    params,
    batch: dict[str, jax.Array],
    *,
    config: EncoderConfig,
    layers: tuple[int, ...],
    pooling: str,
    normalize: bool,
    types: tuple[int, int] = TYPES,
) -> jax.Array:
    """Returns the features of a batch: float32 [B, layers x H], or [B, L, layers, H] with pooling "none".

    Args:
        params: the parameters `encoder`, and `pooler` for that pooling.
        batch: int32 `input_ids` [B, L]; `lengths` [B], the number of tokens of each row; and `first_lengths`
            [B], the number of tokens before the second text.
        config: the configuration of the encoder.
        layers: the layers, from 0 for the embeddings to the number of layers.
        pooling: as in `Embedder`.
        normalize: as in `Embedder`.
        types: the token types of the first and the second text.
    """
    inputs = row_inputs(batch["input_ids"], batch["lengths"], batch["first_lengths"], types)
    real = inputs["sequence_ids"]

    def collect(x):
        if pooling == "none":
            return x
        if pooling in ("cls", "pooler"):
            return x[:, 0]
        total = jnp.einsum("blh,bl->bh", x.astype(jnp.float32), real.astype(jnp.float32), precision="highest")
        return total / jnp.maximum(batch["lengths"], 1)[:, None]

    encoder = Encoder(config)
    states = encoder.apply(
        {"params": params["encoder"]}, *(inputs[name] for name in INPUTS), collect, method="every_layer"
    )
    chosen = jnp.stack([states[layer] for layer in layers], axis=-2)
    if pooling == "none":
        return chosen.astype(jnp.float32)
    if pooling == "pooler":
        chosen = Pooler(config).apply({"params": params["pooler"]}, chosen)
    vectors = chosen.astype(jnp.float32).reshape(chosen.shape[0], -1)
    if normalize:
        vectors /= jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return vectors
