"""The records of a pre-training run: of one length, or of each length of `length_ramp`."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Generator, Mapping
from fractions import Fraction

import numpy as np

from bert_jax.data import cache, google, loader, manifests, records, token_counts, vocabularies
from bert_jax.data.records import Dataset
from bert_jax.errors import UserError
from bert_jax.io import comma_lists, files
from bert_jax.io.wording import counted
from bert_jax.objectives.causal_lm import LEFT_TO_RIGHT
from bert_jax.settings.ramps import Ramp
from bert_jax.settings.typed.pretrain_config import PretrainConfig, PretrainDataConfig
from bert_jax.tokenization import Tokenizer
from bert_jax.training import budget

# Above this number of epochs, a warning says that the number of steps may be a mistake. The paper trains for
# 40 epochs.
_MANY_EPOCHS, _MANY_EPOCHS_CONTINUED, _FEW_EPOCHS = 50, 20, 3


@dataclasses.dataclass(frozen=True)
class RunRecords:
    """The records that a run trains and is evaluated on.

    Attributes:
        train: the training set of each length of a row, in ascending order.
        held_out: the evaluation set of each length; empty for no evaluation.
        lengths: tokens of a row by step.
        tokenizer: the tokenizer of all of them.
        replay: the training set of each length of which the batches take a share; empty for none.
        replay_held_out: the evaluation set beside it.
        replay_share: the share of the rows that are of `replay`.
    """

    train: Mapping[int, Dataset]
    held_out: Mapping[int, Dataset]
    lengths: Ramp
    tokenizer: Tokenizer
    replay: Mapping[int, Dataset] = dataclasses.field(default_factory=dict)
    replay_held_out: Mapping[int, Dataset] = dataclasses.field(default_factory=dict)
    replay_share: Fraction = Fraction(0)

    @property
    def longest(self) -> Dataset:
        """Returns the training set with the longest rows."""
        return self.train[max(self.train)]

    @property
    def fingerprint(self) -> str:
        """Returns the digest of the records, and of those of replay."""
        own, replay = (
            "+".join(dataset.manifest["fingerprint"] for dataset in datasets.values())
            for datasets in (self.train, self.replay)
        )
        return f"{own}, replay {replay}" if replay else own

    @property
    def next_sentence(self) -> bool:
        """Returns whether there are next-sentence labels."""
        return any(
            dataset.manifest.get("nsp") != "none" for dataset in (*self.train.values(), *self.replay.values())
        )

    def sequences_per_row(self, length: int) -> int:
        """Returns the mean number of sequences in the rows of a length, rounded up."""
        mean = (1 - self.replay_share) * _sequences_per_row(self.train[length])
        if self.replay:
            mean += self.replay_share * _sequences_per_row(self.replay[length])
        return math.ceil(mean)

    def token_counts(self) -> np.ndarray:
        """Returns how often each token occurs in the longest rows, in the proportion of the batches, [V]."""
        size, length = self.tokenizer.vocab_size, max(self.train)
        own = token_counts.count(self.train[length], size)
        if not self.replay:
            return own
        replay = token_counts.count(self.replay[length], size)
        share = float(self.replay_share)
        return (1 - share) * own + share * replay * (own.sum() / replay.sum())

    def train_batches(
        self,
        config: PretrainConfig,
        start_step: int,
        own: Callable[[int], np.ndarray],
        corrupt: loader.CorruptRows,
    ) -> Generator[dict[str, np.ndarray], None, None]:
        """Returns an iterator over the batches of a run; see `loader.train_batches`."""
        return loader.train_batches(
            self.train,
            config.batch_sizes,
            config.seed,
            start_step,
            own,
            corrupt=corrupt,
            lengths=self.lengths,
            mask_copies=config.masking.copies,
            marks={LEFT_TO_RIGHT: config.left_to_right},
            replay=loader.Replay(self.replay, self.replay_share) if self.replay else None,
        )

    def largest_batch(
        self, config: PretrainConfig, own: Callable[[int], np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Returns the rows that this process feeds of a batch with the most tokens, and of these the longest.

        Args:
            config: the configuration of the run.
            own: maps the number of rows of a global batch to the rows that this process feeds.
        """
        sizes, lengths, phases = config.batch_sizes, self.lengths, config.left_to_right
        starts = {*sizes.starts, *lengths.starts, *phases.starts}

        def cost(step):
            return sizes.at(step) * lengths.at(step), lengths.at(step), phases.at(step)

        largest = max((step for step in starts if step < max(config.steps, 1)), key=cost)
        # The run itself counts the rows that are corrupt.
        corrupt = loader.CorruptRows(config.data.max_corrupt_rows, lambda line: None)
        with contextlib.closing(self.train_batches(config, largest, own, corrupt)) as batches:
            return next(batches)

    def length_of(self, step: int) -> int:
        """Returns the length of the rows that the last of `step` steps has."""
        return self.lengths.at(max(step - 1, 0))

    def describe(self, config: PretrainConfig, log: Callable[[str], None]) -> None:
        """Logs the numbers of rows and epochs, and whether there is an evaluation."""
        for length, dataset in self.train.items():
            self._describe_length(length, dataset, config, log)
        if (most := getattr(self.longest, "max_predictions", None)) is not None:
            log(f"the records come with their masks, at most {most} a row")
        if copies := config.masking.copies:
            log(f"each row has {counted(copies, 'set')} of masks, one an epoch in turn")
        if not self.held_out:
            log("no evaluation: the records have no split for it, or data.eval_split is empty")
        for name, held_out in (("", self.held_out), (" of data.replay", self.replay_held_out)):
            for dataset in held_out.values():
                rows = len(dataset)
                used = min(eval_batches(config, dataset) * config.batch_size, rows)
                log(f"evaluating on {used:,} of {counted(rows, 'held-out row')}{name}")

    def _describe_length(self, length: int, dataset: Dataset, config: PretrainConfig, log) -> None:
        limited, rows = budget.from_config(config) is not None, len(dataset)
        sizes = config.batch_sizes.where(self.lengths, length)
        steps = sizes.combine(sizes, lambda size, _: min(size, 1)).total_before(config.steps)
        total, share = sizes.total_before(config.steps), float(self.replay_share)
        replayed = loader.replayed_before(total, self.replay_share)
        epochs = (total - replayed) / rows
        used = [size for size in sizes.values if size]
        low, high = min(used), max(used)
        batch = counted(low, "row") if low == high else f"{low:,} to {high:,} rows"
        own = f", {100 * (1 - share):.4g}% of them from here" if self.replay else ""
        log(
            f"{counted(rows, 'row')} of {length} tokens in {config.data.dir}; {'at most ' * limited}"
            f"{counted(steps, 'step')} of {batch}{own}: {_of_epochs(epochs)}"
        )
        most = _MANY_EPOCHS_CONTINUED if config.init_from else _MANY_EPOCHS
        if not limited and epochs > most:
            few = max(2, int(_FEW_EPOCHS * rows / (high * (1 - self.replay_share))))
            warmup = (
                "" if config.optimizer.warmup_fraction else f" --config.optimizer.warmup_steps={few // 10}"
            )
            flags = f": --config.steps={few}{warmup}"
            log(
                f"warning: {_of_epochs(epochs)}: the model will see every row {epochs:,.0f} times; "
                f"{_FEW_EPOCHS} epochs are {few:,} steps{flags * (len(self.train) == 1)}"
            )
        if not self.replay:
            return
        rows = len(self.replay[length])
        log(
            f"{counted(rows, 'row')} of {length} tokens in {config.data.replay}, {100 * share:.4g}% of the "
            f"batches: {_of_epochs(replayed / rows)}"
        )
        if not limited and replayed / rows > most:
            log(
                f"warning: the model will see every row of data.replay {replayed / rows:,.0f} times; make "
                "records of more text"
            )


