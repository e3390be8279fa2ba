"""Text embeddings: hidden states of any layers, per token or pooled to one vector per text."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from bert_jax.convert import Model
from bert_jax.convert.sentences import SentenceVectors, unit_length
from bert_jax.errors import UserError, check_flag
from bert_jax.inference.engine import Engine, Row, Text, text_rows
from bert_jax.io import atomic, checks, files
from bert_jax.kernels import platform
from bert_jax.models import Encoder, Pooler
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.pooling import POOLINGS
from bert_jax.models.row_inputs import INPUTS, TYPES, packed_inputs, row_inputs
from bert_jax.objectives.embedding import sentence as text_vectors
from bert_jax.parallel import placement

# In packed rows, "max" needs S times the memory, and "none" has no vector per text.
_NOT_PACKED = ("max", "none")

FORMATS = (".npy", ".safetensors", ".jsonl")

_WINDOW_TEXTS = 16384  # maximum number of texts that are sorted by length at a time
_WINDOW_BYTES = 128 << 20  # size of the results at which fewer texts are sorted at a time


@dataclasses.dataclass(frozen=True)
class Features(Row):
    """The tokens and the features of one text or pair of texts."""

    values: np.ndarray  # float32 [layers x H], or [L, layers, H] with pooling "none"


class Embedder:
    """Embeds texts with a model, on all devices of this process.

    Args:
        model: the model, with a tokenizer.
        layers: the numbers of the layers whose hidden states are returned: 0 for the embeddings, 1 for the
            first layer, -1 for the last one. The states of several layers are concatenated in this order.
        pooling: "mean" or "max" over the tokens of a text, including [CLS] and [SEP]; "cls" for the state of
            [CLS]; "last" for the state of the last token; "pooler" for the state of [CLS] after the
            pre-trained dense layer and tanh; "none" for the state of each token. The default, None, is the
            pooling of a sentence embedding model, and "mean" for other models.
        normalize: whether each text's vector is scaled to length 1. The default, None, is the setting of a
            sentence embedding model (also with another pooling), and False for other models and "none".
        max_seq_length: the maximum number of tokens of a text, including [CLS] and [SEP]; 0 for the limit of
            a sentence embedding model (also with another pooling), and the number of positions of other
            models. Longer texts are truncated; in a pair, the longer text is truncated.
        dtype: the dtype of the computation, see `EncoderConfig.for_inference`.
        batch_tokens: the approximate number of tokens, including padding, of a batch on each device; 0 for a
            platform-dependent default.
        log: called with each line to be logged.

    Raises:
        UserError: the model lacks a layer, the pooler or a tokenizer, or options contradict each other.
    """

    def __init__(
        self,
        model: Model,
        *,
        layers: Sequence[int] = (-1,),
        pooling: str | None = None,
        normalize: bool | None = None,
        max_seq_length: int = 0,
        dtype: str = "auto",
        batch_tokens: int = 0,
        log: Callable[[str], None] = print,
    ):
        self.tokenizer = model.require_tokenizer()
        self.layers = tuple(layers)
        self.sentence = model.sentence or SentenceVectors()
        self.config = model.config.for_inference(platform.target(), dtype)
        if pooling is None:
            model.check_sentence()
            pooling = self.sentence.pooling
        if normalize is None:
            normalize = self.sentence.normalize and pooling != "none"
        self.pooling, self.normalize = pooling, normalize
        self.max_seq_length = max_seq_length or self.sentence.max_seq_length or self.config.max_seq_length
        numbers = self._check(model)
        options = dict(layers=numbers, pooling=pooling, normalize=self.normalize)
        compute = functools.partial(features, **options, types=self.tokenizer.layout.types)
        groups = ("encoder", "pooler") if pooling == "pooler" else ("encoder",)
        self.engine = Engine(
            model,
            self.config,
            groups,
            compute,
            max_seq_length=self.max_seq_length,
            batch_tokens=batch_tokens,
            packs=pooling not in _NOT_PACKED,
            log=log,
        )

    def _check(self, model: Model) -> tuple[int, ...]:
        source, layers, last = model.source or "the model", self.layers, self.config.num_hidden_layers
        numbers = tuple(layer % (last + 1) for layer in layers)
        if not layers or len(set(numbers)) < len(numbers) or not all(-last - 1 <= x <= last for x in layers):
            given = ",".join(map(str, layers))
            raise UserError(f"--layers={given}: expected different layers from {-last - 1} to {last}")
        has_pooler = numbers == (last,) and "pooler/dense/kernel" in model.params
        if self.pooling not in POOLINGS or (self.pooling == "pooler" and not has_pooler):
            raise UserError(
                f"--pooling={self.pooling}: expected one of {', '.join(POOLINGS)}; pooler needs the last "
                f"layer and a model with a pooler"
            )
        check_reads_cls(f"--pooling={self.pooling}", self.pooling, self.config, source)
        is_used = self.pooling != "none" or not self.normalize
        check_flag("normalize", self.normalize, is_used, "no value with --pooling=none")
        limit = self.config.max_seq_length
        if not 4 <= self.max_seq_length <= limit:
            raise UserError(f"--max_seq_length={self.max_seq_length}: expected 4 to {limit} for {source}")
        return numbers

    @property
    def width(self) -> int:
        """Returns the size of a text's vector, or the number of values per token with pooling "none"."""
        return len(self.layers) * self.config.hidden_size

    def embed(self, texts: Iterable[Text], prefix: str = "") -> np.ndarray | list[np.ndarray]:
        """Returns the features of N texts or pairs, float32 [N, width]; see `stream` for `prefix`.

        With pooling "none", it returns a list of N arrays of shape [L, layers, H].
        """
        values = [features.values for features in self.stream(texts, prefix=prefix)]
        if self.pooling == "none":
            return values
        return np.stack(values) if values else np.zeros((0, self.width), np.float32)

    def unit_vectors(self, texts: Iterable[Text], prefix: str = "") -> np.ndarray:
        """Returns one vector of length 1 for each of N texts, float32 [N, width]."""
        return unit_length(np.asarray(self.embed(texts, prefix)))

    def stream(
        self,
        texts: Iterable[Text],
        progress: Callable[[int], None] = lambda computed: None,
        prefix: str = "",
    ) -> Iterator[Features]:
        """Yields the features of each text or pair of texts (first, second), in input order.

        Thousands of texts are read ahead and sorted by length, so batches have little padding and few shapes.
        Memory is bounded for any number of texts.

        `progress` is called after each batch with the number of texts that have been computed; `prefix` is as
        in `text_rows`.
        """
        before = size = 0
        window: list[Row] = []
        for row in self.rows(texts, prefix):
            window.append(row)
            size += 4 * self.width * (len(row.token_ids) if self.pooling == "none" else 1)
            if len(window) == _WINDOW_TEXTS or size >= _WINDOW_BYTES:
                yield from self._window(window, before, progress)
                before += len(window)
                window, size = [], 0
        yield from self._window(window, before, progress, None if before else len(window))

    def rows(self, texts: Iterable[Text], prefix: str = "") -> Iterator[Row]:
        """Yields the tokens of each text or pair, truncated to `max_seq_length`; see `text_rows`."""
        return text_rows(self.tokenizer, texts, self.max_seq_length, prefix=prefix)

    def _window(
        self,
        rows: Sequence[Row],
        before: int,
        progress: Callable[[int], None],
        total: int | None = None,
    ) -> Iterator[Features]:
        values: dict[int, np.ndarray] = {}
        for numbers, outputs in self.engine.outputs(rows, total=total):
            for i, output in zip(numbers, outputs, strict=True):
                # A copy does not keep the whole batch, with its padding, in memory.
                values[i] = output[: len(rows[i].token_ids)].copy() if self.pooling == "none" else output
            progress(before + len(values))
        for i, row in enumerate(rows):
            yield Features(**vars(row), values=values[i])


