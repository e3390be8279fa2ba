"""Inspects vocabularies, alone and beside records."""

from __future__ import annotations

from typing import Any

from bert_jax import tokenization
from bert_jax.data import manifests
from bert_jax.data.inspection.report import Report
from bert_jax.errors import UserError


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


def load_vocabulary(
    directory: str, manifest: dict[str, Any], report: Report
) -> tokenization.Tokenizer | None:
    """Returns the tokenizer of records, or None if it is unavailable.

    A problem is added if the manifest names a vocabulary that cannot be loaded or has another digest.
    """
    settings = manifest["vocabulary"]
    if not settings["digest"]:
        return None
    path = manifests.vocabulary_path(directory, settings)
    try:
        return tokenization.restore(path, settings)
    except UserError as error:
        report.problems.append(str(error))
        return None


def compare_vocabulary(path: str, settings: dict[str, Any], report: Report) -> None:
    """Adds a problem if a vocabulary is not the one in the manifest of the records."""
    other = tokenization.load(path).settings()  # those of the records need not suit another kind
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
