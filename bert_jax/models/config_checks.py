"""Declares the fields of a model's configuration, and checks their values and combinations."""

from __future__ import annotations

import dataclasses
import math
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
        value, metadata = getattr(config, declared.name), declared.metadata
        if value is None and metadata.get("optional"):
            continue
        _check_type(declared.name, value, metadata.get("optional") or type(declared.default))
        if metadata["choices"] and value not in metadata["choices"]:
            raise UserError(
                f"{declared.name}={value!r} is unknown; choose one of {', '.join(metadata['choices'])}"
            )
        minimum, below, above = (metadata.get(bound) for bound in ("minimum", "below", "above"))
        if below is not None and not minimum <= value < below:
            raise UserError(f"{declared.name}={value} must be in [{minimum}, {below})")
        if minimum is not None and value < minimum:
            raise UserError(f"{declared.name}={value} must be at least {minimum}")
        if value > (metadata.get("maximum") or value):
            raise UserError(f"{declared.name}={value} must be at most {metadata['maximum']}")
        if above is not None and value <= above:
            raise UserError(f"{declared.name}={value} must be more than {above}")


def _check_type(name: str, value: Any, expected: type) -> None:
    if not json_files.is_of(value, _COUNT if expected is int else expected):
        what = "a whole number below 2^31" if expected is int else json_files.describe(expected)
        raise UserError(f"{name}={value!r:.60}: expected {what}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name}={value}: expected a finite number")


def _check_heads(c: Any) -> str | None:
    if c.hidden_size % c.num_attention_heads:
        return (
            f"hidden_size={c.hidden_size} must be a multiple of num_attention_heads={c.num_attention_heads}"
        )
    if c.position == "rotary" and c.head_dim % 2:
        return f"position=rotary needs heads of an even size, not {c.head_dim}; set num_attention_heads"
    return None


def _check_positions(c: Any) -> str | None:
    if c.position in ("sinusoid", "scaled_sinusoid") and c.embedding_width % 2:
        return f"position={c.position} needs embeddings of an even width, not {c.embedding_width}"
    if c.position_offset and c.position != "learned":
        return f"position_offset={c.position_offset} needs position=learned, not {c.position}; leave it at 0"
    if c.sinusoidal_start and c.position != "learned":
        return f"sinusoidal_start needs position=learned, not {c.position}; leave it at False"
    if c.position_offset >= c.max_position_embeddings:
        return (
            f"position_offset={c.position_offset} leaves none of max_position_embeddings="
            f"{c.max_position_embeddings}"
        )
    if c.rotary_theta != type(c).rotary_theta and c.position != "rotary":
        return f"rotary_theta={c.rotary_theta:g} needs position=rotary, not {c.position}"
    if c.local_rotary_theta != type(c).local_rotary_theta and not (c.position == "rotary" and c.local_window):
        return f"local_rotary_theta={c.local_rotary_theta:g} needs position=rotary and a local_window"
    return None


def _check_windows(c: Any) -> str | None:
    if pattern := c.attention_pattern:
        if len(pattern) != c.num_hidden_layers or not {"l"} <= set(pattern) <= {"g", "l"}:
            return (
                f"attention_pattern={pattern}: expected one letter for each of the {c.num_hidden_layers} "
                "layers, g for a global and l for a local one, and a local one among them"
            )
        if not c.local_window or c.global_every > 1:
            return (
                f"attention_pattern={pattern} needs a local_window, not {c.local_window}, and "
                f"global_every=1, not {c.global_every}"
            )
        return None
    if bool(c.local_window) != (c.global_every > 1):
        return (
            f"local_window={c.local_window} and global_every={c.global_every}: expected a window and a "
            "global layer every 2 layers or more, as 64 and 3, or 0 and 1 for global layers alone"
        )
    return None


def _check_norms(c: Any) -> str | None:
    if not c.first_attention_norm and c.norm_placement != "pre":
        return (
            f"first_attention_norm=False needs norm_placement=pre, not {c.norm_placement}: the norm behind "
            "the attention cannot be left out"
        )
    return None


def _check_groups(c: Any) -> str | None:
    if c.layer_groups > c.num_hidden_layers:
        return f"layer_groups={c.layer_groups} must be at most num_hidden_layers={c.num_hidden_layers}"
    if c.layers_per_group > 1 and not c.layer_groups:
        return f"layers_per_group={c.layers_per_group} needs layer_groups of 1 or more"
    if c.layer_groups and (c.local_window or not c.first_attention_norm):
        other = "local_window" if c.local_window else "first_attention_norm"
        return (
            f"layer_groups={c.layer_groups} and {other}={getattr(c, other)}: layers that share their "
            "parameters are all alike; set one of the two"
        )
    return None


def _check_adapters(c: Any) -> str | None:
    if (c.attention_adapter or c.output_adapter) and c.execution.residual not in ("auto", "xla"):
        return f"residual={c.execution.residual}: the kernel has no adapter; set xla, or no adapter"
    return None


# Checks of the combinations of fields of an `EncoderConfig`: each returns the problem in one line, or None.
_REFUSALS = (_check_heads, _check_positions, _check_windows, _check_norms, _check_groups, _check_adapters)


def refuse(config: Any) -> None:
    """Raises UserError if fields of an `EncoderConfig` contradict each other."""
    for refusal in _REFUSALS:
        if problem := refusal(config):
            raise UserError(problem)
