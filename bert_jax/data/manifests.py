"""Defines and validates `manifest.json`, the description of a record directory."""

from __future__ import annotations

import os
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io import json_files

FILE = "manifest.json"
VERSIONS = {"packed": 1, "google": 1}  # version of the manifest, by schema

_COUNT = range(0, 1 << 63)
_LENGTH = range(1, (1 << 16) + 1)  # starts and lengths are stored as uint16
_TOKEN = range(0, 1 << 31)
_SPLIT = {
    "files": [{"name": str, "rows": _COUNT, "bytes": _COUNT, "crc32c?": range(0, 1 << 32)}],
    **dict.fromkeys(("documents", "rows", "sequences", "tokens", "random_next", "predictions?"), _COUNT),
    "sequence_lengths?": [_COUNT],
    "sequences_per_row?": [_COUNT],
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
    },
    "special_ids": dict.fromkeys(("pad", "unk", "cls", "sep", "mask"), _TOKEN),
    "sources": [dict],
    "fingerprint": str,
    "text?": dict,
    "cleaned?": dict,
    "splits": {str: _SPLIT},
}
_OF_GOOGLE = {"max_predictions_per_seq": _LENGTH}


def parse(content: bytes, path: str, schema: str | None = None) -> dict[str, Any]:
    """Parses and validates the content of a manifest file.

    Args:
        content: the bytes of the file.
        path: the path of the manifest, for error messages.
        schema: the expected schema of the records; None accepts any.

    Raises:
        UserError: the content is not a manifest, has another schema or version, has a field of the wrong
            type, or names a file outside of its directory.
    """
    manifest = json_files.parse(content, path, {"schema": str, "version": int})
    found, version = manifest["schema"], manifest["version"]
    if found not in ([schema] if schema else VERSIONS) or version != VERSIONS[found]:
        expected = " or ".join(
            f"{name!r} version {number}" for name, number in VERSIONS.items() if name == (schema or name)
        )
        where = os.path.dirname(path)
        raise UserError(
            f"{where} holds records of schema {found!r:.60} version {version}; expected {expected}"
        )
    json_files.check(manifest, _SCHEMA | (_OF_GOOGLE if found == "google" else {}), path)
    if manifest.get("nsp", "next") not in ("next", "sop", "none"):
        raise UserError(f"{path}: nsp is {manifest['nsp']!r:.60}, expected next, sop or none")
    names = [entry["name"] for split in manifest["splits"].values() for entry in split["files"]]
    for name in (manifest["vocabulary"]["file"], *names):
        if not is_plain_name(name):
            raise UserError(
                f"{path}: it names the file {name[:100]!r}; expected files beside it, named without a folder"
            )
    return manifest


def is_plain_name(name: str) -> bool:
    """Returns whether a name refers to a file in the same directory.

    A folder, an absolute path, ".." and a URL do not.
    """
    return bool(name) and name not in (".", "..") and not set(name) & set("/\\:\0\n")
