"""Random changes of bytes and of JSON values, determined by a generator."""

from __future__ import annotations

import bz2
import copy
import gzip
import json
import lzma
import random
from typing import Any

from bert_jax.io import compression

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": compression.zstd.compress,
}


# Pieces that a reader of some format looks for, and odd bytes.
UNITS = [
    b"{{", b"}}", b"[[", b"]]", b"{|\n", b"|}", b"<ref>", b"</ref>", b"<nowiki>", b"</nowiki", b"[[File:a|",
    b"<page>", b"</page>", b"<text>", b"</text>", b"<ns>0</ns>", b"<id>1</id>", b"<doc id=", b"</doc>",
    b"<!--", b"\n", b"\n\n", b"\r", b" ", b"\t", b"&", b"&lt;ref&gt;", b"&#1", b'"', b">", b"''",
    b"'" * 2000, b"[", b",", b'{"text": "', b'"}\n', b"\\ud800", b"\xff", b"\xed\xa0\x80", b"\x00",
    b"\xef\xbb\xbf", "é中".encode(), b"_", b"*** START OF THIS PROJECT GUTENBERG", b"CONTENTS\n", b"1. ",
    b"I. A  3\n", b"--\n", b"word ", b"a" * 3000, b"-DOCSTART- O\n", b"B-PER", b" O\n", b"-1", b"nan",
    b"1e999", b"1" * 5000,
]  # fmt: skip


JUNK = [
    *(None, True, False, 0, -1, 1, 2, 3.5, 1e308, float("nan"), float("inf"), 10**9, 2**31, 2**63, 10**20),
    *(
        "",
        "x",
        "../x",
        "/etc/passwd",
        "\x00",
        "\ud800",
        "1",
        [],
        [1],
        [[]],
        {},
        {"a": 1},
        {"": None},
        ["x"] * 50,
    ),
]


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """The bytes with one to four changes: flipped bits, cuts, repeats, moves, foreign bytes."""
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data) + 1)
        to = min(len(data), at + rng.choice([1, 2, 8, 100, 10_000]))
        kind = rng.randrange(7)
        if kind == 0 and data:
            at = min(at, len(data) - 1)
            data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at]
        elif kind == 2:
            data = data[:at] + data[to:]
        elif kind == 3:
            data = data[:at] + data[at:to] * rng.choice([2, 3, 50]) + data[to:]
        elif kind == 4:
            data = data[:at] + rng.choice(UNITS) * rng.choice([1, 1, 3, 1000]) + data[at:]
        elif kind == 5:
            data = data[:at] + rng.randbytes(rng.randrange(1, 64)) + data[to:]
        else:
            data = data[to:] + data[at:to] + data[:at]
    return data[: 8 << 20]


def mutate_json(rng: random.Random, value: Any) -> Any:
    """The value with one to three fields replaced, removed, renamed or added."""
    value = copy.deepcopy(value)
    for _ in range(rng.randrange(1, 4)):
        inner = value
        while True:
            if not isinstance(inner, dict | list) or not inner:
                break
            key = rng.choice(list(inner)) if isinstance(inner, dict) else rng.randrange(len(inner))
            if isinstance(inner[key], dict | list) and inner[key] and rng.random() < 0.7:
                inner = inner[key]
                continue
            kind = rng.randrange(8)
            if kind == 0:
                del inner[key]
            elif kind == 1 and isinstance(inner, dict):
                inner[f"{key}x"] = inner.pop(key)
            elif kind == 2 and isinstance(inner[key], int) and not isinstance(inner[key], bool):
                inner[key] += rng.choice([-1, 1, 7, 10**6, -(10**12)])
            elif kind == 3:
                inner[key] = [inner[key]]
            else:
                inner[key] = copy.deepcopy(rng.choice(JUNK))
            break
    return value


def json_bytes(rng: random.Random, value: Any) -> bytes:
    """A JSON file with a change in it."""
    if rng.random() < 0.05:
        return rng.choice(
            [b"[" * 200_000, b"{" * 10, b"1" * 6000, b'{"a": ' + b"1" * 6000 + b"}", b"", b"\xff\xfe{}"]
        )
    text = json.dumps(mutate_json(rng, value) if rng.random() < 0.8 else value).encode(
        "utf-8", "surrogatepass"
    )
    return text if rng.random() < 0.8 else mutate_bytes(rng, text)
