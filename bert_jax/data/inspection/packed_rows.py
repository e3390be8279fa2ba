"""Inspects packed records."""

from __future__ import annotations

import collections
import itertools
import os
from typing import Any

import numpy as np

from bert_jax import tokenization
from bert_jax.data import manifests, packed, tf_example, tfrecord
from bert_jax.data.inspection.report import Report
from bert_jax.data.inspection.rows import SETTINGS, Counts, inspect_splits
from bert_jax.data.inspection.vocabularies import compare_vocabulary
from bert_jax.errors import UserError
from bert_jax.io import files


def inspect_record_file(path: str, examples: int = 3, vocab: str | None = None) -> Report:
    """Returns a report on one record file.

    If a manifest in the same directory lists the file, the rows are compared with it; otherwise only the CRCs
    are checked.

    Args:
        path: the record file.
        examples: the number of rows to decode.
        vocab: see `inspect_records`; if no manifest lists the file, the report says as a problem that it has
            no effect.
    """
    directory = files.parent(path)
    if files.exists(os.path.join(directory, manifests.FILE)):
        try:
            manifest = manifests.read(directory, packed.SCHEMA)
        except UserError:
            return _inspect_plain_file(path, vocab)
        name = os.path.basename(path)
        if any(name == entry["name"] for split in manifest["splits"].values() for entry in split["files"]):
            report = Report(path, "packed record file")
            if vocab:
                compare_vocabulary(vocab, manifest["vocabulary"], report)
            inspect_splits(report, directory, manifest, _PackedCounts, examples, name)
            return report
    return _inspect_plain_file(path, vocab)


def _inspect_plain_file(path: str, vocab: str | None) -> Report:
    report = Report(path, "record file")
    if vocab:
        report.problems.append(
            f"--vocab={vocab} has no effect on {path}: no {manifests.FILE} beside it lists the file, and its "
            "rows have no masks; leave the flag out"
        )
    try:
        file = tfrecord.RecordFile(path)
    except UserError as error:
        report.problems.append(str(error))
        return report
    report.facts = {"records": len(file), "bytes": file.size}
    features: collections.Counter[str] = collections.Counter()
    for offset in file.offsets.tolist():
        try:
            kinds = tf_example.example_kinds(file.read_at(offset))
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
        manifest = manifests.read(directory, packed.SCHEMA)
    except UserError as error:
        report.problems.append(str(error))
        return report
    report.facts = {name: manifest[name] for name in SETTINGS if name in manifest}
    report.facts["vocabulary"] = manifest["vocabulary"]
    report.facts["sources"] = len(manifest["sources"])
    if vocab:
        compare_vocabulary(vocab, manifest["vocabulary"], report)
    inspect_splits(report, directory, manifest, _PackedCounts, examples)
    return report


class _PackedCounts(Counts):
    open_rows = packed.PackedDataset

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
        placed = self.template.layout(self.special_ids).matches(ids, rows, starts, ends, firsts)
        real = np.arange(self.length) < lengths[:, None]
        unknown = ((ids == self.special_ids["unk"]) & real).sum()
        self.count(batch, {"misplaced": (~placed).sum(), "unknown": unknown}, ends - starts)

    def facts(self) -> dict[str, Any]:
        by_row = {"row_lengths": self._row_lengths.tolist(), "sequences_per_row": self._per_row.tolist()}
        return super().facts() | by_row

    def decode(self, tokenizer: tokenization.Tokenizer, batch: dict[str, np.ndarray], row: int) -> list[str]:
        """Returns the sequences of a row as text, each with its label, if they have labels."""
        length = int(batch["lengths"][row])
        edges = [int(start) for start in batch["starts"][row] if start < length] + [length]
        texts = [
            tokenizer.decode(batch["input_ids"][row, start:end].tolist())
            for start, end in itertools.pairwise(edges)
        ]
        if not self.labels:
            return texts
        labels = batch["next_sentence_labels"][row].tolist()
        return [f"({self.labels[label]}) {text}" for label, text in zip(labels, texts, strict=False)]
