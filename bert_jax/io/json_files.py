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
import re
from collections.abc import Iterator, Mapping
from typing import Any

import google_crc32c

from bert_jax.errors import UserError, reading
from bert_jax.io import atomic, files

LINES_SUFFIXES = (".jsonl", ".ndjson", ".json")  # of corpora and texts with an object on each line
_DIGEST, _CRC = "digest", re.compile("[0-9a-f]{8}")
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
    """Returns the content of a JSON file.

    Args:
        path: a local path or a URL.
        schema: the expected schema; see the module docstring.

    Raises:
        UserError: the file does not exist, is not JSON, or does not match the schema.
    """
    with reading(path):
        content = files.read(path)
    return parse(content, path, schema)


def write(path: os.PathLike | str, content: Any) -> None:
    """Writes a JSON file atomically, indented by a space."""
    atomic.write_text(path, json.dumps(content, indent=1) + "\n")


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an object with an additional `digest`, which `unsealed` verifies."""
    return {**content, _DIGEST: _digest(content)}


def unsealed(content: Mapping[str, Any], path: os.PathLike | str) -> dict[str, Any]:
    """Returns the object that was given to `sealed`; one without a digest, of older versions, as it is.

    Raises:
        UserError: the object was changed after it was written to `path`.
    """
    # A digest has another name if the name is what was damaged.
    digests = [name for name, value in content.items() if isinstance(value, str) and _CRC.fullmatch(value)]
    rest = {name: value for name, value in content.items() if name != _DIGEST}
    if digests and content.get(_DIGEST) != _digest(rest):
        raise UserError(f"{path}: its content differs from what was written; restore it from a copy")
    return rest


def _digest(content: Mapping[str, Any]) -> str:
    return f"{google_crc32c.value(json.dumps(content, sort_keys=True).encode()):08x}"


def parse(content: bytes | str, path: os.PathLike | str, schema: Any = dict) -> Any:
    """Returns the parsed content of a JSON file. `path` is used in error messages. See `read`."""
    try:
        value = json.loads(content.decode("utf-8-sig") if isinstance(content, bytes) else content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}); restore it from a copy") from None
    check(value, schema, path)
    return value


def read_lines(content: bytes) -> Iterator[dict[str, Any]]:
    """Yields the objects of JSON lines; skips invalid lines, such as one truncated when a run was killed."""
    for line in content.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def line_file(path: os.PathLike | str, number: int) -> str:
    """Returns the path of the n-th file that continues a file of JSON lines: NAME.1.jsonl for n=1."""
    stem, suffix = os.path.splitext(os.fspath(path))
    return f"{stem}.{number}{suffix}" if number else os.fspath(path)


def line_files(path: os.PathLike | str) -> dict[int, str]:
    """Returns {number: path} of a file of JSON lines (0) and of those that continue it, in their order."""
    prefix, suffix = os.path.splitext(files.name(path))
    names = files.names(files.parent(path))
    middles = (each.removeprefix(prefix).removesuffix(suffix) for each in names if each.startswith(prefix))
    numbers = {0, *(int(each[1:]) for each in middles if re.fullmatch(r"\.[1-9]\d{0,8}", each))}
    paths = {number: line_file(path, number) for number in sorted(numbers)}
    return {number: each for number, each in paths.items() if files.name(each) in names}


def read_line_files(path: os.PathLike | str) -> Iterator[dict[str, Any]]:
    """Yields the objects of a file of JSON lines and of those that continue it; see `read_lines`."""
    for each in line_files(path).values():
        yield from read_lines(files.read(each))


def check(value: Any, schema: Any, path: os.PathLike | str, field: str = "the file") -> None:
    """Raises a UserError unless a value matches a schema.

    Args:
        value: the parsed value.
        schema: the expected schema; see the module docstring.
        path: the file that contains the value, for the message.
        field: the place of the value in the file, such as "splits.train.files[0].rows".
    """
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
                raise UserError(f"{path}: there is no {prefix}{key}, expected {_name(one)}")
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
