"""Builds a record directory from text, for `bert-jax data`."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import bert_jax
from bert_jax import tokenization
from bert_jax.data import google, packed, verification
from bert_jax.errors import Preempted, UserError, file_error
from bert_jax.io import atomic, files
from bert_jax.io.progress import Progress
from data_pipelines import beam_runner, cleaning, duplicates, google_rows, minhash, readers, stages
from data_pipelines.output_lock import UNFINISHED, claimed, finished
from data_pipelines.settings import Options, digest, resolve
from data_pipelines.workers import Pool

_RANGE_BYTES = (16 << 20, 256 << 20)
_SHARD_BYTES = 128 << 20


@dataclasses.dataclass(frozen=True)
class Built:
    """The result of a build."""

    manifest: dict[str, Any]
    already_done: bool  # the records were already finished
    peak_memory: int  # of the largest worker, in bytes


def build(
    options: Options,
    workers: int = 1,
    progress: Progress | None = None,
    beam_args: str | None = None,
    overwrite: bool = False,
    warn: Callable[[str], None] | None = None,
) -> Built:
    """Builds a record directory, or resumes an interrupted build.

    The files depend only on the inputs, the vocabulary and `options`, not on the workers or on interruptions.

    Args:
        options: the options of the build.
        workers: the number of local processes.
        progress: shows the progress; None creates one.
        beam_args: the arguments of Apache Beam pipelines that run the build; None for local processes.
        overwrite: whether records with other settings in the directory are replaced.
        warn: called before the build with a line for each sign that the text has another format.

    Raises:
        UserError: there is no text, the corpus is one document, the vocabulary lacks a special token, the
            directory is not writable or holds other records, ...
        StorageError: a disk is full or fails.
        KeyboardInterrupt, Preempted: a signal stopped the build.
    """
    options.check()
    tokenizer = tokenization.load(options.vocab, lower_case=options.lower_case)
    progress = progress or Progress()
    try:
        paths = readers.list_inputs(options.input, options.tfds_data_dir)
        pool = _beam_pool(beam_args, options) if beam_args is not None else Pool(workers)
        with progress, pool:
            return _build(options, tokenizer, paths, pool, progress, overwrite, warn)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        mend = "; make room, and the same command goes on from what is done" if full else ""
        message = f"{error.filename or options.output_dir}: {error.strerror or error}{mend}"
        raise file_error(message, error) from error
    except (KeyboardInterrupt, Preempted) as stop:
        unfinished = os.path.join(options.output_dir, UNFINISHED)
        if not files.is_directory(unfinished):
            raise
        how = "interrupted" if isinstance(stop, KeyboardInterrupt) else "stopped"
        kept = f"{how}; what is done is kept in {unfinished}; run the same command to go on"
        raise type(stop)(kept) from None


def _beam_pool(arguments: str, options: Options) -> Any:
    return beam_runner.BeamPool(arguments, scratch=f"{files.absolute(options.output_dir).rstrip('/')}-beam")


def _build(
    options: Options,
    tokenizer: tokenization.Tokenizer,
    paths: Sequence[str],
    pool: Any,  # a Pool or a BeamPool
    progress: Progress,
    overwrite: bool,
    warn: Callable[[str], None] | None,
) -> Built:
    sizes = [readers.file_size(path) for path in paths]
    progress.start("reading", sum(sizes), "MB", 1e-6)
    digests = pool.run(
        stages.file_digest, [(None, path) for path in paths], lambda i, result: progress.advance(sizes[i])
    )
    settings = resolve(options, tokenizer, paths, digests)
    done = finished(options.output_dir, settings, overwrite)
    if done:
        return Built(done, True, 0)
    with claimed(options.output_dir, settings, overwrite) as unfinished:
        if warn is not None:
            for line in readers.early_suspicions(paths, options.input_format):
                warn(line)
        build = _Build(options, tokenizer, settings, unfinished, pool, progress)
        manifest = build.run(paths, sum(sizes))
        files.remove_tree(unfinished)
    return Built(manifest, False, build.peak_memory)


class _Build:
    """Runs the stages of one build. All intermediate files are in the folder `unfinished`."""

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
        self.cleaning = options.cleaning_settings()
        self.peak_memory = 0
        self.special_ids = dict(tokenizer.special_ids)
        path = files.absolute(tokenizer.path)
        self.vocabulary = stages.Vocabulary(path, tokenizer.lower_case, tokenizer.strip_accents)

    def run(self, paths: Sequence[str], size: int) -> dict[str, Any]:
        tokenized = self._tokenize(paths, size)
        if self.cleaning and not {"exact", "near"}.isdisjoint(self.cleaning.steps):
            tokenized = duplicates.drop(
                tokenized, self.cleaning, self._path, self._run_stage, stages.HISTOGRAM_BITS
            )
        documents = sum(result["documents"] for result in tokenized)
        if not documents and self.cleaning:
            counts = cleaning.merge_counts([result["cleaning"] for result in tokenized])
            if counts["documents"]:
                raise self._refusal(cleaning.nothing_left(counts))
        if not documents:
            raise self._refusal(readers.no_text(paths, self.options.input_format))
        if documents == 1 and self.settings["nsp"] == "next":
            raise self._refusal(
                "the corpus is one document, and next-sentence prediction draws sentences of others: give "
                f"more documents{readers.FORMATS[self.options.input_format].documents_end}, "
                "or --nsp=none"
            )
        parts = self._make_rows(tokenized)
        splits = self._make_shards(parts)
        return self._finish(tokenized, splits)

    def _refusal(self, message: str) -> UserError:
        """Removes the unfinished work and returns an error.

        It is for errors that running the same command again cannot fix.
        """
        files.remove_tree(self.unfinished)
        if not files.is_remote(self.options.output_dir):
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

    def _run_stage(self, title: str, function, tasks) -> list[dict[str, Any]]:
        self.progress.start(title, len(tasks), "parts")
        return self._run(function, tasks, lambda index: 1)

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
                self.cleaning,
                readers.Fields(self.options.text_field, self.options.id_field),
            )
            for number, group in enumerate(groups)
        ]
        self.progress.start("tokenizing", size, "MB", 1e-6)
        return self._run(stages.tokenize, tasks, lambda index: sum(range_.size for range_ in groups[index]))

    def _make_rows(self, tokenized: list[dict[str, Any]]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
        """Returns the record files of the buckets of each split, and their counts."""
        buckets = stages.plan(tokenized, self.settings["eval_fraction"])
        runs = tuple(run for result in tokenized for run in result["runs"])
        tasks = [
            stages.RowsTask(
                bucket,
                runs,
                self.vocabulary,
                self.settings,
                self._path(f"rows-{bucket.split}-{bucket.number:06d}"),
            )
            for bucket in buckets
        ]
        self.progress.start("making rows", len(tasks), "buckets")
        make = stages.make_rows if self.settings["schema"] == packed.SCHEMA else google_rows.make_rows
        results = self._run(make, tasks, lambda index: 1)
        for run in runs:
            minhash.remove(run)
        parts: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        for task, result in zip(tasks, results, strict=True):
            parts.setdefault(task.bucket.split, []).append((task.output, result))
        fewest = 2 if self.settings["nsp"] == "next" else 1
        if sum(result["documents"] for _, result in parts["train"]) < fewest:
            raise self._refusal(
                f"--eval_fraction={self.settings['eval_fraction']} leaves under two documents to train on: "
                "give more documents, or a smaller fraction"
            )
        return parts

    def _make_shards(self, parts: dict[str, list[tuple[str, dict[str, Any]]]]) -> dict[str, Any]:
        """Returns the splits as the manifest stores them."""
        tasks: list[stages.ShardTask] = []
        owners: list[str] = []
        static_masks = self.settings["schema"] == google.SCHEMA
        for split, results in parts.items():
            shards = self._shards(split, parts)
            shares = stages.share_rows(
                [(path, result["rows"]) for path, result in results], shards, static_masks
            )
            for number, share in enumerate(shares):
                name = f"{split}-{number:05d}-of-{shards:05d}.tfrecord"
                tasks.append(stages.ShardTask(share, self._path(name)))
                owners.append(split)
        self.progress.start("writing files", len(tasks), "files")
        results = self._run(stages.make_shard, tasks, lambda index: 1)
        splits = {}
        for split in sorted(parts, reverse=True):  # train before eval
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
        """Moves the shards to the output directory and writes and returns the manifest."""
        directory = self.options.output_dir
        for split in splits.values():
            for file in split["files"]:
                done = os.path.join(directory, file["name"])
                made = self._path(file["name"])
                file["crc32c"] = verification.file_digest(made if files.exists(made) else done)
                for suffix in ("", ".index"):
                    source = self._path(file["name"] + suffix)
                    if files.exists(source):
                        files.move(source, os.path.join(directory, file["name"] + suffix))
        vocabulary = os.path.join(directory, self.settings["vocabulary"]["file"])
        atomic.write_file(vocabulary, files.read(self.vocabulary.path))
        names = (*stages.TEXT_COUNTS, *stages.CLEANING_COUNTS)
        manifest = self.settings | {
            "fingerprint": digest(self.settings),
            "made_by": f"bert-jax {bert_jax.__version__}",
            "special_ids": self.special_ids,
            "splits": splits,
            "text": {name: sum(result[name] for result in tokenized) for name in names},
        }
        if self.cleaning:
            report = duplicates.report(tokenized)
            content = json.dumps(report, indent=1).encode() + b"\n"
            atomic.write_file(os.path.join(directory, cleaning.REPORT), content)
            manifest["cleaned"] = cleaning.without_examples(report)
        content = json.dumps(manifest, indent=1).encode() + b"\n"
        atomic.write_file(os.path.join(directory, packed.MANIFEST), content)
        return manifest


def _grouped(ranges: Sequence[readers.Range], target: int) -> list[tuple[readers.Range, ...]]:
    """Groups consecutive ranges to up to `target` bytes, so that many small files make few tasks."""
    groups: list[list[readers.Range]] = []
    size = target
    for range_ in ranges:
        if size + range_.size > target:
            groups.append([])
            size = 0
        groups[-1].append(range_)
        size += range_.size
    return [tuple(group) for group in groups]
