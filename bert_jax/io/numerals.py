"""Numbers in data of users, as text."""

from __future__ import annotations

from typing import TypeVar

Number = TypeVar("Number", int, float)


def parse(text: str, kind: type[Number]) -> Number:
    """Returns the int or float of a text, which must not have the underscores of numbers in Python.

    Raises:
        ValueError: the text is no such number, or has an underscore, as in 1_000.
    """
    if "_" in text:
        raise ValueError(f"{text!r:.40} has an underscore")
    return kind(text)
