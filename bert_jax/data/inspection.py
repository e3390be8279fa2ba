"""Reports the contents and the problems of records and vocabularies for `bert-jax inspect`."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from bert_jax import tokenization
from bert_jax.data import google, manifests, packed, records, tf_example, tfrecord
from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.io.wording import counted
from bert_jax.tokenization import templates

_CHUNK = 512
_HIGH_UNKNOWN_SHARE = 0.05
_HIGH_DUPLICATE_SHARE = 0.01
_FEW_SEQUENCES = 200  # below this number a share is not judged
_SHARES = {  # the usual shares of label 1, by --nsp; the reference makes more than half of the pairs random
    "next": (0.4, 0.7, "of the next sentences are random"),
    "sop": (0.4, 0.6, "of the segments are swapped"),
}
_LABELS = {  # names of the labels in the printed examples, by --nsp
    "next": {1: "random next", 0: "next", -1: "no next"},
    "sop": {1: "swapped", 0: "in order", -1: "no next"},
}
_SETTINGS = (  # the entries of manifests that a report has, in this order
    *"max_seq_length max_sequences_per_row max_predictions_per_seq nsp seed dupe_factor".split(),
    *"whole_word_mask max_ngram input_format fingerprint text cleaned".split(),
    *"sampling_exponent sentence_language languages".split(),
)
_COUNTS = ("rows", "sequences", "tokens", "random_next")
_MOST_HASHES = 1 << 20


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


class DistinctSample:
    """Counts the repeats in a stream of any length from the hashes of a sample of its distinct items.

    An item is in the sample if its hash starts with `halvings` zero bits, so either all or none of its copies
    are. The memory is about 200 MB at most, and 100 MB if few items repeat.
    """

    def __init__(self, most: int = _MOST_HASHES):
        self._most = most
        self._counts: dict[int, int] = {}
        self._sizes: dict[int, int] = {}  # of the items that have occurred again
        self._bytes = 0
        self.halvings = 0

    def add(self, item: bytes) -> None:
        """Counts an item."""
        value = int.from_bytes(hashlib.blake2b(item, digest_size=8).digest(), "big")
        self._bytes += len(item)
        if value >> (64 - self.halvings):
            return
        if value in self._counts:
            self._sizes[value] = len(item)
        self._counts[value] = self._counts.get(value, 0) + 1
        while len(self._counts) > self._most:
            self.halvings += 1
            bits = 64 - self.halvings
            self._counts = {value: count for value, count in self._counts.items() if not value >> bits}
            self._sizes = {value: size for value, size in self._sizes.items() if not value >> bits}

    def repeats(self) -> int:
        """Returns the number of items that repeat an earlier one: exact while `halvings` is 0."""
        return (sum(self._counts.values()) - len(self._counts)) << self.halvings

    def repeated_share(self) -> float:
        """Returns the share of all items that repeat an earlier one."""
        total = sum(self._counts.values())
        return (total - len(self._counts)) / total if total else 0.0

    def repeated_share_of_bytes(self) -> float:
        """Returns the share of the bytes of all items that are in items which repeat an earlier one."""
        repeated = sum((self._counts[value] - 1) * size for value, size in self._sizes.items())
        return (repeated << self.halvings) / self._bytes if self._bytes else 0.0

    def how_estimated(self) -> str:
        """Returns a description of the sample if the numbers are estimates, or "" if they are exact."""
        return f"from one in {1 << self.halvings} of the distinct ones" if self.halvings else ""


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


def inspect_records(path: str, vocab: str = "", examples: int = 3) -> Report:
    """Reads every row of records and compares it with the manifest and the vocabulary.

    Args:
        path: a record directory or a record file. If no manifest beside a file lists it and its rows have no
            static masks, only the CRCs are checked.
        vocab: the vocabulary with which the records are to be used; if it differs from theirs, the report
            says so. Google records without a manifest are checked and decoded with it.
        examples: the number of rows of each split to decode.
    """
    directory, name = (path, "") if files.is_directory(path) else os.path.split(path)
    directory = directory or "."
    unit = "record file" if name else "records"
    report = Report(path, f"packed {unit}")
    try:
        if files.exists(os.path.join(directory, manifests.FILE)):
            manifest = manifests.read(directory)
            listed = {entry["name"] for split in manifest["splits"].values() for entry in split["files"]}
            if name and name not in listed:
                return _inspect_plain_file(path, vocab)
            if vocab:
                _compare_vocabulary(vocab, manifest["vocabulary"], report)
        else:
            names = [name] if name else records.foreign_files(directory)
            if name and not _is_google(path):
                return _inspect_plain_file(path, vocab)
            if not name and not has_google_records(directory):
                manifests.read(directory)  # raises the error that the manifest is missing
            manifest = google.describe(directory, names, vocab)
    except UserError as error:
        report.problems.append(str(error))
        return report
    is_google = manifest["schema"] == google.SCHEMA
    report.kind = f"google {unit}" if is_google else report.kind
    report.facts = {setting: manifest[setting] for setting in _SETTINGS if setting in manifest}
    if manifest["vocabulary"]["digest"]:
        report.facts["vocabulary"] = manifest["vocabulary"]
    if not is_google:
        report.facts["sources"] = len(manifest["sources"])
    _inspect_splits(
        report, directory, manifest, _GoogleCounts if is_google else _PackedCounts, examples, name
    )
    return report


def has_google_records(directory: str) -> bool:
    """Returns whether a directory without a manifest has record files with static masks."""
    return any(_is_google(os.path.join(directory, name)) for name in records.foreign_files(directory))


def _is_google(path: str) -> bool:
    """Returns whether the first record of a file can be read and has masks."""
    try:
        file = tfrecord.RecordFile(path)
        return len(file) > 0 and "masked_lm_ids" in tf_example.parse_lists(file[0])
    except (UserError, ValueError):
        return False


def _inspect_plain_file(path: str, vocab: str) -> Report:
    report = Report(path, "record file")
    if vocab:
        report.problems.append(
            f"--vocab={vocab} has no effect on {path}: no {manifests.FILE} beside it lists the file, and its "
            "rows have no masks"
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


def _compare_vocabulary(path: str, settings: dict[str, Any], report: Report) -> None:
    other = tokenization.load(path).settings()
    different = [
        f"{name} {other[name]!r}, not {settings[name]!r}"
        for name in ("kind", "size", "digest")
        if other[name] != settings[name]
    ]
    if different:
        report.problems.append(
            f"--vocab={path} is not the vocabulary of these records ({'; '.join(different)}): a model would "
            "read other words"
        )


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


class _Counts:
    """Counts over the rows of a split; each schema has a subclass.

    `sums["misplaced"]` counts sequences whose [CLS] and [SEP] are not where they belong.
    """

    open_rows: ClassVar[Callable[..., records.Dataset]]
    compared: ClassVar[tuple[str, ...]] = _COUNTS  # with the manifest

    def __init__(self, manifest: dict[str, Any]):
        self.length, self.special_ids = manifest["max_seq_length"], manifest["special_ids"]
        self.template = templates.of(manifest["vocabulary"])
        self.nsp = manifest.get("nsp", "next")
        self.labels = _LABELS.get(self.nsp)
        # Each pass over a document masks other tokens of the same rows in google records.
        passes = 1 if manifest.get("schema") == "google" else manifest.get("dupe_factor", 1)
        self.repeated = passes > 1 or "languages" in manifest  # of which small ones are repeated
        self.sums: collections.Counter[str] = collections.Counter()
        self.sequence_lengths = np.zeros(self.length + 1, np.int64)
        self.rows = DistinctSample()

    def add(self, batch: dict[str, np.ndarray]) -> None:
        """Adds the rows of a batch."""
        sums, lengths = self.of_batch(batch)
        labels = batch["next_sentence_labels"]
        sums |= {
            "rows": len(batch["lengths"]),
            "sequences": len(lengths),
            "tokens": batch["lengths"].sum(),
            "labeled": (labels >= 0).sum(),
            "random_next": (labels == 1).sum(),
        }
        for name, value in sums.items():
            self.sums[name] += int(value)
        self.sequence_lengths += np.bincount(lengths, minlength=self.length + 1)
        for row in batch["input_ids"]:
            self.rows.add(row.tobytes())

    def of_batch(self, batch: dict[str, np.ndarray]) -> tuple[dict[str, Any], np.ndarray]:
        """Returns the counts that are specific to the schema, and the length of each sequence."""
        raise NotImplementedError

    def decode(self, tokenizer: tokenization.Tokenizer, batch: dict[str, np.ndarray], row: int) -> list[str]:
        """Returns a row of a batch as lines of text."""
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """Returns the facts of the split for the report."""
        sums = self.sums
        facts: dict[str, Any] = {name: sums[name] for name in _COUNTS} | {
            "fill": sums["tokens"] / max(1, sums["rows"] * self.length),
            "random_next_share": sums["random_next"] / max(1, sums["labeled"]),
            "unknown_share": sums["unknown"] / max(1, sums["tokens"]),
            "duplicate_rows": self.rows.repeats(),
        }
        if not self.labels:
            del facts["random_next"], facts["random_next_share"]
        if estimated := self.rows.how_estimated():
            facts["duplicate_rows_estimated"] = estimated
        return facts | {"sequence_lengths": self.sequence_lengths.tolist()}

    def problems(self, facts: dict[str, Any]) -> Iterator[str]:
        """Yields the problems that concern the rows of the split as a whole, given its `facts`."""
        if unusual := unusual_labels(self.nsp, facts.get("random_next_share", 0.0), facts["sequences"]):
            yield unusual
        if unknown := many_unknown(facts["unknown_share"]):
            yield unknown
        if not self.repeated and facts["duplicate_rows"] > _HIGH_DUPLICATE_SHARE * facts["rows"]:
            duplicates = counted(facts["duplicate_rows"], "row is a duplicate", "rows are duplicates")
            yield f"{duplicates}: does the corpus repeat documents?"
        if misplaced := self.sums["misplaced"]:
            yield (
                f"{counted(misplaced, 'sequence is', 'sequences are')} not [CLS] A [SEP] B [SEP]: were they "
                "made with another vocabulary?"
            )
        if specials := self.sums["specials"]:
            yield (
                f"{counted(specials, 'row is', 'rows are')} to predict [PAD], [CLS] or [SEP]: were they made "
                "with another vocabulary?"
            )


class _PackedCounts(_Counts):
    open_rows = packed.PackedDataset

    def __init__(self, manifest: dict[str, Any]):
        super().__init__(manifest)
        self._row_lengths = np.zeros(self.length + 1, np.int64)
        self._per_row = np.zeros(manifest["max_sequences_per_row"] + 1, np.int64)

    def of_batch(self, batch: dict[str, np.ndarray]) -> tuple[dict[str, Any], np.ndarray]:
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
        return {"misplaced": (~placed).sum(), "unknown": unknown}, ends - starts

    def facts(self) -> dict[str, Any]:
        by_row = {"row_lengths": self._row_lengths.tolist(), "sequences_per_row": self._per_row.tolist()}
        return super().facts() | by_row

    def decode(self, tokenizer: tokenization.Tokenizer, batch: dict[str, np.ndarray], row: int) -> list[str]:
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


class _GoogleCounts(_Counts):
    open_rows = google.GoogleDataset
    compared = (*_COUNTS, "predictions")

    def of_batch(self, batch: dict[str, np.ndarray]) -> tuple[dict[str, Any], np.ndarray]:
        lengths = batch["lengths"]
        used = batch["masked_weights"] > 0
        shown = np.take_along_axis(batch["input_ids"], batch["masked_positions"], axis=1)
        sums = {"predictions": used.sum(), "kept": (used & (shown == batch["masked_labels"])).sum()}
        if self.special_ids:
            ids = google.without_masks(batch)["input_ids"]
            rows, real = np.arange(len(ids)), np.arange(self.length) < lengths[:, None]
            layout = self.template.layout(self.special_ids)
            placed = layout.matches(ids, rows, np.zeros_like(lengths), lengths, batch["first_lengths"][:, 0])
            fixed = np.isin(batch["masked_labels"], [self.special_ids["pad"], *layout.special_ids])
            sums |= {
                "masked": (used & (shown == self.special_ids["mask"])).sum(),
                "unknown": (real & (ids == self.special_ids["unk"])).sum(),
                "misplaced": (~placed).sum(),
                "specials": (used & fixed).any(axis=1).sum(),
            }
        return sums, lengths

    def facts(self) -> dict[str, Any]:
        sums = self.sums
        facts = super().facts() | {
            "predictions": sums["predictions"],
            "predicted_share": sums["predictions"] / max(1, sums["tokens"]),
            "kept_share": sums["kept"] / max(1, sums["predictions"]),
        }
        if self.special_ids:
            facts["masked_share"] = sums["masked"] / max(1, sums["predictions"])
        return facts

    def decode(self, tokenizer: tokenization.Tokenizer, batch: dict[str, np.ndarray], row: int) -> list[str]:
        ids = batch["input_ids"][row, : batch["lengths"][row]].tolist()
        used = batch["masked_weights"][row] > 0
        positions, labels = batch["masked_positions"][row, used], batch["masked_labels"][row, used]
        predicted = ", ".join(
            f"{position} {tokenizer.tokens[label]}" for position, label in zip(positions, labels, strict=True)
        )
        label = _LABELS["next"][int(batch["next_sentence_labels"][row, 0])]
        return [f"({label}) {tokenizer.decode(ids)} <- {predicted}"]


def _inspect_splits(
    report: Report,
    directory: str,
    manifest: dict[str, Any],
    new_counts: Callable[[dict[str, Any]], _Counts],
    examples: int,
    file: str,
) -> None:
    """Adds the facts, problems and examples of records to a report.

    Only `file` is read unless it is "". A manifest without a version has no counts to compare with.
    """
    tokenizer = None
    if manifest["vocabulary"]["digest"]:
        path = manifests.vocabulary_path(directory, manifest["vocabulary"])
        try:
            tokenizer = tokenization.restore(path, manifest["vocabulary"])
        except UserError as error:
            report.problems.append(str(error))
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
            for batch, problem in _valid_batches(dataset):
                if problem:
                    report.problems.append(problem)
                    damaged += 1
                    continue
                if tokenizer:
                    for row in range(min(len(batch["lengths"]), max(0, examples - counts.sums["rows"]))):
                        report.examples += counts.decode(tokenizer, batch, row)
                counts.add(batch)
        facts = report.facts[split] = counts.facts() | {
            "files": len(entries),
            "bytes": sum(entry["bytes"] for entry in entries),
            "damaged_rows": damaged,
        }
        if "languages" in content:
            facts["languages"] = content["languages"]
        report.problems += [f"{split}: {problem}" for problem in counts.problems(facts)]
        if file or "version" not in manifest:
            continue
        for name in counts.compared:
            if not damaged and (number := counts.sums[name]) != content[name]:
                report.problems.append(f"{split} has {number} {name}, and the manifest says {content[name]}")
        if not content["rows"]:
            report.problems.append(f"the split {split} is empty")


def _valid_batches(dataset: records.Dataset) -> Iterator[tuple[dict[str, np.ndarray], str]]:
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
