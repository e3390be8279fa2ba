"""Parts of messages: a number with its noun, alternatives, and some of many names."""

from __future__ import annotations

from collections.abc import Iterable


def counted(number: int, noun: str, plural: str = "") -> str:
    """Returns a number and its noun, such as "1 file" or "1,234 files"; `plural` is by default `noun` + s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def rate(number: float) -> str:
    """Returns a number of units per second, at least 0, with three digits or more: "0.385", "4", "12,346"."""
    return f"{number:,.0f}" if number >= 999.5 else f"{number:.3g}"


def size(number: int) -> str:
    """Returns a number of bytes: "0.5 kB", "73.8 MB"."""
    return f"{number / 1e3:.1f} kB" if number < 99_950 else f"{number / 1e6:,.1f} MB"


def alternatives(values: Iterable[object]) -> str:
    """Returns "1", "1 or 2", or "1, 2, or 3"."""
    *first, last = map(str, values)
    return f"{', '.join(first)}{',' * (len(first) > 1)} or {last}" if first else last


def some(names: Iterable[str]) -> str:
    """Returns the first three names, separated by commas, and the number of the remaining ones."""
    names = list(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def first_line(error: BaseException) -> str:
    """Returns the kind of an error and the first line of its message, such as "ValueError: no such axis"."""
    kind, message = type(error).__name__, str(error).strip()
    return f"{kind}: {message.splitlines()[0].rstrip()[:200]}" if message else kind
