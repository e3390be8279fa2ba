"""Runs a model on texts: tokenizes them, batches them by length, and computes the batches on all devices."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.checkpoint.leaves import nest
from bert_jax.convert import Model
from bert_jax.errors import UserError
from bert_jax.io import progress
from bert_jax.kernels import check as kernel_check
from bert_jax.models import assembled
from bert_jax.models.config import EncoderConfig
from bert_jax.parallel import microbatches, placement, sharding
from bert_jax.tasks.rows import assembly, outputs, packing
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tokenization import Tokenizer

_ENCODE_CHUNK = 2048  # texts that are tokenized at a time

Text = str | tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Row:
    """The tokens of one text or pair of texts, and whether it was truncated (`cut`).

    `token_ids` are int32 [L] with special tokens, `first_length` of them before the second text.
    """

    token_ids: np.ndarray
    first_length: int
    cut: bool


def _shortest_length(mesh: jax.sharding.Mesh) -> int:
    # On accelerators, programs take longer to compile and tokens less to compute.
    return 16 if microbatches.tokens_at_a_time(mesh) is None else 8


def few_lengths(longest: int, mesh: jax.sharding.Mesh) -> list[int]:
    """Returns the row lengths of programs compiled in advance: 16 or 32, doubled, ..., `longest`."""
    return _powers(2 * _shortest_length(mesh), 2, longest)


def few_sizes(most: int, devices: int) -> list[int]:
    """Returns the batch sizes of programs compiled in advance: 1, 4, 16, ... per device."""
    return [devices * size for size in _powers(1, 4, -(-most // devices))]


def _powers(first: int, factor: int, last: int) -> list[int]:
    sizes = []
    while first < last:
        sizes.append(first)
        first *= factor
    return [*sizes, last]


def masked_lm_of(model: Model) -> Model | None:
    """Returns the model or its generator, whichever has a masked LM head; None if neither has one."""
    return next((each for each in (model, model.generator) if each is not None and each.has_masked_lm), None)


def with_masked_lm(model: Model) -> Model:
    """The same as `masked_lm_of`, but raises UserError if there is no masked LM head."""
    if (masked_lm := masked_lm_of(model)) is None:
        raise UserError(f"{(model.generator or model).source} has no masked LM head")
    return masked_lm


def check_items(items: Any, name: str) -> None:
    """Raises UserError for a text, mapping or data frame, whose items are characters, keys or columns."""
    iterable = isinstance(items, Iterable) and getattr(items, "ndim", 1) > 0
    if isinstance(items, str | Mapping) or hasattr(items, "columns") or not iterable:
        raise UserError(f"{name} is {type(items).__name__}: expected a list, such as ['one text']")


def text_rows(
    tokenizer: Tokenizer,
    texts: Iterable[Text],
    max_seq_length: int,
    special: Sequence[str] = (),
    prefix: str = "",
) -> Iterator[Row]:
    """Yields the tokens of texts or pairs of texts, truncated to `max_seq_length`; UserError for other items.

    Of a pair, the longer text is truncated. Only the tokens in `special` are recognized in a text. `prefix`
    is prepended to each text, or to the first of a pair.
    """
    check_items(texts, "texts")
    layout = tokenizer.layout
    all_pairs = (_pair(item, number) for number, item in enumerate(texts))
    while pairs := list(itertools.islice(all_pairs, _ENCODE_CHUNK)):
        encode = functools.partial(_beginnings, tokenizer, most=max_seq_length, special=tuple(special))
        firsts = encode([prefix + a for a, _ in pairs])
        seconds = iter(encode([b for _, b in pairs if b is not None]))
        for a, (_, text_b) in zip(firsts, pairs, strict=True):
            b = None if text_b is None else next(seconds)
            room = layout.room(max_seq_length, pair=b is not None)
            (texts_ids,), cut = assembly.truncate(a, b, room)
            yield Row(layout.row(*texts_ids), layout.first_length(len(texts_ids[0]), b is not None), cut)


def _beginnings(
    tokenizer: Tokenizer, texts: Sequence[str], most: int, special: tuple[str, ...]
) -> list[list[int]]:
    done: dict[int, list[int]] = {}
    size = 32 * most  # characters
    while waiting := {i: text for i, text in enumerate(texts) if i not in done}:
        for i, text in waiting.items():
            end = max(text.rfind(" ", 0, size), text.rfind("\n", 0, size))
            waiting[i] = text[:end] if len(text) > size and end > 0 else text
        encoded = tokenizer.encode_batch([*waiting.values()], allow_special=special)
        for (i, text), ids in zip(waiting.items(), encoded, strict=True):
            if len(ids) > most or len(text) == len(texts[i]):
                done[i] = ids
        size *= 4
    return [done[i] for i in range(len(texts))]


def _pair(item: Any, number: int) -> tuple[str, str | None]:
    if isinstance(item, str):
        return item, None
    is_pair = isinstance(item, tuple | list | np.ndarray) and len(item) == 2
    if is_pair and all(isinstance(x, str) for x in item):
        return item[0], item[1]
    raise UserError(f"text {number} is {item!r:.60}: expected a str, or a pair of str")


class Engine:
    """Computes a function of a model for any number of rows of any length, on all devices of this process.

    Args:
        groups: the names of the parameter groups that `compute` uses, such as "encoder".
        compute: compiled function of parameters, a batch and the keyword `config` that returns outputs
            [B, ...]. Some parameters are `placement.UnstackedLayers`. The batch has int32 `input_ids` [B, L];
            `lengths` [B], the number of tokens of each row; `first_lengths` [B], the number of tokens before
            the second text; and the arrays that are passed to `outputs`.
        batch_tokens: the approximate number of tokens, including padding, of a batch on each device; 0 for a
            platform-dependent default.
        packs: whether `compute` also takes packed rows, which have `starts` and `first_lengths` [R, S] in the
            format of `rows.packing`, and returns outputs [R, S, ...] for them.
        shared_with: an engine of the same model and dtype, whose parameters on the devices are reused.
    """

    def __init__(
        self,
        model: Model,
        config: EncoderConfig,
        groups: Sequence[str],
        compute: Callable[..., jax.Array],
        *,
        max_seq_length: int,
        batch_tokens: int = 0,
        packs: bool = False,
        shared_with: Engine | None = None,
        log: Callable[[str], None] = print,
    ):
        kernel_check.ensure(config, log)
        self._pad_id = model.require_tokenizer().pad_id
        self.unknown = assembly.UnknownTokens(model.require_tokenizer(), log)
        mesh = sharding.make_mesh()
        # 16, 24, 32, 48, 64, 96, ... Each length needs a program; powers of two would need more padding.
        shortest = _shortest_length(mesh)
        lengths = (length << power for power in itertools.count() for length in (shortest, shortest * 3 // 2))
        self._lengths = [
            *itertools.takewhile(lambda length: length < max_seq_length, lengths),
            max_seq_length,
        ]
        self._sizes: tuple[int, ...] = ()
        self._packs, self._hidden_size = packs, config.hidden_size
        self._mesh = mesh
        self._batch_tokens = mesh.size * (batch_tokens or microbatches.tokens_on_device(mesh))
        params = {name: x for name, x in model.params.items() if name.split("/")[0] in groups}
        layered = [name for name, x in assembled.parameters(model.module).items() if x.layered]
        there: Mapping[str, Any] = shared_with._params if shared_with else {}
        shared = {name: there[name] for name in params if name in there}
        new = {name: x for name, x in params.items() if name not in shared}
        self._params: dict[str, Any] = shared | placement.place(new, layered, mesh, config.dtype)
        self._compute = functools.partial(compute, config=placement.config_for(config, mesh))

    def outputs(
        self,
        rows: Sequence[Row],
        *,
        total: int | None = None,
        arrays: Callable[[list[Row], int], dict[str, np.ndarray]] = lambda rows, size: {},
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (numbers of b rows, their outputs [b, ...]), one batch at a time, the longest rows first.

        `total` is the number of all rows if no more follow, so that a few rows form a small batch. `arrays`
        maps the rows of a batch and its padded size to additional arrays [size, ...].
        """
        data = encoded(rows, self._pad_id)
        self.unknown.add(data.tokens)
        padded = self._padded(data.lengths, total)
        yield from outputs.computed(
            self._dispatch,
            data,
            self._packing(data.lengths, padded) or padded,
            self._mesh,
            more=lambda groups: arrays([rows[i] for i in groups if i >= 0], len(groups)),
        )

    def _padded(self, lengths: np.ndarray, total: int | None) -> list[tuple[np.ndarray, tuple[int]]]:
        """Returns the rows of each padded batch and its length, as `outputs.computed` takes them."""
        # The longest rows come first, so that the first batch shows how much memory all of them need.
        order, made = np.argsort(-lengths, kind="stable"), []
        begin = size = length = 0
        while begin < len(order):
            # If the last rows fit into one batch of the previous shape, they use it: the number of tokens to
            # compute is the same, and there is one program less to compile.
            if len(order) - begin > size or self._sizes:
                length = self._lengths[bisect.bisect_left(self._lengths, lengths[order[begin]])]
                size = self._batch_size(length, total)
            numbers = order[begin : begin + size]
            made.append((np.pad(numbers, (0, size - len(numbers)), constant_values=-1), (length,)))
            begin += size
        return made

    def _packing(self, lengths: np.ndarray, padded: Sequence[tuple]) -> packing.Packing | None:
        """Returns the shape of packed rows if they cost less than padded batches; otherwise None."""
        if not self._packs or self._sizes or not len(lengths):
            return None

        def cost(length):
            # This is proportional to the FLOPs of a layer, 24 H^2 + 4 L H per token.
            return length * (6 * self._hidden_size + length)

        devices = self._mesh.size
        of_padded = sum(len(groups) * cost(length) for groups, (length,) in padded)
        return packing.for_outputs(lengths, self._batch_tokens // devices, devices, cost, of_padded)

    def warm_up(
        self,
        most: int,
        arrays: Callable[[list[Row], int], dict[str, np.ndarray]],
        on_program: Callable[[int, int], None] = progress.not_shown,
    ) -> int:
        """Compiles the programs for calls of `outputs` with up to `most` rows, and returns their number.

        Later calls pad rows to `few_lengths` and batches to `few_sizes`.
        """
        self._lengths = few_lengths(self._lengths[-1], self._mesh)
        counts = few_sizes(most, self._mesh.size)
        self._sizes = tuple(count // self._mesh.size for count in counts)
        needed = {(self._batch_size(length, n), length) for n in counts for length in self._lengths}
        on_program(0, len(needed))
        for done, (size, length) in enumerate(sorted(needed), 1):
            rows = [Row(np.full(length, self._pad_id, np.int32), length, False)] * size
            for _ in self.outputs(rows, total=size, arrays=arrays):
                pass
            on_program(done, len(needed))
        return len(needed)

    def _dispatch(self, batch: dict[str, jax.Array]) -> jax.Array:
        with sharding.on_mesh(self._mesh):
            return self._compute(nest(self._params), batch)

    def _batch_size(self, length: int, total: int | None) -> int:
        devices = self._mesh.size
        rows = max(1, self._batch_tokens // (length * devices))
        if total is not None:
            needed = -(-total // devices)
            power = 1 << max(0, needed - 1).bit_length()
            rows = min(rows, next((size for size in self._sizes if size >= needed), power))
        return devices * rows


def encoded(rows: Sequence[Row], pad_id: int) -> EncodedRows:
    """Converts rows to a data set without labels."""
    lengths = [len(row.token_ids) for row in rows]
    return EncodedRows(
        tokens=np.concatenate([row.token_ids for row in rows] or [np.zeros(0, np.int32)]),
        offsets=np.cumsum([0, *lengths]),
        first_lengths=np.array([row.first_length for row in rows], np.int32),
        targets={},
        pad_id=pad_id,
        max_seq_length=max(lengths, default=0),
        examples=np.arange(len(rows)),
    )
