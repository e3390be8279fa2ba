"""Reports the contents and the problems of records and vocabularies for `bert-jax inspect`."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from bert_jax import tokenization
from bert_jax.data import google, manifests, records
from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.io.wording import counted
from bert_jax.tokenization import templates

_CHUNK = 512
_HIGH_UNKNOWN_SHARE, _HIGH_DUPLICATE_SHARE = 0.05, 0.01
_FEW_SEQUENCES = 200  # with fewer sequences, a fraction is not judged
_SHARES = {  # usual fractions of label 1, by --nsp; the reference makes more than half of the pairs random
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
_MOST_HASHES = 1 << 20  # of rows that are kept; with more rows, duplicates are estimated


@dataclasses.dataclass
class Report:
    """The result of an inspection, which JSON can represent."""

    path: str
    kind: str  # such as "vocabulary" or "packed records"
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)
    examples: list[str] = dataclasses.field(default_factory=list)  # decoded sequences of some rows


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
    """Reads every row of a record directory, or of one of its files.

    If the records have a vocabulary, `vocab` is compared with it. `examples` rows of each split are decoded.
    """
    directory, name = (path, "") if files.is_directory(path) else os.path.split(path)
    directory = directory or "."
    report = Report(path, "records")
    tokenizer = None
    try:
        if files.exists(os.path.join(directory, manifests.FILE)):
            manifest = manifests.read(directory)
            if vocab and tokenization.load(vocab).settings()["digest"] != manifest["vocabulary"]["digest"]:
                report.problems.append(f"--vocab={vocab} is not the vocabulary of these records")
        else:
            names = [name] if name else records.foreign_files(directory)
            # Without any file, the error is that the manifest is missing.
            manifest = google.describe(directory, names, vocab) if names else manifests.read(directory)
        if manifest["vocabulary"]["digest"]:
            tokenizer = records.load_tokenizer(directory, manifest)
    except UserError as error:
        report.problems.append(str(error))
        return report
    report.kind = f"{manifest['schema']} records"
    report.facts = {setting: manifest[setting] for setting in _SETTINGS if setting in manifest}
    report.facts |= {"vocabulary": manifest["vocabulary"]} if tokenizer else {}
    report.facts["sources"] = len(manifest["sources"])
    for split, content in manifest["splits"].items():
        entries = [entry for entry in content["files"] if name in ("", entry["name"])]
        if not entries and name:
            continue
        counts, damaged = _Counts(manifest, sum(entry["rows"] for entry in entries)), 0
        for entry in entries:
            one_file = manifest | {"splits": {split: {"files": [entry]}}}
            for batch, rows, problem in _batches(directory, one_file, split):
                if problem:
                    report.problems.append(problem)
                    damaged += rows
                    continue
                if tokenizer:
                    for row in range(min(rows, max(0, examples - counts.sums["rows"]))):
                        report.examples += counts.decode(tokenizer, batch, row)
                counts.add(batch)
        facts = report.facts[split] = counts.facts() | {
            "files": len(entries),
            "bytes": sum(entry["bytes"] for entry in entries),
            "damaged_rows": damaged,
        }
        facts |= {"languages": content["languages"]} if "languages" in content else {}
        report.problems += [f"{split}: {problem}" for problem in counts.problems(facts)]
        if name or damaged or "version" not in manifest:
            continue  # without a version, the manifest has no counts to compare with
        for count in (*_COUNTS, "predictions"):
            if (number := counts.sums[count]) != content.get(count, number):
                report.problems.append(
                    f"{split} has {number} {count}, and the manifest says {content[count]}"
                )
        if not content["rows"]:
            report.problems.append(f"the split {split} is empty")
    return report


def _batches(
    directory: str, manifest: dict[str, Any], split: str
) -> Iterator[tuple[dict[str, np.ndarray], int, str]]:
    """Yields (batch, rows, "") for the valid rows of a split, and ({}, rows, problem) for the others."""
    try:
        dataset = records.open_split([(directory, manifest)], split)
    except UserError as error:
        yield {}, sum(entry["rows"] for entry in manifest["splits"][split]["files"]), str(error)
        return
    for start in range(0, len(dataset), _CHUNK):
        indices = np.arange(start, min(start + _CHUNK, len(dataset)))
        try:
            yield dataset.batch(indices), len(indices), ""
        except UserError:
            for index in indices:
                try:
                    yield dataset.batch(np.array([index])), 1, ""
                except UserError as error:
                    yield {}, 1, str(error)


def unusual_labels(nsp: str, share: float, sequences: int) -> str:
    """Returns a problem if the fraction of label 1 is unusual for this --nsp, else ""."""
    low, high, what = _SHARES.get(nsp, (0.0, 1.0, ""))
    if low <= share <= high or sequences < _FEW_SEQUENCES:
        return ""
    return (
        f"{share:.1%} {what}, where {low:.0%} to {high:.0%} is usual: are the documents very short, or "
        "sentences as long as a row?"
    )


def many_unknown(share: float) -> str:
    """Returns a problem if the fraction of [UNK] in a text is too large, else ""."""
    if share <= _HIGH_UNKNOWN_SHARE:
        return ""
    return f"{share:.1%} of the tokens are [UNK]: was the vocabulary made for another language or case?"


class _Counts:
    """Counts over the rows of a split."""

    def __init__(self, manifest: dict[str, Any], rows: int):
        self.length, self.special_ids = manifest["max_seq_length"], manifest["special_ids"]
        self.layout = None
        if self.special_ids:
            self.layout = templates.of(manifest["vocabulary"]).layout(self.special_ids)
        self.nsp = manifest.get("nsp", "next")
        self.labels = _LABELS.get(self.nsp)
        # In google records, each pass over a document masks different tokens of the same rows.
        passes = 1 if manifest["schema"] == "google" else manifest.get("dupe_factor", 1)
        self.repeated = passes > 1 or "languages" in manifest  # small languages are repeated
        self.sums: collections.Counter[str] = collections.Counter()
        self.every = 1 + rows // _MOST_HASHES
        self.hashes: set[bytes] = set()

    def add(self, batch: dict[str, np.ndarray]) -> None:
        masked, unmasked = batch, google.without_masks(batch)
        ids, lengths, starts = unmasked["input_ids"], batch["lengths"], batch["starts"]
        labels, present = batch["next_sentence_labels"], batch["first_lengths"] > 0
        ends = np.minimum(np.concatenate((starts[:, 1:], lengths[:, None]), axis=1), lengths[:, None])
        rows = np.broadcast_to(np.arange(len(ids))[:, None], present.shape)[present]
        starts, ends, firsts = starts[present], ends[present], batch["first_lengths"][present]
        sums = {
            "rows": len(lengths),
            "sequences": len(starts),
            "tokens": lengths.sum(),
            "labeled": (labels >= 0).sum(),
            "random_next": (labels == 1).sum(),
        }
        real = np.arange(self.length) < lengths[:, None]
        if self.layout:
            sums["misplaced"] = (~self.layout.matches(ids, rows, starts, ends, firsts)).sum()
            sums["unknown"] = (real & (ids == self.special_ids["unk"])).sum()
        if "masked_positions" in masked:
            used, predicted = masked["masked_weights"] > 0, masked["masked_labels"]
            shown = np.take_along_axis(masked["input_ids"], masked["masked_positions"], axis=1)
            sums |= {"predictions": used.sum(), "kept": (used & (shown == predicted)).sum()}
            if self.layout:
                fixed = np.isin(predicted, [self.special_ids["pad"], *self.layout.special_ids])
                sums["masked"] = (used & (shown == self.special_ids["mask"])).sum()
                sums["specials"] = (used & fixed).any(axis=1).sum()
        for name, value in sums.items():
            self.sums[name] += int(value)
        for row in masked["input_ids"]:
            digest = hashlib.blake2b(row.tobytes(), digest_size=8).digest()
            if int.from_bytes(digest, "big") % self.every == 0:
                self.sums["repeats"] += digest in self.hashes
                self.hashes.add(digest)

    def decode(self, tokenizer: tokenization.Tokenizer, batch: dict[str, np.ndarray], row: int) -> list[str]:
        """Returns a line for each sequence of a row, with the positions and tokens that are masked."""
        length = int(batch["lengths"][row])
        edges = [int(start) for start in batch["starts"][row] if start < length] + [length]
        ids = batch["input_ids"][row].tolist()
        texts = [tokenizer.decode(ids[start:end]) for start, end in itertools.pairwise(edges)]
        if "masked_positions" in batch:
            used = batch["masked_weights"][row] > 0
            positions, labels = batch["masked_positions"][row, used], batch["masked_labels"][row, used]
            predicted = zip(positions, labels, strict=True)
            texts[0] += " <- " + ", ".join(f"{place} {tokenizer.tokens[label]}" for place, label in predicted)
        if not self.labels:
            return texts
        labels = batch["next_sentence_labels"][row].tolist()
        return [f"({self.labels[label]}) {text}" for label, text in zip(labels, texts, strict=False)]

    def facts(self) -> dict[str, Any]:
        sums = self.sums
        facts: dict[str, Any] = {name: sums[name] for name in _COUNTS} | {
            "fill": sums["tokens"] / max(1, sums["rows"] * self.length),
            "random_next_share": sums["random_next"] / max(1, sums["labeled"]),
            "unknown_share": sums["unknown"] / max(1, sums["tokens"]),
            "duplicate_rows": sums["repeats"] * self.every,
        }
        if not self.labels:
            del facts["random_next"], facts["random_next_share"]
        if predictions := sums["predictions"]:
            facts |= {"predictions": predictions, "predicted_share": predictions / sums["tokens"]}
            facts |= {f"{name}_share": sums[name] / predictions for name in ("masked", "kept")}
        return facts

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
