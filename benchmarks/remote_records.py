"""How fast the hosts of a pod read records from an object store, with a simulated store.

    python benchmarks/remote_records.py

The store is an fsspec file system in this process, with a latency for each request and a bandwidth for each
host. All of its shards have the content of one file, so 4 TB fit into memory; indices are copied to the local
disk as in a real run. A host takes a batch every --step_time seconds: with an empty cache, then again after a
restart. Hosts share nothing, so --readers of them stand for all, one after the other. The client of a real
bucket (HTTPS, gcsfs) is not measured.
"""

from __future__ import annotations

import asyncio
import collections
import io
import itertools
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from typing import ClassVar

import fsspec
import numpy as np
from absl import app, flags
from fsspec.asyn import AsyncFileSystem

from bert_jax.data import cache, loader, manifests, packed, records, tfrecord

FLAGS = flags.FLAGS
flags.DEFINE_integer("hosts", 64, "Hosts of the pod.")
flags.DEFINE_integer("readers", 6, "How many of the hosts read, one after the other.")
flags.DEFINE_integer("shards", 32_000, "Record files.")
flags.DEFINE_float("terabytes", 4, "Bytes of the records.")
flags.DEFINE_integer("batch_size", 4608, "Rows of 1,024 tokens in a global batch.")
flags.DEFINE_integer("steps", 40, "Steps before and after the restart.")
flags.DEFINE_float("step_time", 0.5, "Seconds of a step.")
flags.DEFINE_float("latency", 0.06, "Seconds of a request; one in 200 takes 1 s more.")
flags.DEFINE_float("bandwidth", 200, "MB per second of a host.")

_LENGTH, _VOCABULARY = 1024, 50_368
_CONNECTIONS, _PAGE = 100, 5000  # of gcsfs: at the same time; files of a list


