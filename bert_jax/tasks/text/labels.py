"""The labels of a classification task: inferred from the training rows, stored beside the checkpoints."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

from bert_jax.errors import UserError

# More distinct labels than this share of the rows means that another column was named as the label.
_MAX_DISTINCT = 0.5


@dataclasses.dataclass(frozen=True)
class LabelSet:
    """Label names in the order of the logits."""

    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: str) -> int:
        """The label's number. Raises ValueError, naming the set, for a label outside it."""
        try:
            return self.names.index(name.strip())
        except ValueError:
            shown = ", ".join(map(repr, self.names[:10])) + (", ..." if len(self.names) > 10 else "")
            raise ValueError(f"label {name.strip()!r} is none of {shown}") from None

    def checked(self, name: str) -> str:
        """The label itself. Raises ValueError for one outside the set."""
        return self.names[self.index(name)]

    @classmethod
    def infer(cls, labels: Sequence[str], path: str) -> "LabelSet":
        """The sorted distinct labels of the training rows; whole numbers are sorted as numbers.

        Raises:
            UserError: one class only, or so many that the column cannot be one of classes.
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
    # Python converts no numbers of over 4,300 digits; those of over 18 are sorted as text.
    is_number = name.removeprefix("-").isdecimal() and len(name) < 20
    return (0, int(name), name) if is_number else (1, 0, name)


def parse_number(text: str) -> float:
    """A regression target. Raises ValueError unless it is a finite number."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"label {text.strip()[:40]!r} is not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"label {text.strip()!r} is not finite")
    return value
