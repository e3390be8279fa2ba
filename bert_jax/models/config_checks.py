"""Declares the fields of configurations, and checks their values and the combinations of an encoder's."""

from __future__ import annotations

import dataclasses
import numbers
import re
import sys
from typing import Any

from bert_jax.errors import UserError

INT32 = 2**31 - 1

_TYPES = {bool: "bool", int: "int", float: "float", str: "str"}


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a configuration.

    Attributes:
        default: the value unless a config file or a flag sets it.
        meaning: the description in docs/config.md.
        type: "int", "float", "bool", "str" or "regex". A float has to be finite, and may be given as an int.
        minimum, maximum: inclusive bounds.
        above, below: exclusive bounds.
        resume: whether the field may change when a run resumes. "same": only with --allow_changes. "free":
            yes, since it affects where, how fast or how often something is done, but not what is computed.
            "fixed": no, since the shapes in the checkpoint depend on it.
        optional: whether None is a valid value.
        choices: the valid texts; empty for any.
    """

    default: Any
    meaning: str
    type: str
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    resume: str = "same"
    optional: bool = False
    choices: tuple[str, ...] = ()

    def problem(self, value: Any) -> str | None:
        """Returns the requirement that a value violates, or None if the value is valid."""
        if value is None and self.optional:
            return None
        if self.choices and value not in self.choices:
            return f"must be one of {', '.join(self.choices)}"
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

    Args:
        default: the default value. Its type is the type of the field, unless `limits` has another one.
        meaning: the description in docs/config.md.
        **limits: further arguments of `Field`. The bounds of a whole number are 0 and 2^31 - 1 by default.
    """
    limits = limits if "type" in limits else {"type": _TYPES[type(default)]} | limits
    if limits["type"] == "int":
        limits = {"minimum": 0, "maximum": INT32} | limits
    return dataclasses.field(default=default, metadata={"field": Field(default, meaning, **limits)})


def check(name: str, value: Any, field: Field) -> None:
    """Raises UserError, which names the field, if a value is not valid."""
    problem = field.problem(value)
    if problem:
        raise UserError(f"{name}={value!r:.40} {problem}")


def check_fields(config: Any) -> None:
    """Raises UserError for the first field of a configuration whose value is not valid."""
    for declared in dataclasses.fields(config):
        if "field" in declared.metadata:
            check(declared.name, getattr(config, declared.name), declared.metadata["field"])


def validate(c: Any) -> None:
    """Raises UserError if fields of an `EncoderConfig` contradict each other."""
    default, rotary = type(c), c.position == "rotary"
    checks = {
        f"hidden_size={c.hidden_size} must be a multiple of num_attention_heads={c.num_attention_heads}": (
            not c.hidden_size % c.num_attention_heads
        ),
        f"position=rotary needs heads of an even size, not {c.head_dim}": not (rotary and c.head_dim % 2),
        f"position={c.position} needs embeddings of an even width, not {c.embedding_width}": (
            c.position not in ("sinusoid", "scaled_sinusoid") or not c.embedding_width % 2
        ),
        f"position_offset={c.position_offset} needs position=learned": (
            not c.position_offset or c.position == "learned"
        ),
        f"position_offset={c.position_offset} must be less than max_position_embeddings": (
            c.position_offset < c.max_position_embeddings
        ),
        f"rotary_theta={c.rotary_theta:g} needs position=rotary": (
            c.rotary_theta == default.rotary_theta or rotary
        ),
        f"local_rotary_theta={c.local_rotary_theta:g} needs position=rotary and a local_window": (
            c.local_rotary_theta == default.local_rotary_theta or (rotary and c.local_window)
        ),
        f"local_window={c.local_window} and global_every={c.global_every}: expected a window and a global "
        "layer every 2 layers or more, as 64 and 3, or 0 and 1 for global layers alone": (
            bool(c.local_window) == (c.global_every > 1)
        ),
        "first_attention_norm=False needs norm_placement=pre": (
            c.first_attention_norm or c.norm_placement == "pre"
        ),
        f"layer_groups={c.layer_groups} must be at most num_hidden_layers={c.num_hidden_layers}": (
            c.layer_groups <= c.num_hidden_layers
        ),
        f"layer_groups={c.layer_groups}: layers that share their parameters can have no local_window, and "
        "need first_attention_norm=True": not c.layer_groups
        or (not c.local_window and c.first_attention_norm),
    }
    for problem, is_met in checks.items():
        if not is_met:
            raise UserError(problem)
