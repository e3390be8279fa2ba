"""Declares the fields of a model's configuration, and checks their values and combinations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io import json_files

_COUNT = range(-1, 1 << 31)  # no size of a model comes near the limit


def field(
    default: Any, meaning: str, *, choices: tuple[str, ...] = (), resume: str = "same", **metadata: Any
) -> Any:
    """Returns a dataclass field with the metadata for validation, docs/config.md and lists of fields.

    Args:
        default: the default value; its type is the type of the field, unless `optional` is given.
        meaning: the description in docs/config.md.
        choices: the allowed values of a string field.
        resume: whether the field may change when a run resumes; see `bert_jax.settings.config_fields.Field`.
        metadata: `minimum`, `maximum`, `below`, `above`: bounds; `bounds`: the first two of these. `shape`:
            whether the set or shapes of the parameters depend on the field. `size`: whether the field is
            printed as one of the model's sizes. `of_run`: whether a run sets the value regardless of the
            checkpoint that it starts from. `optional`: the type of a field whose default is None. `dropout`:
            whether the field is a dropout rate, which affects training only. `of_head`: whether only a head
            reads the field, if its family says so.
    """
    resume = "fixed" if metadata.get("shape") else resume
    if "bounds" in metadata:
        metadata["minimum"], metadata["maximum"] = metadata.pop("bounds")
    metadata |= {"meaning": meaning, "choices": choices, "resume": resume}
    return dataclasses.field(default=default, metadata=metadata)


def check_fields(config: Any) -> None:
    """Raises UserError for the first field whose value has the wrong type or is out of bounds."""
    for declared in dataclasses.fields(config):
        if declared.name == "execution":
            continue
        name, value, metadata = declared.name, getattr(config, declared.name), declared.metadata
        if value is None and metadata.get("optional"):
            continue
        problem = _problem(value, metadata, metadata.get("optional") or type(declared.default))
        if problem:
            raise UserError(f"{name}={value!r:.60}: {problem}")


def _problem(value: Any, metadata: Mapping[str, Any], expected: type) -> str | None:
    if not json_files.is_of(value, _COUNT if expected is int else expected):
        what = "a whole number below 2^31" if expected is int else json_files.describe(expected)
        return f"expected {what}"
    if isinstance(value, float) and not math.isfinite(value):
        return "expected a finite number"
    if metadata["choices"] and value not in metadata["choices"]:
        return f"choose one of {', '.join(metadata['choices'])}"
    minimum, maximum, below, above = (
        metadata.get(bound) for bound in ("minimum", "maximum", "below", "above")
    )
    if minimum is not None and value < minimum:
        return f"must be at least {minimum}"
    if maximum is not None and value > maximum:
        return f"must be at most {maximum}"
    if below is not None and value >= below:
        return f"must be less than {below}"
    if above is not None and value <= above:
        return f"must be more than {above}"
    return None


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
