"""A number that changes at given steps of a run, such as the rows of a batch."""

from __future__ import annotations

import bisect
import dataclasses
import itertools

from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Ramp:
    """A number as a function of the step alone.

    Attributes:
        starts: the steps from which each value holds, counted from 0 and ascending from 0.
        values: the values.
    """

    starts: tuple[int, ...]
    values: tuple[int, ...]

    @classmethod
    def constant(cls, value: int) -> Ramp:
        """Returns the ramp with one value."""
        return cls((0,), (value,))

    @classmethod
    def parse(cls, field: str, text: str, maximum: int) -> Ramp:
        """Returns the ramp of a text like `0=256, 1000=512`.

        Args:
            field: the name of the field that has the text, for messages.
            text: pairs STEP=VALUE with commas between.
            maximum: the largest valid value.

        Raises:
            UserError: the text has another form, or the steps do not ascend from 0.
        """
        pairs = []
        for part in text.split(","):
            step, equals, value = (each.strip() for each in part.partition("="))
            if not (equals and step.isdecimal() and value.isdecimal() and 1 <= int(value) <= maximum):
                raise UserError(
                    f"{field}={text!r}: {part.strip()!r} is not STEP=VALUE, with a value from 1 to "
                    f"{maximum:,}; expected a list such as '0=256, 1000=512'"
                )
            pairs.append((int(step), int(value)))
        starts = [step for step, _ in pairs]
        if starts[0] != 0 or any(one >= other for one, other in itertools.pairwise(starts)):
            raise UserError(f"{field}={text!r}: expected steps that begin with 0 and ascend")
        return cls(tuple(starts), tuple(value for _, value in pairs))

    def at(self, step: int) -> int:
        """Returns the value of a step."""
        return self.values[bisect.bisect_right(self.starts, step) - 1]

    def total_before(self, step: int) -> int:
        """Returns the sum of the values of all steps before a step."""
        ends = (*self.starts[1:], step)
        return sum(
            value * max(min(end, step) - start, 0)
            for start, end, value in zip(self.starts, ends, self.values, strict=True)
        )
