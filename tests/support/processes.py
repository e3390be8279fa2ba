"""Tiny records, a tiny model, and the `pretrain` command on them in a separate process."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import jax
import numpy as np
from support import late_directory, xla_flags

from bert_jax import tokenization
from bert_jax.data import manifests, packed, tfrecord
from bert_jax.io.files import crc32c

LENGTH = 32
SEQUENCES = 4
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONFIG = Path(__file__).resolve().parents[2] / "configs" / "pretrain" / "tiny.py"

# A model that compiles and runs quickly, and a run of 20 steps.
TINY = {
    "model.hidden_size": 32,
    "model.num_hidden_layers": 2,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 64,
    "model.max_position_embeddings": LENGTH,
    "batch_size": 8,
    "steps": 20,
    "optimizer.warmup_steps": 5,
    "checkpoint.every": 5,
    "eval.every": 10,
    "log_every": 1,
}


@contextlib.contextmanager
def quick_compilation():
    """Compiles with few optimizations inside this context, because tests compile longer than they run."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def write_vocabulary(path, words=95):
    """Writes a WordPiece vocabulary of the special tokens and `words` words; returns its path."""
    path = Path(path)
    path.write_text("\n".join([*_SPECIAL, *(f"word{number}" for number in range(words))]) + "\n")
    return path


def write_splits(directory, splits, length, **manifest):
    """Writes {split: the rows of each of its files} and their manifest into a new directory."""
    directory = Path(directory)
    directory.mkdir(parents=True)
    entries = {}
    for split, files in splits.items():
        written = []
        for number, rows in enumerate(files):
            path = directory / f"{split}-{number:05d}-of-{len(files):05d}.tfrecord"
            count, size = tfrecord.write_records(str(path), map(packed.encode_row, rows))
            digest = crc32c(str(path))
            written.append({"name": path.name, "rows": count, "bytes": size, "crc32c": digest})
        rows = [row for rows in files for row in rows]
        sequences = [sequence for row in rows for sequence in row]
        lengths = [len(sequence.ids) for sequence in sequences]
        part = {
            "documents": len(rows),
            "rows": len(rows),
            "sequences": len(sequences),
            "tokens": sum(lengths),
            "random_next": sum(sequence.next_sentence_label == 1 for sequence in sequences),
            "sequence_lengths": np.bincount(lengths, minlength=length + 1).tolist(),
            "files": written,
        }
        entries[split] = manifests.merge_splits([part], length)
    content = {
        "schema": packed.SCHEMA,
        "version": manifests.VERSIONS[packed.SCHEMA],
        "max_seq_length": length,
        "max_sequences_per_row": SEQUENCES,
        "splits": entries,
        "special_ids": {name: number for number, name in enumerate(("pad", "unk", "cls", "sep", "mask"))},
        "sources": [],
    }
    (directory / "manifest.json").write_text(json.dumps(content | manifest))


def change_manifest(directory, *place, value):
    """Sets a value in the manifest of records, at a place of keys and numbers."""
    path = Path(directory) / manifests.FILE
    inner = content = json.loads(path.read_text())
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    path.write_text(json.dumps(content))


def write_records(directory, words=95, rows=64, eval_rows=12, seed=0, nsp="next", length=LENGTH):
    """Writes a directory of random tokens, like `bert-jax data`; returns its path."""
    directory = Path(directory)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = tokenization.load(write_vocabulary(Path(folder) / "vocab.txt", words))
        vocabulary = tokenizer.settings()
    rng = np.random.default_rng(seed)
    splits = {
        split: [[random_row(rng, len(_SPECIAL) + words, length, nsp) for _ in range(count)]]
        for split, count in (("train", rows), ("eval", eval_rows))
    }
    fields = {"vocabulary": vocabulary, "fingerprint": f"random-{words}-{rows}-{seed}"}
    write_splits(directory, splits, length, nsp=nsp, seed=seed, **fields)
    write_vocabulary(directory / "vocab.txt", words)
    return directory