class Store(AsyncFileSystem):
    """pod://HOST/records, whose use is counted for each host."""

    protocol = "pod"
    shard = index = b""
    objects: ClassVar[dict[str, bytes]] = {}
    requests: ClassVar = collections.Counter()
    received: ClassVar = collections.Counter()
    free: ClassVar = collections.defaultdict(float)  # the time at which a host has received what it asked for
    connections: ClassVar = collections.defaultdict(lambda: asyncio.Semaphore(_CONNECTIONS))

    async def _wait(self, path, size, requests=1):
        host, is_index = path.split("/")[0], path.endswith(tfrecord.INDEX_SUFFIX)
        async with self.connections[host]:
            self.requests[host, is_index] += requests
            self.received[host, is_index] += size
            begun = time.monotonic()
            self.free[host] = max(begun, self.free[host]) + size / (FLAGS.bandwidth * 1e6)
            latency = requests * (FLAGS.latency + (random.random() < 1 / 200))
            await asyncio.sleep(max(self.free[host] - begun, latency))

    def _content(self, path):
        name = path.rpartition("/")[2]
        other = self.index if name.endswith(tfrecord.INDEX_SUFFIX) else self.shard
        return self.objects.get(name, other)

    async def _info(self, path, **options):
        await self._wait(path, 0)
        kind = "file" if "." in path else "directory"
        return {"name": path, "size": len(self._content(path)), "type": kind}

    async def _ls(self, path, detail=True, **options):
        files = [f"{path}/{name}" for name in self.objects]
        shards = (f"{path}/train-{i:05d}.tfrecord" for i in range(FLAGS.shards))
        files += [name + suffix for name in shards for suffix in ("", tfrecord.INDEX_SUFFIX)]
        await self._wait(path, 0, requests=-(-len(files) // _PAGE))
        return [{"name": each, "size": len(self._content(each)), "type": "file"} for each in files]

    async def _cat_file(self, path, start=None, end=None, **options):
        content = self._content(path)[start:end]
        await self._wait(path, len(content))
        return content

    async def _get_file(self, rpath, lpath, **options):
        with open(lpath, "wb") as file:
            file.write(await self._cat_file(rpath))

    def _open(self, path, mode="rb", **options):
        return io.BytesIO(self.cat_file(path))


def fill_store() -> int:
    """Writes the shard and the manifest; returns the mean number of bytes of a row."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        ids = rng.integers(5, _VOCABULARY, (100, _LENGTH)).astype("<u2")
        frames = [tfrecord.frame(packed.encode_row([packed.PackedSequence(row, _LENGTH, -1)])) for row in ids]
        rows = round(FLAGS.terabytes * 1e12 / FLAGS.shards / len(frames[0]))
        tfrecord.write_index(f"{folder}/x", np.cumsum([0] + [len(frames[i % 100]) for i in range(rows - 1)]))
        with open(f"{folder}/x{tfrecord.INDEX_SUFFIX}", "rb") as file:
            Store.index = file.read()
    Store.shard = b"".join(frames[i % 100] for i in range(rows))
    total = FLAGS.shards * rows
    counts = dict.fromkeys(("documents", "rows", "sequences", "tokens", "random_next"), total)
    names = (f"train-{number:05d}.tfrecord" for number in range(FLAGS.shards))
    shards = [{"name": name, "rows": rows, "bytes": len(Store.shard)} for name in names]
    vocabulary = {"kind": "wordpiece", "file": "vocab.txt", "digest": "", "size": _VOCABULARY}
    manifest = {
        **{"schema": packed.SCHEMA, "version": 1, "max_seq_length": _LENGTH, "max_sequences_per_row": 16},
        "vocabulary": vocabulary | {"lower_case": True, "strip_accents": True},
        "special_ids": {name: number for number, name in enumerate(("pad", "unk", "cls", "sep", "mask"))},
        **{"sources": [], "fingerprint": "", "splits": {"train": counts | {"files": shards}}},
    }
    Store.objects = {manifests.FILE: json.dumps(manifest).encode(), "vocab.txt": b"[PAD]\n"}
    fsspec.register_implementation("pod", Store)
    return len(Store.shard) // rows


def read(number: int, first_step: int) -> dict[str, float]:
    """Reads the batches of one host; returns what it needed."""
    host = str(number)
    before = {key: (Store.requests[key], Store.received[key]) for key in ((host, False), (host, True))}
    begun = time.monotonic()
    copy = cache.local_copy(f"pod://{host}/records", lambda line: None)
    dataset = records.open_dataset(copy, "train")
    own = np.array_split(np.arange(FLAGS.batch_size), FLAGS.hosts)[number]
    batches = loader.train_batches(dataset, FLAGS.batch_size, 0, first_step, own)
    next(batches)
    found, waits = {"start-up, s": time.monotonic() - begun}, []
    for _ in range(FLAGS.steps - 1):
        time.sleep(FLAGS.step_time)
        asked = time.monotonic()
        next(batches)
        waits.append(time.monotonic() - asked)
    batches.close()
    for key, name in (((host, False), "rows"), ((host, True), "indices")):
        found[f"requests for {name}"] = Store.requests[key] - before[key][0]
        found[f"MB of {name}"] = (Store.received[key] - before[key][1]) / 1e6
    return found | {"stalls (over 20 ms)": sum(wait > 0.02 for wait in waits), "longest wait, s": max(waits)}


def both(number: int) -> list[dict[str, float]]:
    os.environ["BERT_JAX_RECORD_CACHE"] = directory = tempfile.mkdtemp()
    try:
        return [read(number, start) for start in (100_000, 100_000 + FLAGS.steps)]
    finally:
        shutil.rmtree(directory)


def main(_) -> None:
    row, hosts = fill_store(), FLAGS.hosts
    numbers = np.linspace(0, hosts - 1, FLAGS.readers).astype(int)
    measured = list(zip(*map(both, numbers.tolist()), strict=True))
    print(f"| a host, {FLAGS.steps} steps | cold: median | maximum | restarted: median | maximum |")
    print("|---|---|---|---|---|")
    for name in measured[0][0]:
        values = [[found[name] for found in runs] for runs in measured]
        pairs = itertools.chain.from_iterable((statistics.median(each), max(each)) for each in values)
        print(f"| {name} | {' | '.join(f'{value:.4g}' for value in pairs)} |")
    each = FLAGS.batch_size / hosts
    rate, rows = each / FLAGS.step_time, FLAGS.terabytes * 1e12 / row
    known = np.log(0.5) / (each * np.log1p(-tfrecord.INDEX_BLOCK / rows))
    print(f"\nBy calculation, {FLAGS.terabytes:g} TB on {hosts} hosts:\n\n| | |\n|---|---|")
    for name, value in {
        "rows, of bytes each": f"{rows:.3g}, {row:,}",
        "rows per step and host": f"{each:.0f}",
        "requests per second of a host, of all": f"{rate:.0f}, {rate * hosts:,.0f}",
        "MB per second of a host, of all": f"{rate * row / 1e6:.2f}, {rate * hosts * row / 1e6:.1f}",
        "GB of indices on each host": f"{8 * rows / 1e9:.1f}",
        "steps until half of the rows need no request for an index": f"{known:,.0f}",
        "steps of an epoch": f"{rows / FLAGS.batch_size:,.0f}",
    }.items():
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    app.run(main)
