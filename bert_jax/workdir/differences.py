"""How two runs differ, and which of the differences a run that resumes may have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.settings import config_fields
from bert_jax.settings.config_fields import Field
from bert_jax.settings.removed_fields import REMOVED

# The entries of config.json outside of `config` that may change when a run resumes, and those that never can,
# because they determine the meaning of checkpoints. The fields of `config` declare it themselves.
_FREE = (
    "command_line",
    "head",  # follows from the task; runs of older versions have a wrong one for questions
    "vocabulary.file",
    "vocabulary.path",
)
_FIXED = ("vocabulary.digest",)

_DIGEST = re.compile("[0-9a-f]{32,}")
_MOST_LISTED = 4  # differences in a message

# Descriptions of the digests in config.json, for messages.
_INPUTS = {
    "records.fingerprint": "the digest of the records in --config.data.dir",
    "vocabulary.digest": "the digest of the vocabulary",
}


def resume_rule(name: str, declared: Mapping[str, Field]) -> str:
    """Returns the `Field.resume` of an entry of config.json."""
    if name in _FREE:
        return "free"
    if name in _FIXED:
        return "fixed"
    field = declared.get(name.removeprefix("config."))
    return field.resume if field else "same"


def drop_removed(config: dict[str, Any]) -> None:
    """Deletes the fields of a recorded config that no longer exist and have the default that they had."""
    recorded = dict(config_fields.flatten(config))
    for name, default in REMOVED.items():
        if name in recorded and recorded[name] == default:
            *groups, last = name.split(".")
            group = config
            for each in groups:
                group = group[each]
            del group[last]


def check_known(old: Mapping[str, Any], new: Mapping[str, Any], declared: Mapping[str, Field]) -> None:
    """Raises UserError if a recorded config has a field that this version of bert_jax does not have.

    Args:
        old: the config in a work directory, after `drop_removed`.
        new: the config of the run that resumes.
        declared: the fields of the config by their dotted names.
    """
    known = {*declared, *dict(config_fields.flatten(new))}
    for name, value in config_fields.flatten(old):
        if name not in known:
            raise UserError(
                f"config.{name}={_short(value)} of the run does not exist in this version of bert-jax, which "
                "cannot resume it; use the version that started it, or choose another --workdir"
            )


def changes(
    old: Mapping[str, Any], new: Mapping[str, Any], declared: Mapping[str, Field]
) -> dict[str, tuple[Any, Any]]:
    """Returns the differences between two runs.

    A field of `config` that the older run lacks was added by a later version of bert_jax: that run had its
    default. Other entries that only one of them has are ignored.

    Args:
        old: the run in a work directory.
        new: the run that is to go on there.
        declared: the fields of the config by their dotted names.

    Returns:
        {dotted name: (old value, new value)}.
    """
    before = {f"config.{name}": field.default for name, field in declared.items()}
    before |= dict(config_fields.flatten(old))
    return {
        name: (before[name], value)
        for name, value in config_fields.flatten(new)
        if name in before and before[name] != value
    }


def list_changes(
    differing: Mapping[str, tuple[Any, Any]], places: tuple[str, str] = ("there", "here")
) -> str:
    """Returns the differences that `changes` has found as text; those after the first four are counted."""
    there, here = places
    parts = [
        f"{_INPUTS.get(name, name.removeprefix('config.'))} is {_short(old)} {there} and {_short(new)} {here}"
        for name, (old, new) in differing.items()
    ]
    more = [f"and {len(parts) - _MOST_LISTED} more differ"] if len(parts) > _MOST_LISTED else []
    return ", ".join(parts[:_MOST_LISTED] + more)


def _short(value: Any) -> str:
    """Returns a value as shown in messages; a digest is shortened to its first 12 characters."""
    return value[:12] if isinstance(value, str) and _DIGEST.fullmatch(value) else repr(value)