def random_row(rng, vocab_size, length, nsp="next"):
    """Returns the sequences of a row, with the ids of [CLS] and [SEP] in `write_vocabulary`."""
    row, room = [], length
    while room >= 8 and len(row) < SEQUENCES:
        size = int(rng.integers(8, room + 1))
        first = int(rng.integers(3, size - 3))
        ids = rng.integers(len(_SPECIAL), vocab_size, size)
        ids[[0, first - 1, -1]] = 2, 3, 3
        label = int(rng.integers(2))
        if nsp == "none":
            first, label = size, -1
        row.append(packed.PackedSequence(ids.astype(packed.id_dtype(vocab_size)), first, label))
        room -= size
    return row


def command(workdir, records, config=CONFIG, **overrides):
    """Returns `bert-jax` arguments for a tiny pre-training; `**{"checkpoint.every": 2}` sets a field."""
    fields = TINY | {"data.dir": records} | overrides
    return [
        "pretrain",
        f"--config={config}",
        f"--workdir={workdir}",
        *(f"--config.{name}={value}" for name, value in fields.items()),
    ]


def metrics(workdir, kind=None):
    """Returns the lines of a run's metrics.jsonl, or only the lines of one kind."""
    lines = map(json.loads, (Path(workdir) / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if kind is None or line["kind"] == kind]


def start(arguments, devices=1, program=("-m", "bert_jax")):
    """Starts `bert-jax` on `devices` CPU devices; all output goes to one text pipe."""
    return subprocess.Popen(
        [sys.executable, "-u", *program, *arguments],
        env=os.environ
        | {
            "XLA_FLAGS": xla_flags.with_devices(devices),
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(arguments, devices=1):
    """Runs `bert-jax`; returns (exit code, output)."""
    process = start(arguments, devices)
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def free_port():
    """Returns a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Processes:
    """A `bert-jax` run in several processes with some CPU devices each, and the output of each.

    `late` is {number: (directory, seconds)} for processes that see a directory late; see `late_directory`.
    """

    def __init__(self, arguments, processes, devices=2, late=()):
        programs = {
            number: (late_directory.__file__, *map(str, given)) for number, given in dict(late).items()
        }
        address = f"127.0.0.1:{free_port()}"
        self.started = [
            start(
                [
                    *arguments,
                    f"--coordinator_address={address}",
                    f"--num_processes={processes}",
                    f"--process_id={number}",
                    "--heartbeat_timeout=10",
                ],
                devices,
                programs.get(number, ("-m", "bert_jax")),
            )
            for number in range(processes)
        ]
        self.output = [[] for _ in self.started]
        pairs = [(process.stdout, said) for process, said in zip(self.started, self.output, strict=True)]
        self._readers = [threading.Thread(target=self._read, args=pair) for pair in pairs]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream, said):
        for line in stream:
            said.append(line.rstrip())

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for process in self.started:
            process.kill()
        self.wait()

    def __getitem__(self, number):
        return self.started[number]

    def wait_for(self, text, number=0, timeout=200):
        """Waits until the output of a process contains the text."""
        deadline = time.monotonic() + timeout
        while not any(text in line for line in self.output[number]):
            assert time.monotonic() < deadline, self.transcript()
            if self.started[number].poll() is not None:
                self._readers[number].join()
                assert any(text in line for line in self.output[number]), self.transcript()
            time.sleep(0.01)

    def wait(self, timeout=200):
        """Waits for all processes; returns the exit codes."""
        deadline = time.monotonic() + timeout
        codes = [process.wait(max(1, deadline - time.monotonic())) for process in self.started]
        for reader in self._readers:
            reader.join()
        return codes

    def transcript(self):
        return "\n".join(f"{number}: {line}" for number, lines in enumerate(self.output) for line in lines)


def error_of(result):
    """Returns the one-line error of (exit code, stdout, stderr)."""
    code, _, error = result
    assert code == 2 and error.startswith("bert-jax: error: ") and error.count("\n") == 1, result
    return error
