"""Digests of arrays, whatever their sharding, and of the files of a directory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

import google_crc32c
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bert_jax.io import atomic, files

FILES = "files.json"


def array_digests(arrays: Mapping[str, jax.Array]) -> dict[str, str]:
    """16 hex digits for each array: a function of its shape, its bits and their places, not of its sharding.

    One dispatch on the devices that hold the arrays; only the digests come to the host. A change to one
    element always shows; a change to several escapes once in 2^64.

    Args:
        arrays: booleans, integers or floats of any shape, sharded in any way over the same devices.
    """
    values = np.asarray(_digest_all(list(arrays.values())))
    return {name: f"{first:08x}{second:08x}" for name, (first, second) in zip(arrays, values, strict=True)}


def write_file_digests(directory: str, but: tuple[str, ...] = ()) -> None:
    """Writes the size and CRC-32C of every file under `directory`, but for some, to `files.json` in it."""
    names = [name for name in files.walk(directory) if name not in (*but, FILES)]
    digests = {name: _file_digest(os.path.join(directory, name)) for name in names}
    atomic.write_text(os.path.join(directory, FILES), json.dumps(digests, indent=1))


def find_damaged_file(directory: str, *, part: int = 0, parts: int = 1) -> str | None:
    """The first file that is missing or not as `files.json` says; None if all are well or there is no list.

    Args:
        directory: what `write_file_digests` was called with.
        part, parts: which share of the files to read, so that several hosts can divide them.
    """
    if not files.exists(os.path.join(directory, FILES)):
        return None
    try:
        expected = json.loads(files.read(os.path.join(directory, FILES)))
        names = sorted(dict(expected))
    except (ValueError, TypeError, RecursionError):
        return FILES
    for name in names[part::parts]:
        try:
            if _file_digest(os.path.join(directory, name)) != expected[name]:
                return name
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return name
    return None


def _file_digest(path: str) -> list[int]:
    size, crc = 0, 0
    with files.open_read(path) as file:
        while chunk := file.read(1 << 24):
            size, crc = size + len(chunk), google_crc32c.extend(crc, chunk)
    return [size, crc]


@jax.jit
def _digest_all(arrays: list[jax.Array]) -> jax.Array:
    return jnp.stack([_digest(x) for x in arrays])


@jax.jit  # inside the other: leaves of one shape are traced once
def _digest(x: jax.Array) -> jax.Array:
    """Two uint32 sums of the elements' bits, each mixed with its place. Sums of integers have no order."""
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    bits = lax.bitcast_convert_type(x, jnp.dtype(f"uint{min(32, x.dtype.itemsize * 8)}")).astype(jnp.uint32)
    place = jnp.zeros(bits.shape, jnp.uint32)
    for axis, size in enumerate(bits.shape):
        place = place * np.uint32(size) + lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
    first = _mix(bits ^ _mix(place + np.uint32(0x9E3779B9)))
    second = _mix(first + place)
    return jnp.stack([first.sum(dtype=jnp.uint32), second.sum(dtype=jnp.uint32)])


def _mix(x: jax.Array) -> jax.Array:
    """A one-to-one mixing of 32 bits ("lowbias32", Wellons' hash-prospector)."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)
