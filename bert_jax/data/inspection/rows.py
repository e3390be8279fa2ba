"""Counts the rows of records, and compares them with the manifest and the vocabulary."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from bert_jax import tokenization
from bert_jax.data import records
from bert_jax.data.inspection.approx_distinct import DistinctSample
from bert_jax.data.inspection.report import Report
from bert_jax.data.inspection.vocabularies import load_vocabulary
from bert_jax.errors import UserError
from bert_jax.io.wording import counted
from bert_jax.tokenization import templates

_CHUNK = 512
_HIGH_UNKNOWN_SHARE = 0.05
_SHARES = {  # the usual shares of label 1, by --nsp; the reference makes more than half of the pairs random
    "next": (0.4, 0.7, "of the next sentences are random"),
    "sop": (0.4, 0.6, "of the segments are swapped"),
}
LABELS = {  # names of the labels in the printed examples, by --nsp
    "next": {1: "random next", 0: "next", -1: "no next"},
    "sop": {1: "swapped", 0: "in order", -1: "no next"},
}
SETTINGS = (  # the entries of manifests that a report has, in this order
    *"max_seq_length max_sequences_per_row max_predictions_per_seq nsp seed dupe_factor".split(),
    *"whole_word_mask max_ngram input_format fingerprint text cleaned".split(),
    *"sampling_exponent sentence_language languages".split(),
)
_COUNTS = ("rows", "sequences", "tokens", "random_next")
_HIGH_DUPLICATE_SHARE = 0.01
_FEW_SEQUENCES = 200  # below this number a share is not judged


def unusual_labels(nsp: str, share: float, sequences: int) -> str:
    """Returns what is wrong with the labels of a split's sequences, or "" if nothing is.

    Args:
        nsp: what the second segments are, as --nsp names it.
        share: the share of label 1 among the sequences with a label.
        sequences: the number of sequences; a share of fewer than 200 is not judged.
    """
    low, high, what = _SHARES.get(nsp, (0.0, 1.0, ""))
    if low <= share <= high or sequences < _FEW_SEQUENCES:
        return ""
    return (
        f"{share:.1%} {what}, where {low:.0%} to {high:.0%} is usual: are the documents very short, or "
        "sentences as long as a row?"
    )


def many_unknown(share: float) -> str:
    """Returns what is wrong with the share of [UNK] among the tokens of a text, or "" if nothing is."""
    if share <= _HIGH_UNKNOWN_SHARE:
        return ""
    return f"{share:.1%} of the tokens are [UNK]: was the vocabulary made for another language or case?"


class Counts:
    """Accumulates counts over the rows of a split; each schema has a subclass.

    Args:
        manifest: the manifest of the records.

    Attributes:
        open_rows: opens a dataset, given [(directory, manifest)] and the split.
        compared: the counts that are in a manifest too.
        sums: the counts; "misplaced" counts sequences whose [CLS] and [SEP] are not where they belong.
    """

    open_rows: ClassVar[Callable[..., records.Dataset]]
    compared: ClassVar[tuple[str, ...]] = _COUNTS

    def __init__(self, manifest: dict[str, Any]):
        self.length, self.special_ids = manifest["max_seq_length"], manifest["special_ids"]
        self.template = templates.of(manifest["vocabulary"])
        self._nsp = manifest.get("nsp", "next")
        self.labels = LABELS.get(self._nsp)
        # Each pass over a document masks other tokens of the same rows in google records.
        passes = 1 if manifest.get("schema") == "google" else manifest.get("dupe_factor", 1)
        self._repeated = passes > 1 or "languages" in manifest  # of which small ones are repeated
        self.sums: collections.Counter[str] = collections.Counter()
        self._sequence_lengths = np.zeros(self.length + 1, np.int64)
        self._rows = DistinctSample()

    def add(self, batch: dict[str, np.ndarray]) -> None:
        """Adds the rows of a batch: calls `count` with the counts that are specific to the schema."""
        raise NotImplementedError

    def decode(self, tokenizer: tokenization.Tokenizer, batch: dict[str, np.ndarray], row: int) -> list[str]:
        """Returns a row of a batch as lines of text."""
        raise NotImplementedError

    def count(self, batch: dict[str, np.ndarray], found: dict[str, Any], lengths: np.ndarray) -> None:
        """Adds the counts of a batch to the sums.

        Args:
            batch: as `Dataset.batch` returns it.
            found: counts that are specific to the schema; it is extended in place.
            lengths: the length of each sequence, int [sequences].
        """
        labels = batch["next_sentence_labels"]
        found |= {
            "rows": len(batch["lengths"]),
            "sequences": len(lengths),
            "tokens": batch["lengths"].sum(),
            "labeled": (labels >= 0).sum(),
            "random_next": (labels == 1).sum(),
        }
        for name, value in found.items():
            self.sums[name] += int(value)
        self._sequence_lengths += np.bincount(lengths, minlength=self.length + 1)
        for row in batch["input_ids"]:
            self._rows.add(row.tobytes())

    def facts(self) -> dict[str, Any]:
        """Returns the facts of the split for the report."""
        sums = self.sums
        facts: dict[str, Any] = {name: sums[name] for name in _COUNTS} | {
            "fill": sums["tokens"] / max(1, sums["rows"] * self.length),
            "random_next_share": sums["random_next"] / max(1, sums["labeled"]),
            "unknown_share": sums["unknown"] / max(1, sums["tokens"]),
            "duplicate_rows": self._rows.repeats(),
        }
        if not self.labels:
            del facts["random_next"], facts["random_next_share"]
        if estimated := self._rows.how_estimated():
            facts["duplicate_rows_estimated"] = estimated
        return facts | {"sequence_lengths": self._sequence_lengths.tolist()}

    def problems(self, facts: dict[str, Any]) -> Iterator[str]:
        """Yields the problems that concern the rows of the split as a whole, given its `facts`."""
        if unusual := unusual_labels(self._nsp, facts.get("random_next_share", 0.0), facts["sequences"]):
            yield unusual
        if unknown := many_unknown(facts["unknown_share"]):
            yield unknown
        if not self._repeated and facts["duplicate_rows"] > _HIGH_DUPLICATE_SHARE * facts["rows"]:
            duplicates = counted(facts["duplicate_rows"], "row is a duplicate", "rows are duplicates")
            yield f"{duplicates}: does the corpus repeat documents?"
        if misplaced := self.sums["misplaced"]:
            yield (
                f"{counted(misplaced, 'sequence is', 'sequences are')} not [CLS] A [SEP] B [SEP]: were they "
                "made with another vocabulary?"
            )


def inspect_splits(
    report: Report,
    directory: str,
    manifest: dict[str, Any],
    new_counts: Callable[[dict[str, Any]], Counts],
    examples: int,
    file: str = "",
) -> None:
    """Adds the facts, problems and examples of records to a report.

    Args:
        report: the report to extend.
        directory: the record directory.
        manifest: the manifest; one without a version has no counts to compare with.
        new_counts: returns the `Counts` of a split.
        examples: the number of rows of each split to decode.
        file: the name of the only file to read; "" for all of them.
    """
    tokenizer = load_vocabulary(directory, manifest, report)
    for split, content in manifest["splits"].items():
        entries = [entry for entry in content["files"] if file in ("", entry["name"])]
        if file and not entries:
            continue
        counts, damaged = new_counts(manifest), 0
        for entry in entries:
            one_file = manifest | {"splits": {split: {"files": [entry]}}}
            try:
                dataset = counts.open_rows([(directory, one_file)], split)
            except UserError as error:
                report.problems.append(str(error))
                damaged += entry["rows"]
                continue
            for batch, problem in _sound_batches(dataset):
                if problem:
                    report.problems.append(problem)
                    damaged += 1
                    continue
                if tokenizer:
                    for row in range(min(len(batch["lengths"]), max(0, examples - counts.sums["rows"]))):
                        report.examples += counts.decode(tokenizer, batch, row)
                counts.add(batch)
        found = report.facts[split] = counts.facts() | {
            "files": len(entries),
            "bytes": sum(entry["bytes"] for entry in entries),
            "damaged_rows": damaged,
        }
        if "languages" in content:
            found["languages"] = content["languages"]
        report.problems += [f"{split}: {problem}" for problem in counts.problems(found)]
        if file or "version" not in manifest:
            continue
        for name in counts.compared:
            if not damaged and (number := counts.sums[name]) != content[name]:
                report.problems.append(f"{split} has {number} {name}, and the manifest says {content[name]}")
        if not content["rows"]:
            report.problems.append(f"the split {split} is empty")


def _sound_batches(dataset: records.Dataset) -> Iterator[tuple[dict[str, np.ndarray], str]]:
    """Yields (batch, "") for valid rows, and ({}, problem) for each invalid row."""
    for start in range(0, len(dataset), _CHUNK):
        indices = np.arange(start, min(start + _CHUNK, len(dataset)))
        try:
            yield dataset.batch(indices), ""
        except UserError:
            for index in indices:
                try:
                    yield dataset.batch(np.array([index])), ""
                except UserError as error:
                    yield {}, str(error)
