"""Defines the settings that a manifest records: what determines the records, and how others differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from bert_jax import tokenization
from bert_jax.data import manifests, packed
from data_pipelines import languages, readers
from data_pipelines.settings import Options

# Settings that were added in later versions, with the value that applies to records without them.
_LATER: dict[str, Any] = {
    "nsp": "next",
    "full_sentences": False,
    "doc_sentences": False,
    "full_rows": False,
    "cleaning": None,
    "sampling_exponent": None,
    "sentence_language": "en",
}


def resolve(
    options: Options,
    tokenizer: tokenization.Tokenizer,
    paths: Sequence[str],
    digests: Sequence[dict[str, Any]],
    divided: Sequence[languages.Language] = (),
) -> dict[str, Any]:
    """Returns the settings that determine the records, as the manifest stores them.

    Args:
        options: the options of the build.
        tokenizer: the tokenizer of `options.vocab`.
        paths: the input files.
        digests: the result of `readers.file_digest` for each input file.
        divided: the languages, if they are sampled.
    """
    length = options.max_seq_length
    if options.schema == packed.SCHEMA:
        dupe_factor, eval_fraction = 1, 0.01
        per_row = options.max_sequences_per_row or packed.default_sequences_per_row(length)
        own: dict[str, Any] = {"full_sentences": options.full_sentences}
        own |= {name: True for name in ("doc_sentences", "full_rows") if getattr(options, name)}
    else:  # the defaults of the reference
        dupe_factor, eval_fraction, per_row = 10, 0.0, 1
        names = ("masked_lm_prob", "max_predictions_per_seq", "whole_word_mask", "max_ngram")
        own = {name: getattr(options, name) for name in names}
    if readers.has_fields(paths, options.input_format):
        own |= {"text_field": options.text_field, "id_field": options.id_field}
    if clean := options.cleaning_settings():
        own["cleaning"] = clean.described()
    if divided:
        own["sampling_exponent"] = options.sampling_exponent
    codes = options.sentence_languages(paths, divided)
    if set(codes) != {"en"}:
        names = [one.name for one in divided]
        own["sentence_language"] = codes[0] if len(set(codes)) == 1 else dict(zip(names, codes, strict=True))
    owners = {path: {"language": one.name} for one in divided for path in one.paths}
    return own | {
        "schema": options.schema,
        "version": manifests.VERSIONS[packed.SCHEMA],
        "max_seq_length": length,
        "max_sequences_per_row": 1 if options.fills_rows else per_row,
        "nsp": options.nsp,
        "seed": options.seed,
        "short_seq_prob": 0.0 if options.fills_rows or options.doc_sentences else options.short_seq_prob,
        "dupe_factor": dupe_factor if options.dupe_factor is None else options.dupe_factor,
        "eval_fraction": eval_fraction if options.eval_fraction is None else options.eval_fraction,
        "num_shards": options.num_shards,
        "input_format": options.input_format,
        "vocabulary": tokenizer.settings() | {"file": tokenization.KINDS[tokenizer.kind].file},
        "sources": [
            {"name": name, "bytes": digest["bytes"], "sha256": digest["sha256"]} | owners.get(path, {})
            for name, path, digest in zip(readers.short_names(paths), paths, digests, strict=True)
        ],
    }


def digest(settings: dict[str, Any]) -> str:
    """Returns the SHA-256 of the settings, which identifies records made with them."""
    settings = {name: value for name, value in settings.items() if _LATER.get(name) != value}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def difference(settings: dict[str, Any], others: dict[str, Any]) -> str:
    """Returns a description of the settings that differ, or "" if none does."""
    others = _renamed(others, settings)
    pairs = {name: (value, others.get(name, _LATER.get(name))) for name, value in (_LATER | settings).items()}
    return ", ".join(_difference(name, *pair) for name, pair in pairs.items() if pair[0] != pair[1])


def _difference(name: str, value: Any, other: Any) -> str:
    """Returns a description of two different values of a setting."""
    if name == "sources":
        return "other text in --input"
    if isinstance(value, dict) and isinstance(other, dict):
        keys = [key for key in value | other if value.get(key) != other.get(key)]
        return f"another {name}: {' and '.join(keys)}"
    if isinstance(value, dict | list) or isinstance(other, dict | list):
        return f"another {name}"
    return f"{name} {other!r}, not {value!r}"


def _renamed(others: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Returns `others` with the names of sampled languages in `settings`, if they divide the sources alike.

    The names do not affect the records, and another version may choose others for the same sources.
    """
    old, new = ([one.get("language") for one in each.get("sources", [])] for each in (others, settings))
    pairs = set(zip(old, new, strict=False))
    if len(old) != len(new) or not len(pairs) == len(set(old)) == len(set(new)):
        return others
    names = dict(pairs)
    renamed = others | {
        "sources": [
            one | {"language": names[one["language"]]} if "language" in one else one
            for one in others.get("sources", [])
        ]
    }
    if isinstance(rules := others.get("sentence_language"), dict):
        renamed["sentence_language"] = {names.get(name, name): code for name, code in rules.items()}
    return renamed
