"""Reports the contents and the problems of google records for `bert-jax inspect`."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np

from bert_jax import tokenization
from bert_jax.data import google, inspection, packed, records, tfrecord
from bert_jax.data.inspection import Report
from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.tokenization import templates


def inspect(path: str, vocab: str = "", examples: int = 3) -> Report | None:
    """Compares every row of google records with the vocabulary and the manifest, if there is one.

    Args:
        path: a record directory or a record file.
        vocab: the vocabulary of records that another program wrote; without it, ids are neither checked nor
            decoded.
        examples: the number of rows to decode.

    Returns:
        The report, or None if there are no google records.
    """
    directory, wanted = (path, "") if files.is_directory(path) else os.path.split(path)
    directory = directory or "."
    report = Report(path, "google records" if path == directory else "google record file")
    try:
        if files.exists(os.path.join(directory, packed.MANIFEST)):
            manifest = packed.read_manifest(directory, schema=None)
            if manifest["schema"] != google.SCHEMA:
                return None
        else:
            names = [wanted] if wanted else records.foreign_files(directory)
            if not any(_is_google(os.path.join(directory, name)) for name in names):
                return None
            manifest = google.describe(directory, names, vocab)
    except UserError as error:
        report.problems.append(str(error))
        return report
    shown = (
        "max_seq_length",
        "max_predictions_per_seq",
        "seed",
        "dupe_factor",
        "whole_word_mask",
        "max_ngram",
    )
    report.facts = {name: manifest[name] for name in (*shown, "fingerprint", "text") if name in manifest}
    if manifest["vocabulary"]["digest"]:
        report.facts["vocabulary"] = manifest["vocabulary"]
    tokenizer = inspection.load_vocabulary(directory, manifest, report)
    for split, content in manifest["splits"].items():
        entries = [entry for entry in content["files"] if wanted in ("", entry["name"])]
        if entries:
            _inspect_split(report, directory, manifest, split, entries, tokenizer, examples)
        if not wanted and manifest.get("version"):
            inspection.compare(report, split, content, (*inspection.COUNTS, "predictions"))
    return report


def _is_google(path: str) -> bool:
    """Returns whether the first record of a file can be read and has masks."""
    try:
        file = tfrecord.RecordFile(path)
        return len(file) > 0 and "masked_lm_ids" in tfrecord.parse_lists(file[0])
    except (UserError, ValueError):
        return False


class _Counts(inspection.Counts):
    def add(self, batch: dict[str, np.ndarray]) -> None:
        lengths = batch["lengths"]
        used = batch["masked_weights"] > 0
        shown = np.take_along_axis(batch["input_ids"], batch["masked_positions"], axis=1)
        found = {"predictions": used.sum(), "kept": (used & (shown == batch["masked_labels"])).sum()}
        if self.special_ids:
            ids = unmasked(batch)
            rows, real = np.arange(len(ids)), np.arange(self.length) < lengths[:, None]
            layout = templates.BERT.layout(self.special_ids)
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


def unmasked(batch: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the token ids of a batch before masking, int32 [B, L]."""
    ids = batch["input_ids"].copy()
    rows, slots = np.nonzero(batch["masked_weights"] > 0)
    ids[rows, batch["masked_positions"][rows, slots]] = batch["masked_labels"][rows, slots]
    return ids


def _inspect_split(
    report: Report,
    directory: str,
    manifest: dict[str, Any],
    split: str,
    entries: list[dict[str, Any]],
    tokenizer: tokenization.Tokenizer | None,
    examples: int,
) -> None:
    counts = _Counts(manifest)
    decode = functools.partial(_decode, tokenizer=tokenizer) if tokenizer else None
    inspection.read_split(
        report, directory, split, entries, manifest, google.GoogleDataset, counts, decode, examples
    )
    if counts.sums["specials"]:
        report.problems.append(
            f"{split}: {counts.sums['specials']} rows are to predict [PAD], [CLS] or [SEP]: were they made "
            "with another vocabulary?"
        )


def _decode(batch: dict[str, np.ndarray], row: int, tokenizer: tokenization.Tokenizer) -> list[str]:
    """Returns a row as text, with its label and the tokens to predict."""
    ids = batch["input_ids"][row, : batch["lengths"][row]].tolist()
    used = batch["masked_weights"][row] > 0
    positions, labels = batch["masked_positions"][row, used], batch["masked_labels"][row, used]
    predicted = ", ".join(
        f"{position} {tokenizer.tokens[label]}" for position, label in zip(positions, labels, strict=True)
    )
    label = inspection.LABELS["next"][int(batch["next_sentence_labels"][row, 0])]
    return [f"({label}) {tokenizer.decode(ids)} <- {predicted}"]
