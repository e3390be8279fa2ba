"""The names of the arms, the measures and the records of an experiment."""

from __future__ import annotations

from collections.abc import Sequence

from bert_jax.errors import UserError
from bert_jax.io.wording import did_you_mean


def folder_name(name: str) -> str:
    """Returns the name of the folder of an arm or of a measure."""
    return name.replace(" ", "-").replace("/", "-")


def check_unique(what: str, names: Sequence[str], *taken: str) -> None:
    """Raises UserError if a name has no folder, or that of another one or of one that is taken."""
    folders = [folder_name(name) for name in (*names, *taken)]
    if len({*folders}) < len(folders) or not {"", ".", ".."}.isdisjoint(names):
        others = "".join(f", none of them {name}" for name in taken)
        raise UserError(
            f"{what} called {', '.join(names)}: expected different names{others}, also where their folders "
            "have - for spaces and slashes"
        )


def check_known(what: str, name: str, known: Sequence[str]) -> None:
    """Raises UserError for an unknown name; the message begins with `what`."""
    if name not in known:
        near = did_you_mean(name, known) or f"; expected one of {', '.join(known) or 'none'}"
        raise UserError(f"{what} {name!r} is unknown{near}")
