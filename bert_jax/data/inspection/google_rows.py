"""Inspects google records."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from bert_jax import tokenization
from bert_jax.data import google, manifests, records, tf_example, tfrecord
from bert_jax.data.inspection.report import Report
from bert_jax.data.inspection.rows import LABELS, SETTINGS, Counts, inspect_splits
from bert_jax.data.inspection.vocabularies import compare_vocabulary
from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.io.wording import counted


def inspect_google_records(path: str, vocab: str = "", examples: int = 3) -> Report | None:
    """Compares every row of google records with the vocabulary and the manifest, if there is one.

    Args:
        path: a record directory or a record file.
        vocab: the vocabulary of records that another program wrote; without it, ids are neither checked nor
            decoded. For records with a manifest, see `inspect_records`.
        examples: the number of rows to decode.

    Returns:
        The report, or None if there are no google records.
    """
    directory, wanted = (path, "") if files.is_directory(path) else os.path.split(path)
    directory = directory or "."
    report = Report(path, "google records" if path == directory else "google record file")
    try:
        if files.exists(os.path.join(directory, manifests.FILE)):
            manifest = manifests.read(directory)
            if manifest["schema"] != google.SCHEMA:
                return None
            if vocab:
                compare_vocabulary(vocab, manifest["vocabulary"], report)
        else:
            names = [wanted] if wanted else records.foreign_files(directory)
            if not any(_is_google(os.path.join(directory, name)) for name in names):
                return None
            manifest = google.describe(directory, names, vocab)
    except UserError as error:
        report.problems.append(str(error))
        return report
    report.facts = {name: manifest[name] for name in SETTINGS if name in manifest}
    if manifest["vocabulary"]["digest"]:
        report.facts["vocabulary"] = manifest["vocabulary"]
    inspect_splits(report, directory, manifest, _GoogleCounts, examples, wanted)
    return report


def _is_google(path: str) -> bool:
    """Returns whether the first record of a file can be read and has masks."""
    try:
        file = tfrecord.RecordFile(path)
        return len(file) > 0 and "masked_lm_ids" in tf_example.parse_lists(file[0])
    except (UserError, ValueError):
        return False


class _GoogleCounts(Counts):
    open_rows = google.GoogleDataset
    compared = (*Counts.compared, "predictions")

    def add(self, batch: dict[str, np.ndarray]) -> None:
        lengths = batch["lengths"]
        used = batch["masked_weights"] > 0
        shown = np.take_along_axis(batch["input_ids"], batch["masked_positions"], axis=1)
        found = {"predictions": used.sum(), "kept": (used & (shown == batch["masked_labels"])).sum()}
        if self.special_ids:
            ids = google.without_masks(batch)["input_ids"]
            rows, real = np.arange(len(ids)), np.arange(self.length) < lengths[:, None]
            layout = self.template.layout(self.special_ids)
            placed = layout.matches(ids, rows, np.zeros_like(lengths), lengths, batch["first_lengths"][:, 0])
            fixed = np.isin(batch["masked_labels"], [self.special_ids["pad"], *layout.special_ids])
            found |= {
                "masked": (used & (shown == self.special_ids["mask"])).sum(),
                "unknown": (real & (ids == self.special_ids["unk"])).sum(),
                "misplaced": (~placed).sum(),
                "specials": (used & fixed).any(axis=1).sum(),
            }
        self.count(batch, found, lengths)

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

    def problems(self, facts: dict[str, Any]) -> Iterator[str]:
        yield from super().problems(facts)
        if specials := self.sums["specials"]:
            yield (
                f"{counted(specials, 'row is', 'rows are')} to predict [PAD], [CLS] or [SEP]: were they made "
                "with another vocabulary?"
            )

    def decode(self, tokenizer: tokenization.Tokenizer, batch: dict[str, np.ndarray], row: int) -> list[str]:
        """Returns a row as text, with its label and the tokens to predict."""
        ids = batch["input_ids"][row, : batch["lengths"][row]].tolist()
        used = batch["masked_weights"][row] > 0
        positions, labels = batch["masked_positions"][row, used], batch["masked_labels"][row, used]
        predicted = ", ".join(
            f"{position} {tokenizer.tokens[label]}" for position, label in zip(positions, labels, strict=True)
        )
        label = LABELS["next"][int(batch["next_sentence_labels"][row, 0])]
        return [f"({label}) {tokenizer.decode(ids)} <- {predicted}"]
