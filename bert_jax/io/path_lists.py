"""Splits a text of several paths, which have commas between them, as many flags and settings take it."""

from __future__ import annotations

from collections.abc import Callable

from bert_jax.io import files


def split(text: str, exists: Callable[[str], bool] = files.exists) -> list[str]:
    """Returns the paths of a text with commas between them, without spaces around each.

    A path that exists may have commas itself, as the directories of a grid have
    (`batch_size=8,learning_rate=0.001`): the longest path that exists is taken first. A URL always begins
    another path.

    Args:
        text: the paths. A text without commas is one path, which is returned as it is.
        exists: returns whether a path with commas exists; it is not called for other paths.
    """
    parts = text.split(",")
    if len(parts) == 1:
        return [text] if text.strip() else []
    paths = []
    while parts:
        longest = next((place for place, part in enumerate(parts) if place and "://" in part), len(parts))
        candidates = (",".join(parts[:count]).strip() for count in range(longest, 1, -1))
        paths.append(next(filter(exists, candidates), parts[0].strip()))
        del parts[: paths[-1].count(",") + 1]
    return [path for path in paths if path]
