"""Defines the report of an inspection."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np


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
