"""Splits texts at commas: the lists of names and of paths that flags and settings take."""

from __future__ import annotations

from collections.abc import Callable

from bert_jax.errors import UserError
from bert_jax.io import files


def names(text: str, field: str) -> list[str]:
    """Returns the names of a text with commas between them, without spaces around each.

    Args:
        text: the names; an empty text has none.
        field: the name of the setting or of the flag that has the text, for the message.

    Raises:
        UserError: a name is empty.
    """
    found = [name.strip() for name in text.split(",")] if text.strip() else []
    return _refuse_empty(found, f"{field}={text}", "names")


def paths(text: str, exists: Callable[[str], bool] = files.exists) -> list[str]:
    """Returns the paths of a text with commas between them, without spaces around each.

    A path that exists may have commas itself, as the directories of a grid have
    (`batch_size=8,learning_rate=0.001`): the longest path that exists is taken first. A URL always begins
    another path.

    Args:
        text: the paths. A text without commas is one path, which is returned as it is.
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
        found.append(next(filter(exists, candidates), parts[0].strip()))
        del parts[: found[-1].count(",") + 1]
    return _refuse_empty(found, text, "paths")


def _refuse_empty(found: list[str], given: str, kind: str) -> list[str]:
    if "" in found:
        raise UserError(
            f"{given}: part {found.index('') + 1} of the list is empty; expected {kind} with single commas "
            "between, and none at its ends: leave out the comma"
        )
    return found
