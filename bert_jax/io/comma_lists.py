"""Splits texts at commas: the lists of names and of paths that flags and settings take."""

from __future__ import annotations

from collections.abc import Callable

from bert_jax.io import files


def names(text: str) -> list[str]:
    """Returns the names in a comma-separated text; empty names are skipped."""
    return [name for each in text.split(",") if (name := each.strip())]


def paths(text: str, exists: Callable[[str], bool] = files.exists) -> list[str]:
    """Returns the paths in a comma-separated text; empty paths are skipped.

    An existing path may contain commas, such as the directories of a grid
    (`batch_size=8,learning_rate=0.001`): the longest existing path is taken first. A URL begins another path.
    """
    parts = text.split(",")
    if len(parts) == 1:
        return [text] if text.strip() else []
    found: list[str] = []
    while parts:
        longest = next((place for place, part in enumerate(parts) if place and "://" in part), len(parts))
        candidates = (",".join(parts[:count]).strip() for count in range(longest, 1, -1))
        found.append(next(filter(exists, candidates), parts[0]))
        del parts[: found[-1].count(",") + 1]
    return [path for each in found if (path := each.strip())]
