"""Reports the contents and the problems of records and vocabularies for `bert-jax inspect`."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax import tokenization
from bert_jax.data import approx_distinct, packed, records, tfrecord
from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.tokenization import templates

_CHUNK = 512
_HIGH_UNKNOWN_SHARE = 0.05
_SHARES = {  # the usual shares of label 1, by --nsp; the reference makes more than half of the pairs random
    "next": (0.4, 0.7, "of the next sentences are random"),
    "sop": (0.4, 0.6, "of the segments are swapped"),
}
LABELS = {  # names of the labels in the printed examples
    "next": {1: "random next", 0: "next", -1: "no next"},
    "sop": {1: "swapped", 0: "in order", -1: "no next"},
    "none": {-1: "no next"},
}
COUNTS = ("rows", "sequences", "tokens", "random_next")
_HIGH_DUPLICATE_SHARE = 0.01
_FEW_SEQUENCES = 200  # below this number a share is not judged


@dataclasses.dataclass
class Report:
    """The result of an inspection.

    Attributes:
        path: what was inspected.
        kind: the type of what was found, such as "vocabulary" or "packed records".
        facts: the contents, as values that JSON can represent.
        problems: what is wrong, one line each.
        examples: a few decoded rows, one line per sequence.
    """

    path: str
    kind: str
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)
    examples: list[str] = dataclasses.field(default_factory=list)


def inspect_vocabulary(path: str) -> Report:
    """Returns a report on a vocabulary; a file that BERT cannot use is reported as a problem."""
    report = Report(path, "vocabulary")
    try:
        tokenizer = tokenization.load(path)
    except UserError as error:
        report.problems.append(str(error))
        return report
    tokens = tokenizer.tokens
    report.facts = tokenizer.settings() | {
        "special_ids": {tokenizer.special_tokens[role]: i for role, i in tokenizer.special_ids.items()},
        "continuations": int(tokenizer.is_continuation.sum()),
        "unused": sum(token.startswith("[unused") for token in tokens),
        "longest": max(tokens, key=len),
    }
    return report


def inspect_record_file(path: str, examples: int = 3) -> Report:
    """Returns a report on one record file.

    If a manifest in the same directory lists the file, the rows are compared with it; otherwise only the CRCs
    are checked.
    """
    directory = files.parent(path)
    if files.exists(os.path.join(directory, packed.MANIFEST)):
        try:
            manifest = packed.read_manifest(directory)
        except UserError:
            return _inspect_plain_file(path)
        for split, content in manifest["splits"].items():
            entries = [entry for entry in content["files"] if entry["name"] == os.path.basename(path)]
            if entries:
                report = Report(path, "packed record file")
                tokenizer = load_vocabulary(directory, manifest, report)
                _inspect_split(report, directory, manifest, split, entries, tokenizer, examples)
                return report
    return _inspect_plain_file(path)


def _inspect_plain_file(path: str) -> Report:
    report = Report(path, "record file")
    try:
        file = tfrecord.RecordFile(path)
    except UserError as error:
        report.problems.append(str(error))
        return report
    report.facts = {"records": len(file), "bytes": file.size}
    features: collections.Counter[str] = collections.Counter()
    for offset in file.offsets.tolist():
        try:
            kinds = tfrecord.example_kinds(file.read_at(offset))
            features.update(f"{name}: {kind}" for name, kind in kinds.items())
        except UserError as error:
            report.problems.append(str(error))
        except ValueError as error:
            report.problems.append(f"{path} at byte {offset}: not a tf.train.Example ({error})")
    report.facts["features"] = dict(features)
    if not len(file):
        report.problems.append(f"{path} is empty")
    return report


def inspect_records(directory: str, examples: int = 3, vocab: str | None = None) -> Report:
    """Reads every row of a record directory and compares it with its manifest and its vocabulary.

    Args:
        directory: the record directory.
        examples: the number of rows to decode.
        vocab: the vocabulary with which the records are to be used; if it differs from that of the records,
            the report says so as a problem.
    """
    report = Report(directory, "packed records")
    try:
        manifest = packed.read_manifest(directory)
    except UserError as error:
        report.problems.append(str(error))
        return report
    names = (
        "max_seq_length",
        "max_sequences_per_row",
        "nsp",
        "seed",
        "dupe_factor",
        "input_format",
        "fingerprint",
        "text",
        "cleaned",
    )
    report.facts = {name: manifest[name] for name in names if name in manifest}
    report.facts["vocabulary"] = manifest["vocabulary"]
    report.facts["sources"] = len(manifest["sources"])
    tokenizer = load_vocabulary(directory, manifest, report)
    if vocab:
        _compare_vocabulary(vocab, manifest["vocabulary"], report)
    for split, content in manifest["splits"].items():
        _inspect_split(report, directory, manifest, split, content["files"], tokenizer, examples)
        compare(report, split, content)
    return report


def compare(report: Report, split: str, content: dict[str, Any], names: tuple[str, ...] = COUNTS) -> None:
    """Adds a problem for each count of a split that differs from the manifest, and for an empty split.

    Args:
        report: a report with the facts of the split.
        split: the name of the split.
        content: the manifest's entry for the split.
        names: the counts to compare.
    """
    found = report.facts[split]
    for name in names:
        if not found["damaged_rows"] and found[name] != content[name]:
            report.problems.append(f"{split} has {found[name]} {name}, and the manifest says {content[name]}")
    if not content["rows"]:
        report.problems.append(f"the split {split} is empty")


def load_vocabulary(
    directory: str, manifest: dict[str, Any], report: Report
) -> tokenization.Tokenizer | None:
    """Returns the tokenizer of records, or None if it is unavailable.

    A problem is added if the manifest names a vocabulary that cannot be loaded or has another digest.
    """
    settings = manifest["vocabulary"]
    if not settings["digest"]:
        return None
    path = os.path.join(directory, settings["file"])
    try:
        tokenizer = tokenization.load(
            path, lower_case=settings["lower_case"], strip_accents=settings["strip_accents"]
        )
    except UserError as error:
        report.problems.append(str(error))
        return None
    if tokenizer.digest != settings["digest"]:
        report.problems.append(
            f"{path} is not the vocabulary that the records were made with: copy that one here"
        )
        return None
    return tokenizer


def _compare_vocabulary(path: str, settings: dict[str, Any], report: Report) -> None:
    """Adds a problem if a vocabulary is not the one in the manifest of the records."""
    other = tokenization.load(
        path, lower_case=settings["lower_case"], strip_accents=settings["strip_accents"]
    ).settings()
    different = [
        f"{name} {other[name]!r}, not {settings[name]!r}"
        for name in ("kind", "size", "digest")
        if other[name] != settings[name]
    ]
    if different:
        report.problems.append(
            f"--vocab={path} is not the vocabulary of these records ({'; '.join(different)}): a model would "
            "read other words; give the one that lies beside them"
        )


class Counts:
    """Accumulates counts over the rows of a split.

    Attributes:
        sums: the counts; "misplaced" counts sequences whose [CLS] and [SEP] are not where they belong.
    """

    def __init__(self, manifest: dict[str, Any]):
        self.length, self.special_ids = manifest["max_seq_length"], manifest["special_ids"]
        self.sums: collections.Counter[str] = collections.Counter()
        self._sequence_lengths = np.zeros(self.length + 1, np.int64)
        self._rows = approx_distinct.DistinctSample()

    def add(self, batch: dict[str, np.ndarray]) -> None:
        """Adds the rows of a batch: calls `count` with the counts that are specific to the schema."""
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
            "labelled": (labels >= 0).sum(),
            "random_next": (labels == 1).sum(),
        }
        for name, value in found.items():
            self.sums[name] += int(value)
        self._sequence_lengths += np.bincount(lengths, minlength=self.length + 1)
        for row in batch["input_ids"]:
            self._rows.add(row.tobytes())

    def facts(self) -> dict[str, Any]:
        sums = self.sums
        facts: dict[str, Any] = {name: sums[name] for name in COUNTS} | {
            "fill": sums["tokens"] / max(1, sums["rows"] * self.length),
            "random_next_share": sums["random_next"] / max(1, sums["labelled"]),
            "unknown_share": sums["unknown"] / max(1, sums["tokens"]),
            "duplicate_rows": self._rows.repeats(),
        }
        if estimated := self._rows.how_estimated():
            facts["duplicate_rows_estimated"] = estimated
        return facts | {"sequence_lengths": self._sequence_lengths.tolist()}


class _PackedCounts(Counts):
    def __init__(self, manifest: dict[str, Any]):
        super().__init__(manifest)
        self._row_lengths = np.zeros(self.length + 1, np.int64)
        self._per_row = np.zeros(manifest["max_sequences_per_row"] + 1, np.int64)

    def add(self, batch: dict[str, np.ndarray]) -> None:
        ids, lengths, starts = batch["input_ids"], batch["lengths"], batch["starts"]
        present = batch["first_lengths"] > 0
        ends = np.minimum(np.concatenate((starts[:, 1:], lengths[:, None]), axis=1), lengths[:, None])
        rows = np.broadcast_to(np.arange(len(ids))[:, None], present.shape)[present]
        starts, ends, firsts = starts[present], ends[present], batch["first_lengths"][present]
        self._row_lengths += np.bincount(lengths, minlength=self.length + 1)
        self._per_row += np.bincount(present.sum(axis=1), minlength=len(self._per_row))
        placed = templates.BERT.layout(self.special_ids).matches(ids, rows, starts, ends, firsts)
        real = np.arange(self.length) < lengths[:, None]
        unknown = ((ids == self.special_ids["unk"]) & real).sum()
        self.count(batch, {"misplaced": (~placed).sum(), "unknown": unknown}, ends - starts)

    def facts(self) -> dict[str, Any]:
        by_row = {"row_lengths": self._row_lengths.tolist(), "sequences_per_row": self._per_row.tolist()}
        return super().facts() | by_row


def read_split(
    report: Report,
    directory: str,
    split: str,
    entries: Sequence[dict[str, Any]],
    manifest: dict[str, Any],
    open_rows: Callable[..., records.Dataset],
    counts: Counts,
    decode: Callable[[dict[str, np.ndarray], int], list[str]] | None,
    examples: int,
) -> None:
    """Adds the facts, problems and examples of the files of a split to a report.

    Args:
        report: the report to extend.
        directory: the record directory.
        split: the name of the split.
        entries: the manifest's entries for the files to read.
        manifest: the manifest.
        open_rows: opens a dataset, given [(directory, manifest)] and the split.
        counts: accumulates the rows.
        decode: returns lines of text for one row of a batch; None for no examples.
        examples: the number of rows to decode.
    """
    damaged = 0
    for entry in entries:
        one_file = manifest | {"splits": {split: {"files": [entry]}}}
        try:
            dataset = open_rows([(directory, one_file)], split)
        except UserError as error:
            report.problems.append(str(error))
            damaged += entry["rows"]
            continue
        for batch, problem in _sound_batches(dataset):
            if problem:
                report.problems.append(problem)
                damaged += 1
                continue
            if decode is not None:
                shown = range(min(len(batch["lengths"]), max(0, examples - counts.sums["rows"])))
                report.examples += [line for row in shown for line in decode(batch, row)]
            counts.add(batch)
    report.facts[split] = counts.facts() | {
        "files": len(entries),
        "bytes": sum(entry["bytes"] for entry in entries),
        "damaged_rows": damaged,
    }
    nsp = manifest.get("nsp", "next")
    report.problems += _judge(report.facts[split], counts.sums["misplaced"], split, nsp)


def _inspect_split(
    report: Report,
    directory: str,
    manifest: dict[str, Any],
    split: str,
    entries: list[dict[str, Any]],
    tokenizer: tokenization.Tokenizer | None,
    examples: int,
) -> None:
    nsp = manifest.get("nsp", "next")
    decode = functools.partial(_decode, tokenizer=tokenizer, nsp=nsp) if tokenizer else None
    counts = _PackedCounts(manifest)
    read_split(report, directory, split, entries, manifest, packed.PackedDataset, counts, decode, examples)


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


def _judge(facts: dict[str, Any], misplaced: int, split: str, nsp: str) -> list[str]:
    """Returns the problems that concern the rows of a split as a whole."""
    problems = []
    share, unknown = facts["random_next_share"], facts["unknown_share"]
    if nsp in _SHARES and facts["sequences"] >= _FEW_SEQUENCES:
        low, high, what = _SHARES[nsp]
        if not low <= share <= high:
            problems.append(
                f"{split}: {share:.1%} {what}, where {low:.0%} to {high:.0%} is usual: are the documents "
                "very short, or a sentence each?"
            )
    if unknown > _HIGH_UNKNOWN_SHARE:
        problems.append(
            f"{split}: {unknown:.1%} of the tokens are [UNK]: was the vocabulary made for another language "
            "or case?"
        )
    if facts["duplicate_rows"] > _HIGH_DUPLICATE_SHARE * facts["rows"]:
        problems.append(
            f"{split}: {facts['duplicate_rows']} rows are duplicates: does the corpus repeat documents?"
        )
    if misplaced:
        problems.append(
            f"{split}: {misplaced} sequences are not [CLS] A [SEP] B [SEP]: were they made with "
            "another vocabulary?"
        )
    return problems


def _decode(batch: dict[str, np.ndarray], row: int, tokenizer: tokenization.Tokenizer, nsp: str) -> list[str]:
    """Returns the sequences of a row as text, each with its label."""
    lines = []
    length = int(batch["lengths"][row])
    edges = [int(start) for start in batch["starts"][row] if start < length] + [length]
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        label = LABELS[nsp][int(batch["next_sentence_labels"][row, number])]
        lines.append(f"({label}) {tokenizer.decode(batch['input_ids'][row, start:end].tolist())}")
    return lines


def text_histogram(counts: list[int], bins: int = 8, width: int = 40) -> list[str]:
    """Returns a histogram as lines of text.

    Args:
        counts: `counts[i]` is the number of items of size i.
        bins: the number of ranges of equal width into which the sizes are grouped.
        width: the length of the longest bar, in characters.
    """
    edges = np.linspace(1, len(counts), bins + 1).astype(int)
    sums = [sum(counts[low:high]) for low, high in itertools.pairwise(edges)]
    most, total = max(1, *sums), max(1, sum(sums))
    digits = len(str(len(counts) - 1))
    return [
        f"{low:{digits}d}-{high - 1:<{digits}d} {'#' * -(-count * width // most):{width}s} "
        f"{count / total:6.1%}"
        for low, high, count in zip(edges, edges[1:], sums, strict=False)
    ]
