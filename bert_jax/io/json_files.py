"""Writes JSON files, and reads and checks them against a schema, so that no value has an unexpected type.

A schema is one of
    str, bool, int (64 bits), float (also accepts integers), dict or list (with any content);
    range(a, b): an integer in the range;
    [schema]: a list of values of that schema;
    {str: schema}: an object with arbitrary names;
    {"name": schema, "other?": schema}: an object with these names, where names ending in "?" are optional;
    (schema, None): alternatives; None stands for null.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from bert_jax.errors import UserError, reading
from bert_jax.io import atomic, files

LINES_SUFFIXES = (".jsonl", ".ndjson", ".json")  # for corpora and texts with an object on each line
_INTEGERS = range(-(1 << 63), 1 << 63)
_NAMES = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    dict: "an object",
    list: "a list",
}


def read(path: os.PathLike | str, schema: Any = dict) -> Any:
    """Returns the content of a JSON file; UserError if it is missing or does not match the schema."""
    with reading(path):
        return parse(files.read(path), path, schema)


def write(path: os.PathLike | str, content: Any) -> None:
    """Writes a JSON file atomically, indented by a space."""
    atomic.write_text(path, json.dumps(content, indent=1) + "\n")


def parse(content: bytes | str, path: os.PathLike | str, schema: Any = dict) -> Any:
    """Returns the parsed content of a JSON file. `path` is used in error messages. See `read`."""
    try:
        value = json.loads(content.decode("utf-8-sig") if isinstance(content, bytes) else content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})") from None
    check(value, schema, path)
    return value


def read_lines(path: os.PathLike | str) -> Iterator[dict[str, Any]]:
    """Yields the objects of a file of JSON lines, if it exists, without lines that a killed run cut off."""
    for line in files.read(path).splitlines() if files.exists(path) else ():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def check(value: Any, schema: Any, path: os.PathLike | str, field: str = "the file") -> None:
    """Raises a UserError unless a value, at the place `field` of the file `path`, matches a schema."""
    if isinstance(schema, tuple):
        schema = next((one for one in schema if is_of(value, one)), schema)
    if not is_of(value, schema):
        raise UserError(f"{path}: {field} is {json.dumps(value, default=str):.60}, expected {_name(schema)}")
    prefix = "" if field == "the file" else field
    if isinstance(schema, list):
        for number, one in enumerate(value):
            check(one, schema[0], path, f"{prefix}[{number}]")
    elif isinstance(schema, dict):
        prefix += "." * bool(prefix)
        for name, one in schema.items():
            key = name if name is str else name.removesuffix("?")
            if name is not str and key not in value and not name.endswith("?"):
                raise UserError(f"{path}: {prefix}{key} is missing, expected {_name(one)}")
            for each in value if name is str else {key} & value.keys():
                check(value[each], one, path, f"{prefix}{each:.60}")


def _name(schema: Any) -> str:
    if isinstance(schema, tuple):
        return " or ".join(map(_name, schema))
    if isinstance(schema, range):
        return f"a whole number from {schema.start} to {schema.stop - 1}"
    return "null" if schema is None else _NAMES[schema if isinstance(schema, type) else type(schema)]


def is_of(value: Any, schema: Any) -> bool:
    """Returns whether a value's type matches a schema; the content of objects and lists is not checked."""
    if isinstance(schema, tuple):
        return any(is_of(value, one) for one in schema)
    if schema is None or schema is bool or isinstance(value, bool):
        return value is None if schema is None else schema is bool and isinstance(value, bool)
    if isinstance(value, int) and (schema in (int, float) or isinstance(schema, range)):
        return value in (schema if isinstance(schema, range) else _INTEGERS)
    return isinstance(value, schema if isinstance(schema, type) else type(schema))
