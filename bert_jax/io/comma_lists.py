"""Splits texts at commas: the lists of names and of paths that flags and settings take."""

from __future__ import annotations

from collections.abc import Callable

from bert_jax.errors import UserError
from bert_jax.io import files


def names(text: str, field: str) -> list[str]:
    """Returns the names in a comma-separated text; an empty text has none.

    Raises:
        UserError: a name is empty; `field` is the setting or flag that has the text, for the message.
    """
    return _checked(text.split(",") if text.strip() else [], f"{field}={text}")


def paths(text: str, exists: Callable[[str], bool] = files.exists) -> list[str]:
    """Returns the paths in a comma-separated text.

    An existing path may contain commas, such as the directories of a grid
    (`batch_size=8,learning_rate=0.001`): the longest existing path is taken first. A URL begins another path.

    Args:
        text: the paths. A text without commas is one path.
        exists: returns whether a path with commas exists; it is not called for other paths.

    Raises:
        UserError: a path is empty.
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
    return _checked(found, text)


def _checked(found: list[str], text: str) -> list[str]:
    stripped = [one.strip() for one in found]
    if "" in stripped:
        raise UserError(f"{text}: part {stripped.index('') + 1} of the list is empty; leave out the comma")
    return stripped
