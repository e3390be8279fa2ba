"""Encoded examples and the order they are seen in: numpy only, a pure function of (seed, step).

Rows of one batch are of similar length and are padded to one of a few lengths, so that short texts do not pay
for the longest one and the number of compiled shapes stays small.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bert_jax.tasks.readers.tables import Examples
from bert_jax.tasks.rows import text_windows
from bert_jax.tasks.rows.text_windows import Ids, Pair

_ENCODE_CHUNK = 8192
# Examples are grouped by length inside windows of this many batches, which leaves most of the order random.
_GROUPING_WINDOW = 32
_MOST_BUCKETS = 8
_SIZE_SAVES = 0.03


NO_TARGET = -1  # of a token that has none


@dataclasses.dataclass
class EncodedRows:
    """What the model reads: rows of [CLS] A [SEP], or [CLS] A [SEP] B [SEP], end to end.

    Attributes:
      tokens: int32 [total].
      offsets: int64 [N + 1]; row i is tokens[offsets[i]:offsets[i + 1]].
      first_lengths: int32 [N], tokens of A with [CLS] and [SEP].
      targets: arrays [N, ...] by name, int32 or float32; empty when unlabelled.
      token_targets: int32 [total] arrays by name; `NO_TARGET` where a token has none.
      examples: int64 [N], the example that a row is of: a long one may have several rows.
      group: this many rows in a row are one question, and stay side by side in one batch.
      truncated: examples that were cut.
      token_features: float arrays [total, F] by name, of what is computed once for all epochs.
      shares: float32 [N], how much a row counts in the loss, 1 on average, where rows are windows whose
        outputs are joined into one an example; else None.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    first_lengths: np.ndarray
    targets: dict[str, np.ndarray]
    pad_id: int
    max_length: int
    truncated: int = 0
    token_targets: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    examples: np.ndarray | None = None
    group: int = 1
    token_features: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    shares: np.ndarray | None = None

    def __post_init__(self):
        if self.examples is None:
            self.examples = np.arange(len(self))

    def __len__(self) -> int:
        return len(self.first_lengths)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [N], tokens of each row."""
        return np.diff(self.offsets)

    @property
    def group_examples(self) -> np.ndarray:
        """int64 [N / group], the example of each group."""
        return self.examples[:: self.group]

    @property
    def group_lengths(self) -> np.ndarray:
        """int64 [N / group], tokens of the longest row of each group."""
        return self.lengths.reshape(-1, self.group).max(axis=1, initial=0)


def truncate_pair(length_a: int, length_b: int, budget: int) -> tuple[int, int]:
    """How many tokens of each stay, taking one at a time off the longer, and off B when they are equal.

    The end of google-research/bert's `_truncate_seq_pair` loop, without the loop.
    """
    keep_a = min(length_a, max(budget - length_b, budget - budget // 2))
    return keep_a, min(length_b, budget - keep_a)


def encode(
    examples: Examples, tokenizer, max_length: int, kind: str = "classification", doc_stride: int = 0
) -> EncodedRows:
    """Tokenizes in batches, joins pairs and truncates to `max_length` tokens with the special ones; or, with
    a `doc_stride`, makes windows of what is longer (`text_windows.split`).
    """
    first, second = tokenize(tokenizer, examples.texts_a), itertools.repeat(None, len(examples))
    if examples.texts_b is not None:
        second = tokenize(tokenizer, examples.texts_b)
    rows = (
        text_windows.split(a, b, max_length, doc_stride) if doc_stride else truncate(a, b, max_length)
        for a, b in zip(first, second, strict=True)
    )
    return assemble(rows, examples.labels, tokenizer, max_length, kind, windows=bool(doc_stride))


def tokenize(tokenizer, texts: Sequence[str]) -> Iterator[Ids]:
    """The ids of each text, without special tokens; many texts at a time."""
    for begin in range(0, len(texts), _ENCODE_CHUNK):
        yield from tokenizer.encode_batch(texts[begin : begin + _ENCODE_CHUNK])


def assemble(
    found: Iterable[tuple[Sequence[Pair], bool]],
    labels: Sequence | None,
    tokenizer,
    max_length: int,
    kind: str = "classification",
    *,
    group: int = 1,
    windows: bool = False,
) -> EncodedRows:
    """The rows of [CLS] A [SEP], or [CLS] A [SEP] B [SEP], of every example.

    Args:
      found: of each example its pairs (A, B), ids without special tokens, B None of a single text; and
        whether some of its tokens are in none.
      labels: of each example, or None.
      kind: "regression" has float32 targets, all others int32.
      group: so many pairs in a row are one question.
      windows: whether those of one example are windows of it, whose outputs are joined.
    """
    pieces, lengths, first_lengths, owners = [], [], [], []
    truncated = 0
    cls, sep = [tokenizer.cls_id], [tokenizer.sep_id]
    for number, (pairs, cut) in enumerate(found):
        truncated += cut
        for first, second in pairs:
            row = cls + first + sep + (second + sep if second is not None else [])
            pieces.append(np.asarray(row, np.int32))
            lengths.append(len(row))
            first_lengths.append(len(first) + 2)
            owners.append(number)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    owners = np.asarray(owners, np.int64)
    targets = {}
    if labels is not None:
        labels = np.asarray(labels, np.float32 if kind == "regression" else np.int32)
        targets["targets"] = labels[owners]
    return EncodedRows(
        np.concatenate(pieces) if pieces else np.zeros(0, np.int32),
        offsets,
        np.asarray(first_lengths, np.int32),
        targets,
        tokenizer.pad_id,
        max_length,
        truncated,
        examples=owners,
        group=group,
        shares=text_windows.shares(owners) if windows else None,
    )


def truncate(a: Ids, b: Ids | None, max_length: int) -> tuple[list[Pair], bool]:
    """The one row of a text or a pair (`truncate_pair`), and whether it was cut."""
    if b is None:
        kept = a[: max_length - 2]
        return [(kept, None)], len(kept) < len(a)
    keep_a, keep_b = truncate_pair(len(a), len(b), max_length - 3)
    return [(a[:keep_a], b[:keep_b])], keep_a + keep_b < len(a) + len(b)


def bucket_lengths(
    lengths: np.ndarray, batch_size: int, max_length: int, batches: int | None = None
) -> tuple[int, ...]:
    """Returns the padded lengths that waste least on rows of these lengths: multiples of 8, ascending.

    Each costs a compilation, so there is one more only where it saves 3% of the padded tokens, at most one
    for every eight batches, and eight in all.

    Args:
      lengths: int [N] tokens of each group of rows.
      batch_size: groups per batch.
      batches: how many batches will be computed, where that is less than an epoch.
      max_length: what no padded length exceeds, and no row.
    """
    longest = int(np.max(lengths, initial=1))
    candidates = np.minimum(np.arange(8, longest + 8, 8), max_length)
    computed = steps_per_epoch(len(lengths), batch_size)
    computed = computed if batches is None else min(computed, batches)
    return choose_sizes(lengths, candidates, min(_MOST_BUCKETS, 1 + computed // 8))


def choose_sizes(values: np.ndarray, candidates: np.ndarray, most: int) -> tuple[int, ...]:
    """The sizes that waste least on these values, each of which takes the next size that holds it.

    Args:
      values: int [N], none over the last candidate.
      candidates: int [C], ascending.
      most: how many sizes at most; there is one more only where it saves 3% of all.

    Returns:
      Some of the candidates, ascending, the last of them included.
    """
    counts = np.bincount(np.searchsorted(candidates, values), minlength=len(candidates))
    below = np.concatenate([[0], np.cumsum(counts)])
    # [i, j]: what the values over candidate i - 1 that fit in candidate j cost, each the size of j.
    cost = np.where(
        np.arange(len(candidates))[:, None] <= np.arange(len(candidates)),
        (below[None, 1:] - below[:-1, None]) * candidates,
        np.inf,
    )
    best, chosen = cost[0], [(int(candidate),) for candidate in candidates]
    for _ in range(1, min(most, len(candidates))):
        # Of the values up to candidate j: the last size begins after candidate i.
        totals = best[:-1, None] + cost[1:]
        last = np.argmin(totals, axis=0)
        fewer = best[-1]
        best = np.min(totals, axis=0)
        if best[-1] > (1 - _SIZE_SAVES) * fewer:
            break
        chosen = [(*chosen[i], int(candidates[j])) for j, i in enumerate(last)]
    return chosen[-1]


def make_batch(
    data: EncodedRows, indices: np.ndarray, buckets: Sequence[int], own: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """The rows of one batch, padded to the first bucket that holds the longest of them.

    Args:
      indices: int64 [B] groups of the global batch; -1 is padding, without weight.
      own: int [b], the places of the groups that this process feeds (`sharding.local_rows`); all by default.
        The padded length is the whole batch's on every process.

    Returns:
      int32 `input_ids` [b, L], `lengths` [b], `first_lengths` [b] and `row_ids` [b], the places in the global
      batch; float32 `weights` [b], and `shares` [b] where there are some; every target [b, ...], 0 where
      there is none, every target of tokens, int32 [b, L], and every feature of tokens [b, L, F]. With groups
      of several rows, [b, group, ...] of each.
    """
    places = expand(np.arange(len(indices)) if own is None else own, data.group)
    indices = expand(indices, data.group)
    real = indices >= 0
    lengths = np.where(real, data.lengths[indices], 0)
    width = next(length for length in buckets if length >= lengths.max(initial=0))
    indices, real, lengths = indices[places], real[places], lengths[places]
    input_ids = np.full((len(indices), width), data.pad_id, np.int32)
    for row, (index, length) in enumerate(zip(indices, lengths, strict=True)):
        start = data.offsets[index]
        input_ids[row, :length] = data.tokens[start : start + length]
    batch = {
        "input_ids": input_ids,
        "lengths": lengths.astype(np.int32),
        "first_lengths": np.where(real, data.first_lengths[indices], 0).astype(np.int32),
        "row_ids": places.astype(np.int32),
        "weights": real.astype(np.float32),
    }
    if data.shares is not None:
        batch["shares"] = np.where(real, data.shares[indices], np.float32(0))
    for name, values in data.targets.items():
        chosen = values[indices]
        chosen[~real] = 0
        batch[name] = chosen
    for name, values in data.token_targets.items():
        batch[name] = np.full((len(indices), width), NO_TARGET, np.int32)
        for row, (index, length) in enumerate(zip(indices, lengths, strict=True)):
            start = data.offsets[index]
            batch[name][row, :length] = values[start : start + length]
    for name, values in data.token_features.items():
        batch[name] = np.zeros((len(indices), width, values.shape[1]), values.dtype)
        for row, (index, length) in enumerate(zip(indices, lengths, strict=True)):
            start = data.offsets[index]
            batch[name][row, :length] = values[start : start + length]
    if data.group > 1:
        batch = {name: x.reshape(-1, data.group, *x.shape[1:]) for name, x in batch.items()}
    return batch


def expand(groups: np.ndarray, size: int) -> np.ndarray:
    """int64 [B] groups, -1 for padding -> [B * size] rows."""
    rows = groups[:, None] * size + np.arange(size)
    return np.where(groups[:, None] >= 0, rows, -1).ravel()


def steps_per_epoch(examples: int, batch_size: int) -> int:
    """Batches in which every example occurs once; the last may be filled up with padding rows."""
    return -(-examples // batch_size)


def epoch_order(
    lengths: np.ndarray, batch_size: int, seed: int, epoch: int, group_by_length: bool = True
) -> np.ndarray:
    """int64 [steps, batch_size]: every example once, -1 where the last batch has none left.

    With `group_by_length`, examples of similar length share a batch: a shuffle, a sort inside windows of a
    few batches, and a shuffle of the batches.
    """
    rng = np.random.Generator(np.random.Philox(key=[np.uint64(seed), np.uint64(epoch)]))
    order = rng.permutation(len(lengths))
    steps = steps_per_epoch(len(lengths), batch_size)
    if group_by_length:
        window = batch_size * _GROUPING_WINDOW
        order = np.concatenate(
            [
                part[np.argsort(lengths[part], kind="stable")]
                for part in np.split(order, range(window, len(order), window))
            ]
        )
    order = np.concatenate([order, np.full(steps * batch_size - len(order), -1)]).reshape(steps, batch_size)
    return rng.permutation(order) if group_by_length else order


def train_batches(
    data: EncodedRows,
    batch_size: int,
    seed: int,
    start_step: int,
    *,
    group_by_length: bool = True,
    buckets: Sequence[int] = (),
    own: np.ndarray | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Endless batches of `batch_size` groups from `start_step` on: batch s depends on (seed, s) alone. `own`
    as in `make_batch`.
    """
    lengths = data.group_lengths
    buckets = buckets or bucket_lengths(lengths, batch_size, data.max_length)
    steps = steps_per_epoch(len(lengths), batch_size)
    epoch, offset = divmod(start_step, steps)
    while True:
        order = epoch_order(lengths, batch_size, seed, epoch, group_by_length)
        for indices in order[offset:]:
            yield make_batch(data, indices, buckets, own)
        epoch, offset = epoch + 1, 0


def eval_batches(
    data: EncodedRows,
    batch_size: int,
    *,
    buckets: Sequence[int] = (),
    own: np.ndarray | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Every group once, in the order of `eval_order`; the last batch is filled up with padding."""
    buckets = buckets or bucket_lengths(data.group_lengths, batch_size, data.max_length)
    for indices in eval_order(data, batch_size):
        yield make_batch(data, indices, buckets, own)


def eval_order(data: EncodedRows, batch_size: int) -> np.ndarray:
    """int64 [steps, batch_size]: the groups by length, -1 where the last batch has none left."""
    order = np.argsort(data.group_lengths, kind="stable")
    steps = steps_per_epoch(len(order), batch_size)
    return np.concatenate([order, np.full(steps * batch_size - len(order), -1)]).reshape(steps, batch_size)
