"""Caches the records of an object store (gs://...) on the local disk: whole files, or indices alone.

If a directory is larger than $BERT_JAX_RECORD_CACHE_GB, the local copy is a manifest with the entry `url`,
the vocabulary, and indices that `tfrecord.RemoteFile` fills. Rows are read from the URL when a batch needs
them.
"""

from __future__ import annotations

import concurrent.futures
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from typing import Any

from bert_jax.data import manifests, records, tfrecord
from bert_jax.errors import UserError, file_error
from bert_jax.io import atomic, comma_lists, files, scratch
from bert_jax.io.wording import counted

_THREADS = 8
_LIMIT = "BERT_JAX_RECORD_CACHE_GB"


def localize(data_dir: str, log: Callable[[str], None] = print) -> str:
    """Returns record directories, separated by commas, with each URL replaced by `local_copy`."""
    names = comma_lists.paths(data_dir)
    return ",".join(local_copy(name, log) if files.is_remote(name) else name for name in names)


def local_copy(url: str, log: Callable[[str], None] = print) -> str:
    """Returns the local copy of a remote record directory, after fetching the files that are missing.

    It is in $BERT_JAX_RECORD_CACHE, or else in bert_jax/records in $XDG_CACHE_HOME or ~/.cache. Records of
    other programs have no manifest and are identified by the names and sizes of their files. The processes of
    a host share one copy: one fetches while the others wait. If a directory is above the limit, the copy has
    no record files; the remote sizes and, on GCS, checksums are compared with the manifest.
    """
    base = url.rstrip("/")
    path = f"{base}/{manifests.FILE}"
    content, later = b"", {}
    try:
        if foreign := records.foreign_files(base):
            wanted = {name: files.size(f"{base}/{name}") for name in foreign}
            key = json.dumps([base, wanted]).encode()
        else:
            key = content = files.read(path)
            manifest = manifests.parse(content, path)
            listed = [entry for split in manifest["splits"].values() for entry in split["files"]]
            wanted = {manifest["vocabulary"]["file"]: -1} | {e["name"]: e["bytes"] for e in listed}
        gigabytes = sum(wanted.values()) / 1e9
        if is_remote := gigabytes > (limit := float(os.environ.get(_LIMIT) or "100")):
            if foreign:
                raise UserError(
                    f"{url} has no {manifests.FILE} and {gigabytes:.3g} GB, more than {_LIMIT}={limit:g}"
                )
            _compare(base, listed)
            later = {entry["name"] + tfrecord.INDEX_SUFFIX: 8 * entry["rows"] for entry in listed}
            wanted = {manifest["vocabulary"]["file"]: -1}
            content = json.dumps(manifest | {"url": base}).encode()
    except OSError as error:
        raise file_error(f"{path}: cannot be read ({error.strerror or error})", error) from error
    name = f"{base.rpartition('/')[2]}-{hashlib.sha256(key).hexdigest()[:16]}"
    cache = os.environ.get("BERT_JAX_RECORD_CACHE") or scratch.cache_directory("records")
    target = os.path.join(cache, name)

    def is_missing(name: str, size: int) -> bool:
        path = os.path.join(target, name)
        return not os.path.exists(path) or size not in (-1, os.path.getsize(path))

    try:
        os.makedirs(target, exist_ok=True)
        with open(os.path.join(target, "lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            missing = {name: size for name, size in (wanted | later).items() if is_missing(name, size)}
            needed, free = sum(max(0, size) for size in missing.values()), shutil.disk_usage(target).free
            if free < needed:
                raise UserError(
                    f"{url} needs {needed / 1e9:.1f} GB, and {target} has {free / 1e9:.1f} GB free; set "
                    "BERT_JAX_RECORD_CACHE to a directory on another disk"
                )
            if is_remote:
                log(f"reading rows of the {gigabytes:.3g} GB at {url}; their indices are copied to {target}")
            missing = {name: size for name, size in missing.items() if name not in later}
            if missing:
                log(f"fetching {counted(len(missing), 'file')} of {url} to {target}")
                with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
                    list(threads.map(lambda name: _fetch(url, target, name, missing[name]), missing))
            if content:
                atomic.write_file(os.path.join(target, manifests.FILE), content)
    except OSError as error:
        message = f"{url} cannot be copied to {target} ({error.strerror or error})"
        raise file_error(message, error) from error
    return target


def _fetch(url: str, target: str, name: str, size: int) -> None:
    path = os.path.join(target, name)
    with atomic.replace_file(path) as copy:
        files.download(f"{url.rstrip('/')}/{name}", copy.name)  # not to a directory that may be too small
        found = os.path.getsize(copy.name)
        if size >= 0 and found != size:
            raise UserError(f"{url}/{name} is incomplete ({found:,} of {size:,} bytes)")


def _compare(base: str, listed: list[dict[str, Any]]) -> None:
    """Raises UserError for the first file in the manifest that is missing or different."""
    stored = files.remote_files(base)
    for entry in listed:
        name, expected = entry["name"], entry["bytes"]
        size, crc = stored.get(name, (0, None))
        index_size, _ = stored.get(name + tfrecord.INDEX_SUFFIX, (0, None))
        another = size != expected or (crc is not None and crc != entry.get("crc32c", crc))
        if another or index_size != 8 * entry["rows"]:
            raise UserError(
                f"{base}/{name} or its .index does not match {manifests.FILE}; the file has "
                f"{counted(size, 'byte')}, expected {expected:,}"
            )
