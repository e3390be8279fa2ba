"""Text to a directory of packed records: what `bert-jax data` runs."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

from etils import epath

import bert_jax
from bert_jax import tokenization
from bert_jax.data import atomic, packed
from bert_jax.errors import UserError
from data_pipelines import pairs, readers, stages
from data_pipelines.progress import Progress
from data_pipelines.workers import Pool

UNFINISHED = "unfinished"  # the folder, inside the output, that an interrupted build goes on from
_RANGE_BYTES = (16 << 20, 256 << 20)
_SHARD_BYTES = 128 << 20


@dataclasses.dataclass(frozen=True)
class Options:
    """What the records depend on; see the flags of `bert-jax data`."""

    input: tuple[str, ...]
    vocab: str
    output_dir: str
    input_format: str = "text"
    text_field: str = "text"
    id_field: str = ""
    tfds_data_dir: str = ""
    max_seq_length: int = 128
    max_sequences_per_row: int = 0  # 0: by the length
    short_seq_prob: float = 0.1
    dupe_factor: int = 1
    seed: int = 12345
    eval_fraction: float = 0.01
    num_shards: int = 0  # 0: by the size
    lower_case: bool | None = None  # None: by the vocabulary

    def check(self) -> None:
        """Raises UserError for a value that cannot be."""
        rules = [
            ("text_field", bool(self.text_field), "the name of a field"),
            ("input_format", self.input_format in readers.FORMATS, f"one of {', '.join(readers.FORMATS)}"),
            (
                "max_seq_length",
                pairs.SHORTEST <= self.max_seq_length < 1 << 16,
                f"at least {pairs.SHORTEST} ([CLS], [SEP] twice, and a token each of A and B), under 65,536",
            ),
            (
                "max_sequences_per_row",
                self.max_sequences_per_row >= 0,
                "at least 1, or 0 to choose by the length",
            ),
            ("short_seq_prob", 0 <= self.short_seq_prob <= 1, "a probability"),
            ("dupe_factor", self.dupe_factor >= 1, "at least 1"),
            ("eval_fraction", 0 <= self.eval_fraction <= 0.5, "0 (hold nothing out) to 0.5"),
            ("num_shards", self.num_shards >= 0, "at least 1, or 0 to choose by the size"),
        ]
        for name, sound, expected in rules:
            if not sound:
                raise UserError(f"--{name}={getattr(self, name)}: expected {expected}")
        if not self.output_dir:
            raise UserError("--output_dir is missing: where should the records go?")


@dataclasses.dataclass(frozen=True)
class Built:
    """What a build left."""

    manifest: dict[str, Any]
    already_done: bool  # nothing had to be done
    peak_memory: int  # bytes, of the largest worker


def build(options: Options, workers: int = 1, progress: Progress | None = None) -> Built:
    """Makes the record directory, or finishes it.

    The files are a function of the inputs, the vocabulary and `options`, and not of the workers or of
    interruptions.

    Raises:
        UserError: no text, one document, a vocabulary without a special token, a directory that cannot be
            written or that holds other records, ...
    """
    options.check()
    tokenizer = tokenization.load(options.vocab, lower_case=options.lower_case)
    progress = progress or Progress()
    try:
        paths = readers.list_inputs(options.input, options.tfds_data_dir)
        with progress, Pool(workers) as pool:
            return _build(options, tokenizer, paths, pool, progress)
    except OSError as error:
        raise UserError(f"{error.filename or options.output_dir}: {error.strerror or error}") from error


def _build(
    options: Options, tokenizer: tokenization.Tokenizer, paths: Sequence[str], pool: Pool, progress: Progress
) -> Built:
    sizes = [readers.file_size(path) for path in paths]
    progress.start("reading", sum(sizes), "MB", 1e-6)
    digests = pool.run(
        stages.file_digest, [(None, path) for path in paths], lambda i, result: progress.advance(sizes[i])
    )
    settings = _settings(options, tokenizer, paths, digests)
    finished = _finished(options.output_dir, settings)
    if finished:
        return Built(finished, True, 0)
    with _claimed(options.output_dir, settings) as unfinished:
        build = _Build(options, tokenizer, settings, unfinished, pool, progress)
        manifest = build.run(paths, sum(sizes))
    shutil.rmtree(unfinished)
    return Built(manifest, False, build.peak_memory)


class _Build:
    """One pass through the stages. All files that are not the result are in the folder `unfinished`."""

    def __init__(
        self,
        options: Options,
        tokenizer: tokenization.Tokenizer,
        settings: dict[str, Any],
        unfinished: str,
        pool: Pool,
        progress: Progress,
    ):
        self.options, self.settings, self.unfinished = options, settings, unfinished
        self.pool, self.progress = pool, progress
        self.peak_memory = 0
        self.special_ids = {
            name: getattr(tokenizer, f"{name}_id") for name in ("pad", "unk", "cls", "sep", "mask")
        }
        path = tokenizer.path if "://" in tokenizer.path else os.path.abspath(tokenizer.path)
        self.vocabulary = stages.Vocabulary(path, tokenizer.lower_case, tokenizer.strip_accents)

    def run(self, paths: Sequence[str], size: int) -> dict[str, Any]:
        tokenized = self._tokenize(paths, size)
        documents = sum(result["documents"] for result in tokenized)
        if not documents:
            raise self._refusal(
                f"no text in the {len(paths)} input files: "
                f"is --input_format={self.options.input_format} right?"
            )
        if documents == 1:
            raise self._refusal(
                "the corpus is one document, and next-sentence prediction draws sentences of others: give "
                "more "
                f"documents{' (a blank line ends one)' if self.options.input_format == 'text' else ''}"
            )
        parts = self._make_rows(tokenized)
        splits = self._make_shards(parts)
        return self._finish(tokenized, splits)

    def _refusal(self, message: str) -> UserError:
        """An error that no second try with the same settings can mend: nothing is left behind."""
        shutil.rmtree(self.unfinished)
        with contextlib.suppress(OSError):
            os.rmdir(self.options.output_dir)
        return UserError(message)

    def _path(self, name: str) -> str:
        return os.path.join(self.unfinished, name)

    def _run(self, function, tasks, advance) -> list[dict[str, Any]]:
        def on_done(index: int, result: dict[str, Any]) -> None:
            self.progress.advance(advance(index))
            self.peak_memory = max(self.peak_memory, result["peak_memory"])

        return self.pool.run(function, [(task.output + ".json", task) for task in tasks], on_done)

    def _tokenize(self, paths: Sequence[str], size: int) -> list[dict[str, Any]]:
        smallest, largest = _RANGE_BYTES
        target = min(max(smallest, size // 1024), largest)
        groups = _grouped(readers.split_ranges(paths, target, self.options.input_format), target)
        tasks = [
            stages.TokenizeTask(
                group,
                self.options.input_format,
                self.vocabulary,
                self._path(f"documents-{number:06d}"),
                readers.Fields(self.options.text_field, self.options.id_field),
            )
            for number, group in enumerate(groups)
        ]
        self.progress.start("tokenizing", size, "MB", 1e-6)
        return self._run(stages.tokenize, tasks, lambda index: sum(range_.size for range_ in groups[index]))

    def _make_rows(self, tokenized: list[dict[str, Any]]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
        """The record files of each split's buckets, and their counts."""
        buckets = stages.plan(tokenized, self.options.eval_fraction)
        runs = tuple(run for result in tokenized for run in result["runs"])
        tasks = [
            stages.RowsTask(
                bucket,
                runs,
                self.vocabulary,
                self.options.seed,
                self.settings["max_seq_length"],
                self.settings["max_sequences_per_row"],
                self.options.short_seq_prob,
                self.options.dupe_factor,
                self._path(f"rows-{bucket.split}-{bucket.number:06d}"),
            )
            for bucket in buckets
        ]
        self.progress.start("making rows", len(tasks), "buckets")
        results = self._run(stages.make_rows, tasks, lambda index: 1)
        for run in runs:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(run)
        parts: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        for task, result in zip(tasks, results, strict=True):
            parts.setdefault(task.bucket.split, []).append((task.output, result))
        if sum(result["documents"] for _, result in parts["train"]) < 2:
            raise self._refusal(
                f"--eval_fraction={self.options.eval_fraction} leaves under two documents to train on: give "
                "more documents, or a smaller fraction"
            )
        return parts

    def _make_shards(self, parts: dict[str, list[tuple[str, dict[str, Any]]]]) -> dict[str, Any]:
        """The splits as the manifest has them."""
        tasks: list[stages.ShardTask] = []
        owners: list[str] = []
        for split, results in parts.items():
            shards = self._shards(split, parts)
            shares = stages.share_rows([(path, result["rows"]) for path, result in results], shards)
            for number, share in enumerate(shares):
                name = f"{split}-{number:05d}-of-{shards:05d}.tfrecord"
                tasks.append(stages.ShardTask(share, self._path(name)))
                owners.append(split)
        self.progress.start("writing files", len(tasks), "files")
        results = self._run(stages.make_shard, tasks, lambda index: 1)
        splits = {}
        for split in sorted(parts, reverse=True):  # train, eval
            counts = packed.merge_splits(
                [result for _, result in parts[split]], self.settings["max_seq_length"]
            )
            counts["files"] = [
                {"name": os.path.basename(task.output), "rows": result["rows"], "bytes": result["bytes"]}
                for task, owner, result in zip(tasks, owners, results, strict=True)
                if owner == split
            ]
            splits[split] = counts
        return splits

    def _shards(self, split: str, parts: dict[str, list[tuple[str, dict[str, Any]]]]) -> int:
        rows = {name: sum(result["rows"] for _, result in results) for name, results in parts.items()}
        wanted = self.options.num_shards
        if not wanted:
            return -(-sum(result["bytes"] for _, result in parts[split]) // _SHARD_BYTES)
        if wanted > rows["train"]:
            raise self._refusal(
                f"--num_shards={wanted}, and there are only {rows['train']} rows: ask for fewer"
            )
        return max(1, wanted * rows[split] // rows["train"])

    def _finish(self, tokenized: list[dict[str, Any]], splits: dict[str, Any]) -> dict[str, Any]:
        """Moves the shards to their place and writes the manifest."""
        directory = self.options.output_dir
        for split in splits.values():
            for file in split["files"]:
                for suffix in ("", ".index"):
                    source = self._path(file["name"] + suffix)
                    if os.path.exists(source):
                        os.replace(source, os.path.join(directory, file["name"] + suffix))
        vocabulary = os.path.join(directory, self.settings["vocabulary"]["file"])
        atomic.write_file(vocabulary, epath.Path(self.vocabulary.path).read_bytes(), sync=True)
        names = (*stages.TEXT_COUNTS, *stages.CLEANING_COUNTS)
        manifest = self.settings | {
            "fingerprint": _digest(self.settings),
            "made_by": f"bert-jax {bert_jax.__version__}",
            "special_ids": self.special_ids,
            "splits": splits,
            "text": {name: sum(result[name] for result in tokenized) for name in names},
        }
        content = json.dumps(manifest, indent=1).encode() + b"\n"
        atomic.write_file(os.path.join(directory, packed.MANIFEST), content, sync=True)
        return manifest


def _grouped(ranges: Sequence[readers.Range], target: int) -> list[tuple[readers.Range, ...]]:
    """Ranges in groups of up to `target` bytes, in order, so that many small files are few tasks."""
    groups: list[list[readers.Range]] = []
    size = target
    for range_ in ranges:
        if size + range_.size > target:
            groups.append([])
            size = 0
        groups[-1].append(range_)
        size += range_.size
    return [tuple(group) for group in groups]


def _settings(
    options: Options,
    tokenizer: tokenization.Tokenizer,
    paths: Sequence[str],
    digests: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """What the records are a function of, as the manifest holds it."""
    file = "vocab.model" if tokenizer.kind == "sentencepiece" else "vocab.txt"
    length = options.max_seq_length
    fields = {"text_field": options.text_field, "id_field": options.id_field}
    if not readers.has_fields(paths, options.input_format):
        fields = {}
    return {
        "schema": packed.SCHEMA,
        "version": packed.VERSION,
        "max_seq_length": length,
        "max_sequences_per_row": options.max_sequences_per_row or packed.default_sequences_per_row(length),
        "seed": options.seed,
        "short_seq_prob": options.short_seq_prob,
        "dupe_factor": options.dupe_factor,
        "eval_fraction": options.eval_fraction,
        "num_shards": options.num_shards,
        "input_format": options.input_format,
        "vocabulary": tokenizer.settings() | {"file": file},
        "sources": [
            {"name": name} | {"bytes": digest["bytes"], "sha256": digest["sha256"]}
            for name, digest in zip(readers.short_names(paths), digests, strict=True)
        ],
    } | fields


def _digest(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _difference(settings: dict[str, Any], others: dict[str, Any]) -> str:
    """Which of the settings differ, in words, or ''."""
    differences = []
    for name, value in settings.items():
        other = others.get(name)
        if value != other:
            plain = not isinstance(value, dict | list) and not isinstance(other, dict | list)
            differences.append(f"{name} {other!r}, not {value!r}" if plain else f"another {name}")
    return ", ".join(differences)


def _finished(directory: str, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest of finished records of these settings, or None where there are none.

    Raises:
        UserError: there are others.
    """
    if not os.path.exists(os.path.join(directory, packed.MANIFEST)):
        return None
    manifest = packed.read_manifest(directory)
    difference = _difference(settings, manifest)
    if difference:
        raise UserError(
            f"{directory} holds other records ({difference}): choose another --output_dir, or delete it first"
        )
    shutil.rmtree(os.path.join(directory, UNFINISHED), ignore_errors=True)
    return manifest


@contextlib.contextmanager
def _claimed(directory: str, settings: dict[str, Any]) -> Iterator[str]:
    """Makes the output directory and, in it, the folder for what is unfinished, and holds a lock on it.

    Raises:
        UserError: it cannot be written, another process writes to it, or it was begun with other settings.
    """
    unfinished = os.path.join(directory, UNFINISHED)
    settings = settings | {"made_by": f"bert-jax {bert_jax.__version__}"}
    path = os.path.join(unfinished, "settings.json")
    try:
        if not os.path.isdir(unfinished) and os.path.isdir(directory):
            stray = [name for name in os.listdir(directory) if ".tfrecord" in name]
            if stray:
                raise UserError(
                    f"{directory} holds {stray[0]} and no {packed.MANIFEST}: choose an empty --output_dir"
                )
        os.makedirs(unfinished, exist_ok=True)
        lock = open(os.path.join(unfinished, "lock"), "w")  # noqa: SIM115 (held to the end of the block)
    except OSError as error:
        raise UserError(f"cannot write to --output_dir={directory}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"another `bert-jax data` is writing to {directory}: wait for it, or stop it"
            ) from None
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                difference = _difference(settings, json.load(file))
            if difference:
                raise UserError(
                    f"{directory} holds the unfinished work of another run ({difference}): give the same "
                    "flags to finish it, or delete it first"
                )
        else:
            atomic.write_file(path, json.dumps(settings).encode())
        yield unfinished
