"""Reads the format `jsonl`: one JSON object per line, one field of which is the text of a document."""

import collections
import json
from collections.abc import Iterator
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io.wording import counted
from bert_jax.tokenization import normalization
from data_pipelines.readers.documents import (
    Controls,
    Document,
    Fields,
    Range,
    decode,
    not_text,
    text_document,
)
from data_pipelines.readers.lines import Line, Lines, open_lines

LONGEST_LINE = 32 << 20  # bytes; longer lines are counted as bad lines
_CHECKED = 100
_KINDS = {list: "lists", dict: "objects", int: "numbers", float: "numbers", bool: "true or false"}


def read(
    range_: Range, counts: collections.Counter[str], fields: Fields, controls: Controls
) -> Iterator[Document]:
    """Yields the documents of the lines that start in a range; newlines in the text separate paragraphs.

    Raises:
        UserError: none of the first lines of the file has the field.
    """
    if range_.start == 0:
        _check(range_, fields)
    with open_lines(range_, collections.Counter(), LONGEST_LINE) as lines:
        for line in _nonblank(lines):
            if range_.end is not None and line.offset >= range_.end:
                return
            counts["bytes"] += len(line.data)
            record = _record(line, counts)
            if record is None:
                counts["bad_lines"] += 1
                continue
            text = record.get(fields.text)
            if not isinstance(text, str):
                counts["without_text"] += 1
                continue
            key = _key(record, fields, range_, line)
            yield from text_document(key, _encodable(text, counts), counts, controls)


def _record(line: Line, counts: collections.Counter[str]) -> dict[str, Any] | None:
    """Returns the JSON object of a line, or None if it is a bad line; updates "undecodable"."""
    if not line.ends:
        return None
    undecodable: collections.Counter[str] = collections.Counter()
    try:
        try:
            record = json.loads(line.data)
        except UnicodeDecodeError:
            record = json.loads(decode(line.data, undecodable))
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    counts.update(undecodable)
    return record


def _key(record: dict[str, Any], fields: Fields, range_: Range, line: Line) -> str:
    found = record.get(fields.id) if fields.id else None
    if isinstance(found, str | int) and found != "":
        return _encodable(str(found), collections.Counter())
    return f"{range_.name}:{line.offset}"


def _encodable(text: str, counts: collections.Counter[str]) -> str:
    """Replaces unpaired surrogates, which JSON can represent and UTF-8 cannot, by U+FFFD."""
    encodable = normalization.without_surrogates(text)
    counts["undecodable"] += encodable.count("\ufffd") - text.count("\ufffd")
    return encodable


def _check(range_: Range, fields: Fields) -> None:
    """Raises UserError if none of the first 100 lines of the whole file has the text field."""
    seen = bad = 0
    first = b""
    names: dict[str, None] = {}
    kinds: dict[str, None] = {}  # of the text field
    whole = Range(range_.path, range_.name, 0, None, range_.size)
    with open_lines(whole, collections.Counter(), LONGEST_LINE) as lines:
        for line in _nonblank(lines):
            first = first or line.data.strip()
            record = _record(line, collections.Counter())
            if record is not None and isinstance(record.get(fields.text), str):
                return
            seen += record is not None
            bad += record is None
            names |= dict.fromkeys(record or ())
            if record is not None and record.get(fields.text) is not None:
                kinds[_KINDS[type(record[fields.text])]] = None
            if seen + bad >= _CHECKED:
                break
    if seen:
        if kinds:
            raise UserError(not_text(range_.path, fields.text, " and ".join(kinds), list(names)[:20]))
        shown = ", ".join(list(names)[:20]) or "none"
        raise UserError(
            f"--text_field={fields.text}: none of the first {counted(seen, 'line')} of {range_.path} has a "
            f"text of that name; their fields are {shown}"
        )
    if bad:
        remedy = "; `jq -c '.[]'` makes such lines of a JSON array" if first.startswith(b"[") else ""
        raise UserError(
            f"{range_.path}: none of the first {counted(bad, 'line')} is a JSON object; expected one on each "
            f"line (--input_format=jsonl){remedy}"
        )


def _nonblank(lines: Lines) -> Iterator[Line]:
    return (line for line in lines if line.begins and line.data.strip())
