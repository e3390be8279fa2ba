"""Values of JSON, in a line or in a cell of a table, as the texts of fields."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.tasks.readers.report import Malformed

LABEL_SEPARATOR = ","  # separates the labels of a multi-label column
CHOICE = "choice "  # followed by a number: the field of one choice
NEGATIVE = "negative "  # and of one hard negative


def parse_object(line: str) -> dict[str, Any]:
    """Returns the JSON object in a line. Raises Malformed if the line holds anything else."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise Malformed(f"not JSON: {reason} (expected one object on each line)") from None
    if not isinstance(row, dict):
        raise Malformed("a JSON value that is not an object (expected one object on each line)")
    return row


def find_key(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """Returns the first of some names for which a JSON object has a value.

    Raises:
        Malformed: the object has none of them.
    """
    for name in names:
        if row.get(name) is not None:
            return name
    if names[0] in row:
        raise Malformed(f"{names[0]!r} is null")
    fields = ", ".join(map(repr, list(row)[:20])) or "no fields"
    raise Malformed(f"no {names[0]!r} in the object; it has {fields}")


def encodable(text: str, errors: str = "replace") -> str:
    """Returns a text of JSON, which may have lone surrogates, as it can be written in UTF-8.

    Args:
        text: the text.
        errors: what becomes of a lone surrogate, as in `str.encode`. By default it is a question mark, which
            keeps the positions of answers in the text.
    """
    return text if text.isascii() else text.encode("utf-8", errors).decode("utf-8")


def encodable_id(text: str) -> str:
    """Returns an id of JSON as `encodable` does, with lone surrogates escaped, so that ids stay distinct."""
    return encodable(text, "backslashreplace")


def list_in_cell(text: str, field: str) -> list[str] | None:
    """Returns the list of texts that a cell of a table holds as JSON; None for any other text.

    Args:
        text: the cell.
        field: the field. Labels may also be numbers and booleans, as in `json_text`.
    """
    if not text.lstrip().startswith("["):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    kinds = (str, bool, int, float) if field == "label" else str
    if not isinstance(found, list) or not all(isinstance(one, kinds) for one in found):
        return None
    return [json_text(one, field, field) for one in found]


def json_text(value: Any, field: str, key: str) -> Any:
    """Returns a JSON value as the text of a field; a list of choices or negatives as a list of texts.

    Args:
        value: the value.
        field: the field. A label may also be a finite number, a boolean or a list of labels, and an id a
            number or a boolean.
        key: the key of the value in the JSON object, for messages.

    Raises:
        Malformed: the value has a type that the field does not allow.
    """
    if isinstance(value, str):
        return encodable_id(value) if field == "id" else encodable(value)
    for kind in (CHOICE, NEGATIVE):
        if field.startswith(kind) and isinstance(value, list):
            return [json_text(one, kind.strip(), key) for one in value]
    if field == "label" and isinstance(value, list):
        labels = [json_text(one, field, key) for one in value]
        if several := next((label for label in labels if LABEL_SEPARATOR in label), ""):
            raise Malformed(f"{several!r} in {key!r} has a {LABEL_SEPARATOR!r}, which separates labels")
        joined = LABEL_SEPARATOR.join(labels)
        return json.dumps(labels) if joined.startswith("[") else joined  # a bracket would begin a JSON list
    if field == "label" and isinstance(value, float) and not math.isfinite(value):
        raise Malformed(f"{key!r} is {value}, expected a label; NaN is what a missing one is often saved as")
    if field in ("label", "id") and isinstance(value, (bool, int, float)):
        return str(value).lower() if isinstance(value, bool) else str(value)
    raise Malformed(f"{key!r} is {type(value).__name__}, expected a string")