def check_reads_cls(given: str, pooling: str, config: EncoderConfig, source: str) -> None:
    """Raises UserError for a pooling that reads [CLS] if [CLS] cannot attend to other tokens."""
    if config.causal and pooling in ("cls", "pooler"):
        raise UserError(f"{given} needs bidirectional attention; {source} is causal")


def pool(
    states: jax.Array, sequence_ids: jax.Array, pooling: str, cls_positions: jax.Array | None = None
) -> jax.Array:
    """Pools token states [B, L, H] to one vector per text, [B, H] or [B, S, H]; "none" returns the states.

    `sequence_ids`, int32 [B, L], are 0 at padding. `cls_positions`, int32 [B, S], begin the texts of packed
    rows.
    """
    if pooling == "mean":
        states = states.astype(jnp.float32)
    with jax.default_matmul_precision("highest"):
        return POOLINGS[pooling](states, sequence_ids, cls_positions)


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
    """Returns the features of a batch, float32 [B, layers x H], or [B, L, layers, H] with pooling "none".

    Packed rows have features [B, S, layers x H]. `batch` is as in `Engine`; `layers` are numbered from 0 for
    the embeddings, and `types` are the token types of the first and the second text.
    """
    params = placement.restack(params)
    if "starts" in batch:
        inputs = batch | packed_inputs(batch, types)
    else:
        inputs = row_inputs(batch["input_ids"], batch["lengths"], batch["first_lengths"], types)
    where = inputs["sequence_ids"], pooling, inputs.get("cls_positions")

    encoder = Encoder(config)
    states: Any = encoder.apply(
        {"params": params["encoder"]},
        *(inputs[name] for name in INPUTS),
        lambda x: pool(x, *where),
        method="every_layer",
    )
    chosen: Any = jnp.stack([states[layer] for layer in layers], axis=-2)
    if pooling == "none":
        return chosen.astype(jnp.float32)
    if pooling == "pooler":
        chosen = Pooler(config).apply({"params": params["pooler"]}, chosen)
    vectors = chosen.astype(jnp.float32).reshape(*chosen.shape[:-2], -1)
    if normalize:
        vectors = text_vectors.normalize(vectors)
    return vectors


