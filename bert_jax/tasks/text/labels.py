"""The label set of a classification task, which is inferred from the training rows."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

from bert_jax.errors import UserError

# If the number of distinct labels exceeds this fraction of the rows, the column is probably not the label.
_MAX_DISTINCT = 0.5


@dataclasses.dataclass(frozen=True)
class LabelSet:
    """The label names of a task, in the order of the logits."""

    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: str) -> int:
        """Returns the number of a label. Raises ValueError, which lists the labels, for an unknown one."""
        try:
            return self.names.index(name.strip())
        except ValueError:
            shown = ", ".join(map(repr, self.names[:10])) + (", ..." if len(self.names) > 10 else "")
            raise ValueError(f"label {name.strip()!r} is none of {shown}") from None

    def checked(self, name: str) -> str:
        """Returns the label, without surrounding whitespace. Raises ValueError for an unknown one."""
        return self.names[self.index(name)]

    @classmethod
    def infer(cls, labels: Sequence[str], path: str) -> "LabelSet":
        """Returns the sorted distinct labels of the training rows; integers are sorted by value.

        Args:
            labels: the label of each training row.
            path: the path of the training file, for messages.

        Raises:
            UserError: there is only one class, or there are so many that the column cannot hold class labels.
        """
        counts = Counter(label.strip() for label in labels)
        if len(counts) < 2:
            raise UserError(
                f"{path}: every one of the {len(labels)} rows has the label {next(iter(counts))!r}: "
                "there is nothing to tell apart; check data.label and the file"
            )
        if len(labels) >= 20 and len(counts) > _MAX_DISTINCT * len(labels):
            raise UserError(
                f"{path}: {len(counts)} different labels in {len(labels)} rows (such as "
                f"{next(iter(counts))[:40]!r}); is data.label the right column? for numbers set "
                "--config.task=regression"
            )
        return cls(tuple(sorted(counts, key=_sort_key)))


def _sort_key(name: str):
    # int() refuses numbers with more than 4,300 digits, so long numbers are sorted as text.
    is_number = name.removeprefix("-").isdecimal() and len(name) < 20
    return (0, int(name), name) if is_number else (1, 0, name)


def parse_number(text: str) -> float:
    """Parses a regression target. Raises ValueError unless it is a finite number."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"label {text.strip()[:40]!r} is not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"label {text.strip()!r} is not finite")
    return value
