"""JSON files, read and checked against a schema, so that no code after it meets a value of another type.

A schema is one of
    str, bool, int (of 64 bits), float (whole numbers too), dict or list (of anything);
    range(a, b): a whole number in it;
    [schema]: a list; {str: schema}: an object with any names;
    {"name": schema, "other?": schema}: an object with these names, of which those with "?" may be missing;
    (schema, None): alternatives; None is null.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from bert_jax.errors import UserError, file_error
from bert_jax.io import files

LARGEST = 256 << 20  # bytes of a file
_INTEGERS = range(-(1 << 63), 1 << 63)
_SHOWN = 60  # characters of a value in a message
_TYPES = {str: "text", bool: "true or false", float: "a number", dict: "an object", list: "a list"}


def read(path: os.PathLike | str, schema: Any = dict) -> Any:
    """Returns what a JSON file holds.

    Args:
        path: A local path or a URL.
        schema: What is expected, as the module says.

    Raises:
        UserError: No such file, not JSON, or not of the schema: one line with the file, the field, its value
            and what is expected.
    """
    try:
        if files.size(path) > LARGEST:
            raise UserError(f"{path}: over {LARGEST >> 20} MiB, which is too large for this file; restore it")
        content = files.read(path)
    except OSError as error:
        raise file_error(f"{path}: cannot be read ({error.strerror or error})", error) from None
    return parse(content, path, schema)


def parse(content: bytes | str, path: os.PathLike | str, schema: Any = dict) -> Any:
    """Returns what the content of a JSON file holds; `path` is named in messages. See `read`."""
    try:
        value = json.loads(content.decode("utf-8-sig") if isinstance(content, bytes) else content)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}: {error.msg}"
        raise UserError(f"{path}: not JSON ({place}); restore it from a copy") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; expected JSON") from None
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else "a number of thousands of digits"
        raise UserError(f"{path}: {what}; expected a JSON file of bert-jax or of a model") from None
    check(value, schema, path)
    return value


def read_lines(content: bytes) -> Iterator[dict[str, Any]]:
    """Yields the objects of JSON-lines, without what is none, such as a line that a killed run cut short."""
    for line in content.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def check(value: Any, schema: Any, path: os.PathLike | str, field: str = "") -> None:
    """Raises UserError unless a value is of a schema.

    Args:
        path: The file that the value is from.
        field: Where in the file the value is, such as "splits.train.files[0].rows"; "" for all of it.
    """
    if not is_of(value, schema):
        shown = json.dumps(value, default=str)[: _SHOWN + 1] if not isinstance(value, dict | list) else ""
        shown = shown[:_SHOWN] + "..." if len(shown) > _SHOWN else shown
        shown = shown or ("an object" if isinstance(value, dict) else "a list")
        raise UserError(f"{path}: {field or 'the file'} is {shown}, expected {describe(schema)}")
    if isinstance(schema, tuple):
        schema = next(one for one in schema if is_of(value, one))
    if isinstance(schema, list):
        for number, one in enumerate(value):
            check(one, schema[0], path, f"{field}[{number}]")
    elif isinstance(schema, dict):
        prefix = f"{field}." if field else ""
        for name, one in schema.items():
            if name is str:
                for key, item in value.items():
                    check(item, one, path, prefix + key[:_SHOWN])
            elif name.removesuffix("?") in value:
                check(value[name.removesuffix("?")], one, path, prefix + name.removesuffix("?"))
            elif not name.endswith("?"):
                raise UserError(f"{path}: there is no {prefix}{name}, expected {describe(one)}")


def describe(schema: Any) -> str:
    """Returns what a schema expects, in words."""
    if isinstance(schema, tuple):
        return " or ".join(describe(one) for one in schema)
    if schema is None:
        return "null"
    if schema is int:
        return "a whole number"
    if isinstance(schema, range):
        return f"a whole number from {schema.start} to {schema.stop - 1}"
    return _TYPES[schema if isinstance(schema, type) else type(schema)]


def is_of(value: Any, schema: Any) -> bool:
    """Returns whether a value is of a schema; not whether what is in an object or a list is."""
    if isinstance(schema, tuple):
        return any(is_of(value, one) for one in schema)
    if schema is None or schema is bool:
        return value is None if schema is None else isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if schema is int:
        schema = _INTEGERS
    if isinstance(schema, range):
        return isinstance(value, int) and value in schema
    if schema is float and isinstance(value, int):
        return value in _INTEGERS
    return isinstance(value, schema if isinstance(schema, type) else type(schema))
