"""Declares the fields of configurations, and checks their values."""

from __future__ import annotations

import dataclasses
import numbers
import re
import sys
from typing import Any

from bert_jax.errors import UserError

_TYPES = {bool: "bool", int: "int", float: "float", str: "str"}


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a configuration.

    `resume` tells whether the field may change when a run resumes. "same": only with --allow_changes. "free":
    yes, since it affects the location, speed or frequency of operations, but not their results. "fixed": no,
    since the shapes in the checkpoint depend on it.
    """

    default: Any
    meaning: str  # in docs/config.md
    type: str  # "int", "float" (finite, or an int), "bool", "str" or "regex"
    minimum: float | None = None
    maximum: float | None = None  # inclusive
    above: float | None = None
    below: float | None = None  # exclusive
    resume: str = "same"
    optional: bool = False  # whether None is a valid value
    choices: tuple[str, ...] = ()  # the valid texts; empty for any

    def problem(self, value: Any) -> str | None:
        """Returns the requirement that a value violates, or None if the value is valid."""
        if value is None and self.optional:
            return None
        if self.choices and value not in self.choices:
            return f"must be one of {', '.join(each or '(empty)' for each in self.choices)}"
        if self.type == "bool":
            return None if isinstance(value, bool) else "must be true or false"
        if self.type in ("str", "regex"):
            if not isinstance(value, str):
                return "must be a text"
            try:
                re.compile(value if self.type == "regex" else "")
            except re.error as error:
                return f"must be a regular expression ({error})"
            return None
        kind: Any = numbers.Integral if self.type == "int" else numbers.Real
        if isinstance(value, bool) or not isinstance(value, kind):
            return "must be a whole number" if self.type == "int" else "must be a number"
        if self.type == "float" and not -sys.float_info.max <= value <= sys.float_info.max:
            return "must be a finite number"
        if self.minimum is not None and value < self.minimum:
            return f"must be at least {self.minimum:g}"
        if self.above is not None and value <= self.above:
            return f"must be more than {self.above:g}"
        if self.maximum is not None and value > self.maximum:
            return f"must be at most {self.maximum:,}"
        if self.below is not None and value >= self.below:
            return f"must be less than {self.below:g}"
        return None


def option(default: Any, meaning: str, **limits: Any) -> Any:
    """Returns a dataclass field that declares a field of a configuration.

    `meaning` is the description in docs/config.md, and `limits` are further arguments of `Field`. The type is
    the default's, unless `limits` has another one. The bounds of a whole number are 0 and 2^31 - 1 by
    default.
    """
    limits = limits if "type" in limits else {"type": _TYPES[type(default)]} | limits
    if limits["type"] == "int":
        limits = {"minimum": 0, "maximum": 2**31 - 1} | limits
    return dataclasses.field(default=default, metadata={"field": Field(default, meaning, **limits)})


def check(name: str, value: Any, field: Field) -> None:
    """Raises UserError, which names the field, if a value is not valid."""
    problem = field.problem(value)
    if problem:
        raise UserError(f"{name}={value!r:.40} {problem}")
