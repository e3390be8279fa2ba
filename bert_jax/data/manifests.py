"""Defines, reads and merges `manifest.json`, the description of a record directory."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

from bert_jax.errors import UserError, reading
from bert_jax.io import files, json_files

FILE = "manifest.json"
VERSIONS = {"packed": 1, "google": 1}  # version of the manifest, by schema

_COUNT = range(0, 1 << 63)
_LENGTH = range(1, (1 << 16) + 1)  # starts and lengths are stored as uint16
_OF_LANGUAGE = ("documents", "rows", "sequences", "tokens")
_SPLIT = {
    "files": [{"name": str, "rows": _COUNT, "bytes": _COUNT, "crc32c?": range(0, 1 << 32)}],
    **dict.fromkeys(("documents", "rows", "sequences", "tokens", "random_next"), _COUNT),
    **dict.fromkeys(("labeled?", "predictions?"), _COUNT),
    "sequence_lengths?": [_COUNT],
    "sequences_per_row?": [_COUNT],
    "languages?": {str: dict.fromkeys(_OF_LANGUAGE, _COUNT)},
    **dict.fromkeys(("fill?", "random_next_share?"), float),
}
_SCHEMA = {
    "max_seq_length": _LENGTH,
    "max_sequences_per_row": _LENGTH,
    "max_predictions_per_seq?": _LENGTH,
    "nsp?": str,
    "seed?": int,
    "vocabulary": {
        "kind": str,
        "file": str,
        "digest": str,
        "size": range(1, (1 << 31) + 1),
        "lower_case": bool,
        "strip_accents": bool,
        "normalizer?": str,
    },
    "special_ids": dict.fromkeys(("pad", "unk", "cls", "sep", "mask"), range(0, 1 << 31)),
    "sources": [dict],
    "data_sets?": [str],
    "fingerprint": str,
    "text?": dict,
    "cleaned?": dict,
    "languages?": {str: {"tokens": _COUNT, **dict.fromkeys(("share_of_text", "used", "share"), float)}},
    "splits": {str: _SPLIT},
}


def parse(content: bytes, path: str) -> dict[str, Any]:
    """Parses and validates the content of the manifest at `path`.

    Raises UserError if it is no manifest, has another version, or names a file outside of its directory.
    """
    manifest = json_files.parse(content, path, {"schema": str, "version": int})
    found, version = manifest["schema"], manifest["version"]
    if version != VERSIONS.get(found):
        raise UserError(
            f"{path}: schema is {found!r:.60} and version {version}, expected "
            + " or ".join(f"{name!r} and {number}" for name, number in VERSIONS.items())
        )
    of_schema = {"max_predictions_per_seq": _LENGTH} if found == "google" else {}
    json_files.check(manifest, _SCHEMA | of_schema, path)
    names = [entry["name"] for split in manifest["splits"].values() for entry in split["files"]]
    for name in (manifest["vocabulary"]["file"], *names):
        if name in ("", ".", "..") or set(name) & set("/\\:\0\n"):
            raise UserError(f"{path}: it names the file {name[:100]!r}, expected a name without a folder")
    return manifest


def read(data_dir: str) -> dict[str, Any]:
    """Returns the manifest of a record directory. Raises UserError if it has no valid one."""
    path = os.path.join(data_dir, FILE)
    with reading(path):
        if not files.exists(path):
            raise UserError(f"{data_dir!r} has no {FILE}; expected the completed output of `bert-jax data`")
        return parse(files.read(path), path)


def merge(manifests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merges the manifests of record directories that are used as one dataset.

    There are next-sentence labels if any directory has them.
    """
    if len(manifests) == 1:
        return manifests[0]
    merged = dict(manifests[0])
    merged["max_sequences_per_row"] = max(manifest["max_sequences_per_row"] for manifest in manifests)
    # Records of earlier versions have labels, but their manifests do not say so.
    labeled = [manifest for manifest in manifests if manifest.get("nsp") != "none"]
    merged.pop("nsp", None)
    merged |= {name: one for name, one in (labeled or manifests)[0].items() if name == "nsp"}
    merged["sources"] = [source for manifest in manifests for source in manifest["sources"]]
    if named := {name: None for manifest in manifests for name in manifest.get("data_sets", ())}:
        merged["data_sets"] = list(named)
    merged["fingerprint"] = "+".join(manifest["fingerprint"] for manifest in manifests)
    merged["splits"] = {}
    merged.pop("languages", None)  # of the first directory
    for name in {name: None for manifest in manifests for name in manifest["splits"]}:
        parts = [manifest["splits"][name] for manifest in manifests if name in manifest["splits"]]
        merged["splits"][name] = merge_splits(parts, merged["max_seq_length"])
    return merged


def merge_splits(parts: Sequence[dict[str, Any]], max_seq_length: int) -> dict[str, Any]:
    """Sums the counts of a split over its parts: directories, or the buckets of a build.

    If the labels are not counted, as in google records and earlier versions, all sequences have one.
    """
    names = ["documents", "rows", "sequences", "tokens", "random_next"]
    names += [name for name in ("labeled", "predictions") if all(name in part for part in parts)]
    total: dict[str, Any] = {name: sum(part[name] for part in parts) for name in names}
    total["files"] = [file for part in parts for file in part["files"]]
    for name in ("sequence_lengths", "sequences_per_row"):
        if all(name in part for part in parts):
            columns = itertools.zip_longest(*(part[name] for part in parts), fillvalue=0)
            total[name] = [sum(column) for column in columns]
    if all("languages" in part for part in parts):
        total["languages"] = {
            language: {
                name: sum(part["languages"].get(language, {}).get(name, 0) for part in parts)
                for name in _OF_LANGUAGE
            }
            for language in {one: None for part in parts for one in part["languages"]}
        }
    return total | {
        "fill": total["tokens"] / max(1, total["rows"] * max_seq_length),
        "random_next_share": total["random_next"] / max(1, total.get("labeled", total["sequences"])),
    }


def check_alike(directories: Sequence[tuple[str, dict[str, Any]]], split: str) -> None:
    """Raises UserError if record directories, (directory, manifest) pairs, cannot be used as one dataset."""
    for setting in ("digest", "lower_case", "strip_accents", "normalizer", "template"):
        values = [(name, manifest["vocabulary"].get(setting)) for name, manifest in directories]
        _check_equal(values, "vocabulary" if setting == "digest" else setting)
    for setting in ("schema", "max_seq_length", "max_predictions_per_seq"):
        _check_equal([(name, manifest.get(setting)) for name, manifest in directories], setting)
    labels = [(name, manifest.get("nsp", "none")) for name, manifest in directories]
    _check_equal([one for one in labels if one[1] != "none"], "labels (--nsp)")
    available = list({split: None for _, manifest in directories for split in manifest["splits"]})
    if split not in available:
        names = ",".join(name for name, _ in directories)
        raise UserError(f"the records {names} have no split {split!r}, only {', '.join(available)}")


def _check_equal(values: Sequence[tuple[str, Any]], what: str) -> None:
    """Raises UserError if (directory, value) pairs have different values."""
    for name, value in values[1:]:
        first_name, first = values[0]
        if value != first:
            raise UserError(f"{first_name} and {name} differ in their {what}: {first} and {value}")