def _of_epochs(epochs: float) -> str:
    number = f"{epochs:,.0f}" if epochs >= 100 else f"{epochs:.3g}"
    return f"{number} epoch{'' if number == '1' else 's'}"


def _sequences_per_row(dataset: Dataset) -> Fraction:
    return Fraction(dataset.manifest["splits"][dataset.split]["sequences"], len(dataset))


def eval_batches(config: PretrainConfig, dataset: Dataset) -> int:
    """Returns the number of batches of an evaluation on a dataset."""
    batches = -(-len(dataset) // config.batch_size)
    return min(batches, config.eval.batches or batches)


def open_longest(data_dir: str, config: PretrainConfig, log: Callable[[str], None]) -> Dataset:
    """Returns the training set with the longest rows, of record directories separated by commas.

    Args:
        data_dir: the directories, in place of `config.data.dir`.
        config: the pre-training config.
        log: called with one line of text for each notice.
    """
    by_length = _open_split(config, cache.localize(data_dir, log), config.data.train_split, config.data.vocab)
    return by_length[max(by_length)]


def open_records(config: PretrainConfig, workdir: os.PathLike | str, log) -> RunRecords:
    """Opens the records in `config.data.dir` and `config.data.replay`.

    Raises:
        UserError: there are none, they are not valid, they are not of the lengths of `length_ramp`, or those
            of replay are of another kind.
    """
    data = config.data
    if not data.dir:
        raise UserError("no records given: set --config.data.dir to what `bert-jax data --output_dir` made")
    index_dir = "" if files.is_remote(workdir) else os.path.join(workdir, "index")
    data_dir = cache.localize(data.dir, log)
    train, held_out = _open_splits(config, data_dir, data.vocab, index_dir)
    tokenizer = vocabularies.of_records(next(iter(train.values())))
    own = RunRecords(train, held_out, config.lengths or Ramp.constant(next(iter(train))), tokenizer)
    if not data.replay:
        return own
    replay_dir = cache.localize(data.replay, log)
    # Records of other programs come without a vocabulary, and only one of the two may be theirs.
    foreign = any(map(records.foreign_files, comma_lists.paths(replay_dir)))
    replay, replay_held_out = _open_splits(config, replay_dir, data.vocab if foreign else "", index_dir)
    for one, other in zip(train.values(), replay.values(), strict=True):
        _check_alike(config, one, other)
    for length in train:  # batches of both have the same shape
        every = [sets[length] for sets in (train, replay, held_out, replay_held_out) if sets]
        most = max(dataset.max_sequences_per_row for dataset in every)
        for dataset in every:
            dataset.max_sequences_per_row = most
    return dataclasses.replace(
        own, replay=replay, replay_held_out=replay_held_out, replay_share=data.replay_fraction
    )


def _open_splits(
    config: PretrainConfig, directory: str, vocab: str, index_dir: str
) -> tuple[dict[int, Dataset], dict[int, Dataset]]:
    """Returns the training set and the evaluation set of each length; the latter is empty for none."""
    data = config.data
    train = _open_split(config, directory, data.train_split, vocab, index_dir)
    for one in train.values():
        if data.eval_split not in ("", *one.manifest["splits"]) and _is_held_out(data, one):
            raise UserError(
                f"the records {directory} have no split {data.eval_split!r} to evaluate on; "
                "--config.data.eval_split= trains without evaluation"
            )
    if not any(_is_held_out(data, one) for one in train.values()):
        return train, {}
    return train, _open_split(config, directory, data.eval_split, vocab, index_dir)


def _open_split(
    config: PretrainConfig, directory: str, split: str, vocab: str, index_dir: str = ""
) -> dict[int, Dataset]:
    """Returns a split of each length."""
    if config.lengths:
        return records.open_by_length(directory, split, config.lengths.values, vocab, index_dir)
    dataset = records.open_dataset(directory, split, vocab, index_dir)
    return {dataset.max_seq_length: dataset}


def _check_alike(config: PretrainConfig, own: Dataset, replay: Dataset) -> None:
    """Raises UserError if schemas, vocabularies, lengths or numbers of masks of two training sets differ."""
    given = [(config.data.dir, own.manifest), (config.data.replay, replay.manifest)]
    if own.manifest["schema"] != replay.manifest["schema"]:
        of = [f"{name} are {manifest['schema']}" for name, manifest in given]
        raise UserError(f"the records {of[0]} ones and {of[1]} ones: a run reads one schema")
    manifests.check_alike(given, config.data.train_split, ramp="")


def _is_held_out(data: PretrainDataConfig, train_set: Dataset) -> bool:
    """Returns whether the run is evaluated on the records of a training set.

    Packed records have held-out documents by default. Google records, like the reference's, have none.
    """
    optional = train_set.manifest["schema"] == google.SCHEMA
    splits = train_set.manifest["splits"]
    return bool(data.eval_split and splits.get(data.eval_split, {"rows": not optional})["rows"])
