"""Counts what cleaning changed and dropped, and reports it."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from bert_jax.io import wording
from bert_jax.io.wording import counted

REPORT = "cleaning.json"  # in the directory of the records
MOST_EXAMPLES = 5
EXAMPLE_CHARACTERS = 100
_SUMS = ("documents_changed", "documents_dropped", "passages_dropped", "bytes_dropped")


def new_counts() -> dict[str, Any]:
    """Returns the initial counts of one step, as values that JSON can represent."""
    return {**dict.fromkeys(_SUMS, 0), "reasons": {}, "examples": []}


def example(key: str, reason: str, text: str) -> dict[str, str]:
    """Returns the entry of the report for something that was dropped."""
    return {"document": key, "reason": reason, "text": text[:EXAMPLE_CHARACTERS]}


def merge_counts(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sums the counts of the `Cleaner`s of the parts of a corpus, in its order; keeps the first examples."""
    total: dict[str, Any] = {name: sum(part[name] for part in parts) for name in ("documents", "bytes")}
    total["steps"] = {}
    for step in parts[0]["steps"]:
        ones = [part["steps"][step] for part in parts]
        reasons: collections.Counter[str] = collections.Counter()
        for one in ones:
            reasons.update(one["reasons"])
        total["steps"][step] = {name: sum(one[name] for one in ones) for name in _SUMS} | {
            "reasons": dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
            "examples": [shown for one in ones for shown in one["examples"]][:MOST_EXAMPLES],
        }
    return total


def with_shares(counts: dict[str, Any]) -> dict[str, Any]:
    """Returns the report: the counts, and each step's share of the documents and bytes that were read."""
    documents, total = max(1, counts["documents"]), max(1, counts["bytes"])
    steps = {
        step: {
            "documents_dropped_share": round(one["documents_dropped"] / documents, 6),
            "bytes_dropped_share": round(one["bytes_dropped"] / total, 6),
        }
        | one
        for step, one in counts["steps"].items()
    }
    dropped = sum(one["documents_dropped"] for one in steps.values())
    return {**counts, "documents_kept": counts["documents"] - dropped, "steps": steps}


def without_examples(report: dict[str, Any]) -> dict[str, Any]:
    """Returns the report as the manifest stores it, without examples."""
    steps = {
        step: {name: value for name, value in one.items() if name != "examples"}
        for step, one in report["steps"].items()
    }
    return {**report, "steps": steps}


def lines(report: dict[str, Any]) -> list[str]:
    """Returns the report as a few lines for the terminal."""
    found = [f"cleaning: {report['documents_kept']:,} of {counted(report['documents'], 'document')} kept"]
    for step, one in report["steps"].items():
        line = (
            f"  {step}: {counted(one['documents_dropped'], 'document')} "
            f"({one['documents_dropped_share']:.2%}) and {counted(one['passages_dropped'], 'passage')} "
            f"dropped, {wording.size(one['bytes_dropped'])} ({one['bytes_dropped_share']:.2%}); "
            f"{counted(one['documents_changed'], 'document')} changed"
        )
        common = [f"{reason} {count:,}" for reason, count in list(one["reasons"].items())[:4]]
        found.append(line + (f" ({', '.join(common)})" if common else ""))
    return found
