"""The records of a pre-training run: of one length, or of each length of `length_ramp`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Generator, Mapping

import numpy as np

from bert_jax.data import cache, google, loader, records, vocabularies
from bert_jax.data.records import Dataset
from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.objectives.causal_lm import LEFT_TO_RIGHT
from bert_jax.settings.ramps import Ramp
from bert_jax.settings.run_config import PretrainConfig, PretrainDataConfig
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
    """

    train: Mapping[int, Dataset]
    held_out: Mapping[int, Dataset]
    lengths: Ramp
    tokenizer: Tokenizer

    @property
    def longest(self) -> Dataset:
        """Returns the training set with the longest rows."""
        return self.train[max(self.train)]

    @property
    def fingerprint(self) -> str:
        """Returns the digest of the records."""
        return "+".join(dataset.manifest["fingerprint"] for dataset in self.train.values())

    @property
    def next_sentence(self) -> bool:
        """Returns whether there are next-sentence labels."""
        return any(dataset.manifest.get("nsp") != "none" for dataset in self.train.values())

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
        )

    def eval_set(self, step: int) -> Dataset:
        """Returns the evaluation set with rows of the length that the last of `step` steps has."""
        return self.held_out[self.lengths.at(max(step - 1, 0))]

    def describe(self, config: PretrainConfig, log: Callable[[str], None]) -> None:
        """Logs the numbers of rows and epochs, and whether there is an evaluation."""
        for length, dataset in self.train.items():
            self._describe_length(length, dataset, config, log)
        if (most := getattr(self.longest, "max_predictions", None)) is not None:
            log(f"the records come with their masks, at most {most} a row")
        if copies := config.masking.copies:
            log(f"each row has {copies} set{'s' * (copies > 1)} of masks, one an epoch in turn")
        if not self.held_out:
            log("no evaluation: the records have no split for it, or data.eval_split is empty")
        for dataset in self.held_out.values():
            rows = len(dataset)
            used = min(eval_batches(config, dataset) * config.batch_size, rows)
            log(f"evaluating on {used:,} of {rows:,} held-out rows")

    def _describe_length(self, length: int, dataset: Dataset, config: PretrainConfig, log) -> None:
        limited, rows = budget.of(config) is not None, len(dataset)
        sizes = config.batch_sizes.where(self.lengths, length)
        steps = sizes.combine(sizes, lambda size, _: min(size, 1)).total_before(config.steps)
        epochs = sizes.total_before(config.steps) / rows
        used = [size for size in sizes.values if size]
        low, high = min(used), max(used)
        batch = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        log(
            f"{rows:,} rows of {length} tokens in {config.data.dir}; {'at most ' * limited}"
            f"{steps:,} steps of {batch} rows: {_of_epochs(epochs)}"
        )
        if not limited and epochs > (_MANY_EPOCHS_CONTINUED if config.init_from else _MANY_EPOCHS):
            few = max(2, _FEW_EPOCHS * rows // high)
            flags = f": --config.steps={few} --config.optimizer.warmup_steps={few // 10}"
            log(
                f"warning: {_of_epochs(epochs)}: the model will see every row {epochs:,.0f} times; "
                f"{_FEW_EPOCHS} epochs are {few:,} steps{flags * (len(self.train) == 1)}"
            )


def _of_epochs(epochs: float) -> str:
    number = f"{epochs:,.0f}" if epochs >= 100 else f"{epochs:.3g}"
    return f"{number} epoch{'' if number == '1' else 's'}"


def eval_batches(config: PretrainConfig, dataset: Dataset) -> int:
    """Returns the number of batches of an evaluation on a dataset."""
    batches = -(-len(dataset) // config.batch_size)
    return min(batches, config.eval.batches or batches)


def open_records(config: PretrainConfig, workdir: os.PathLike | str, log) -> RunRecords:
    """Opens the records in `config.data.dir`.

    Raises:
        UserError: there are none, they are not valid, or they are not of the lengths of `length_ramp`.
    """
    data, lengths = config.data, config.lengths
    if not data.dir:
        raise UserError("no records given: set --config.data.dir to what `bert-jax data --output_dir` made")
    index_dir = "" if files.is_remote(workdir) else os.path.join(workdir, "index")
    data_dir = cache.localize(data.dir, log)

    def open_split(split: str) -> dict[int, Dataset]:
        if lengths:
            return records.open_by_length(data_dir, split, lengths.values, data.vocab, index_dir)
        dataset = records.open_dataset(data_dir, split, data.vocab, index_dir)
        return {dataset.max_seq_length: dataset}

    train = open_split(data.train_split)
    held_out = open_split(data.eval_split) if any(_is_held_out(data, one) for one in train.values()) else {}
    tokenizer = vocabularies.of_records(data_dir, next(iter(train.values())).manifest)
    return RunRecords(train, held_out, lengths or Ramp.constant(next(iter(train))), tokenizer)


def _is_held_out(data: PretrainDataConfig, train_set: Dataset) -> bool:
    """Returns whether the run is evaluated on the records of a training set.

    Packed records have held-out documents by default. Google records, like the reference's, have none.
    """
    optional = train_set.manifest["schema"] == google.SCHEMA
    splits = train_set.manifest["splits"]
    return bool(data.eval_split and splits.get(data.eval_split, {"rows": not optional})["rows"])
