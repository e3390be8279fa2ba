"""Labels of training files: their names, inferred from the rows, and their values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.errors import UserError
from bert_jax.io import numerals

# If the number of distinct labels exceeds this fraction of the rows, the column is probably not the label.
_MAX_DISTINCT = 0.5
_MAX_SHOWN = 10


def numbers(names: Sequence[str]) -> dict[str, int]:
    """Returns {label: its number}, for `label_index`; the first number of a label that is there twice."""
    return {name: number for number, name in reversed([*enumerate(names)])}


def label_index(numbers: Mapping[str, int], label: str) -> int:
    """Returns the number of a label. Raises ValueError, which lists the labels, for an unknown one."""
    try:
        return numbers[label.strip()]
    except KeyError:
        names = sorted(numbers, key=numbers.__getitem__)
        raise ValueError(unknown(names, label.strip())) from None


def unknown(names: Sequence[str], label: str, what: str = "label") -> str:
    """Returns a message about a label that is not in `names`."""
    shown = ", ".join(map(repr, names[:_MAX_SHOWN])) + (", ..." if len(names) > _MAX_SHOWN else "")
    return f"{what} {label!r} is none of {shown}"


def infer_labels(labels: Sequence[str], path: str) -> tuple[str, ...]:
    """Returns the sorted distinct labels of the training rows; integers are sorted by value.

    Args:
        labels: the label of each training row.
        path: the path of the training file, for messages.

    Raises:
        UserError: as `check_counts`.
    """
    counts = Counter(label.strip() for label in labels)
    check_counts(counts, path)
    return tuple(sorted(counts, key=_sort_key))


def check_counts(
    counts: Counter[str], path: str, what: str = "label", unit: str = "rows", may_differ: bool = False
) -> None:
    """Checks that the labels of a training file can be classes.

    Args:
        counts: the number of occurrences of each label.
        path: the path of the training file, for messages.
        what: what a label is called in messages.
        unit: what an occurrence is called in messages.
        may_differ: whether any number of labels is plausible.

    Raises:
        UserError: there is only one class, or there are so many that the column cannot hold class labels.
    """
    first, total = next(iter(counts)), counts.total()
    if len(counts) < 2:
        raise UserError(
            f"{path}: every one of the {total:,} {unit} has the {what} {first!r}, and at least two different "
            "ones are needed; check data.label and the file"
        )
    if not may_differ and total >= 20 and len(counts) > _MAX_DISTINCT * total:
        hint = "; for numbers set --config.task=regression" if what == "label" else ""
        raise UserError(
            f"{path}: {len(counts)} different {what}s in {total} {unit} (such as {first[:40]!r}); is "
            f"data.label the right column?{hint}"
        )


def _sort_key(name: str) -> tuple[int, int, str]:
    # int() refuses numbers with more than 4,300 digits, so long numbers are sorted as text.
    is_number = name.removeprefix("-").isdecimal() and len(name) < 20
    return (0, int(name), name) if is_number else (1, 0, name)


def parse_number(text: str) -> float:
    """Parses a regression target. Raises ValueError unless it is a finite number."""
    try:
        value = numerals.parse(text, float)
    except ValueError:
        raise ValueError(f"label {text.strip()[:40]!r} is not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"label {text.strip()!r} is not finite")
    return value


def list_counts(counts: Mapping[str, int]) -> str:
    """Returns a list of the first labels with the count of each, for a log line."""
    parts = [f"{name}: {count:,}" for name, count in counts.items()]
    return ", ".join(parts[:_MAX_SHOWN]) + (", ..." if len(parts) > _MAX_SHOWN else "")


def parse_class_weights(text: str, labels: Sequence[str], targets: Sequence[int]) -> tuple[float, ...]:
    """Returns the weight of each label in the loss.

    Args:
        text: the value of `config.class_weights`. With "balanced", a label with n of the N examples has the
            weight N / (C n).
        labels: the C label names.
        targets: the label number of each of the N examples.

    Raises:
        UserError: a label does not exist or has two weights, or a weight is not positive.
    """
    if not text:
        return ()
    if text == "balanced":
        counts = np.bincount(targets, minlength=len(labels))
        return tuple(float(len(targets) / (len(labels) * max(1, count))) for count in counts)
    given: dict[str, float] = {}
    for part in text.split(","):
        label, _, number = part.rpartition("=")
        try:
            weight = numerals.parse(number, float)
        except ValueError:
            weight = 0.0
        label = label.strip()
        if label not in labels or not 0 < weight < float("inf"):
            raise UserError(
                f"class_weights={text}: {part!r} is not LABEL=WEIGHT with a positive weight and one of the "
                f"labels {', '.join(labels)}; or give balanced"
            )
        if label in given:
            raise UserError(f"class_weights={text}: {label!r} has two weights; expected each label once")
        given[label] = weight
    return tuple(given.get(label, 1.0) for label in labels)