def check_output(path: str, pooling: str, overwrite: bool) -> None:
    """Raises UserError early if the output cannot be written; see `io.checks`."""
    if files.suffix(path) == ".npy" and pooling == "none":
        raise UserError(f"--output={path}: expected .jsonl or .safetensors with --pooling=none")
    checks.check_output_file(path, FORMATS, overwrite=overwrite)


def write(path: str, embedder: Embedder, rows: Iterable[tuple[Text, Features]]) -> None:
    """Writes the features of texts, computed by `embedder`, to a file, whole or not at all.

    *   .npy: float32 [N, width].
    *   .jsonl: one object per text with `index`, its number from 0; `text`, or `text_a` and `text_b` for a
        pair; and `embedding`. With pooling "none", `features` replaces it and lists each token with the
        values of its layers. Values have six decimal places.
    *   .safetensors: `embeddings`, float32 [N, width]. With pooling "none": `states`, float32
        [T, layers, H], for the T tokens of all texts; `token_ids`, int32 [T]; and `offsets`, int64 [N + 1]:
        text i has the tokens from offsets[i] to offsets[i + 1]. All tensors are kept in memory.
    """
    writers = {".npy": write_npy, ".safetensors": _write_safetensors, ".jsonl": _write_json_lines}
    with atomic.replace_file(path) as file:
        writers[files.suffix(path)](file, embedder, rows)


def write_npy(file: IO[bytes], embedder: Embedder, rows: Iterable[tuple[Text, Features]]) -> int:
    """Writes float32 [N, width] to an empty file and returns N."""

    def write_header(count):
        # numpy pads the header so that a larger first dimension fits.
        header = dict(descr="<f4", fortran_order=False, shape=(count, embedder.width))
        np.lib.format.write_array_header_1_0(file, header)

    count = 0
    write_header(count)
    for _, features in rows:
        file.write(features.values.astype("<f4", copy=False).tobytes())
        count += 1
    file.seek(0)
    write_header(count)
    return count


def _write_safetensors(file, embedder, rows):
    values, ids = zip(*((features.values, features.token_ids) for _, features in rows), strict=True)
    if embedder.pooling == "none":
        offsets = np.cumsum([0, *map(len, ids)], dtype=np.int64)
        tensors = {"states": np.concatenate(values), "token_ids": np.concatenate(ids), "offsets": offsets}
    else:
        tensors = {"embeddings": np.stack(values)}
    file.write(safetensors.numpy.save(tensors))


def _write_json_lines(file, embedder, rows):
    tokens = embedder.tokenizer.tokens
    for index, (text, features) in enumerate(rows):
        row: dict[str, Any] = {"index": index}
        row |= {"text": text} if isinstance(text, str) else {"text_a": text[0], "text_b": text[1]}
        # Values are rounded in float64, because a rounded float32 would be written with more than six digits.
        values = np.round(features.values.astype(np.float64), 6).tolist()
        if embedder.pooling != "none":
            row["embedding"] = values
        else:
            row["features"] = [
                {
                    "token": tokens[i],
                    "layers": [
                        {"index": n, "values": x} for n, x in zip(embedder.layers, states, strict=True)
                    ],
                }
                for i, states in zip(features.token_ids.tolist(), values, strict=True)
            ]
        file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
