"""Builds a record directory from text, for `bert-jax data`."""

import collections
import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import bert_jax
from bert_jax import hub, tokenization
from bert_jax.data import google, manifests, packed, tfrecord
from bert_jax.errors import Preempted, UserError, check_flag
from bert_jax.io import atomic, files, json_files
from bert_jax.io.progress import Progress
from bert_jax.io.wording import counted
from data_pipelines import cleaning, languages, pools, readers
from data_pipelines.cleaning import duplicates
from data_pipelines.settings import Options, difference, digest, resolve
from data_pipelines.stages import buckets, google_rows, packed_rows, tokenizing

_RANGE_BYTES = (16 << 20, 256 << 20)
_SHARD_BYTES = 128 << 20
_PIECES = 64  # pieces into which `spread` cuts each part
UNFINISHED = "unfinished"  # the folder in the output directory from which an interrupted build resumes
SETTINGS = "settings.json"  # in that folder
_LOCK = "lock"  # in that folder
_FORM = "form 7"  # the format of the unfinished work; it changes with the files there

_Rows = dict[str, list[tuple[str, pools.Result]]]  # by split: the record file and the counts of each bucket


class Built(NamedTuple):
    """The result of a build."""

    manifest: dict[str, Any]
    already_done: bool  # the records were already finished


@dataclasses.dataclass(frozen=True)
class ShardTask:
    """The arguments of `make_shard`: the rows of one output file."""

    parts: tuple[tuple[str, int, int, int], ...]  # (record file, first row, end row, step)
    output: str


def build(options: Options, workers: int = 1, beam_args: str = "", overwrite: bool = False) -> Built:
    """Builds a record directory, or resumes an interrupted build.

    The files depend only on the inputs, the vocabulary and `options`, not on the workers or on interruptions.
    `beam_args` are the arguments of Apache Beam pipelines that run the build in place of local processes.
    With `overwrite`, records with other settings are replaced, once the new records are finished.
    """
    options.check()
    tokenizer = options.tokenizer()
    try:
        paths = readers.list_inputs(options.input, options.output)
        own = (options.vocab, *(os.path.join(options.vocab, name) for name in tokenization.FILE_NAMES))
        is_separate = {*map(readers.identity, own)}.isdisjoint(map(readers.identity, paths))
        check_flag("vocab", options.vocab, is_separate, "a vocabulary that --input does not match")
        format = readers.resolve_format(paths, options.input_format, options.text_field)
        options = dataclasses.replace(options, input_format=format)
        pool = pools.LocalPool(workers)
        if beam_args:
            pool = pools.BeamPool(beam_args, f"{files.absolute(options.output).rstrip('/')}-beam")
        with Progress() as progress, pool:
            return _Build(options, tokenizer, paths, pool, progress).run(overwrite)
    except (KeyboardInterrupt, Preempted) as stop:
        unfinished = os.path.join(options.output, UNFINISHED)
        if not files.is_directory(unfinished):
            raise
        raise type(stop)(f"stopped; run the same command again to resume from {unfinished}") from None


class _Build:
    """Runs the stages of one build. All intermediate files are in the folder `unfinished`."""

    def __init__(
        self,
        options: Options,
        tokenizer: tokenization.Tokenizer,
        paths: Sequence[str],
        pool: pools.LocalPool,
        progress: Progress,
    ):
        self.options, self.tokenizer, self.paths = options, tokenizer, paths
        self.pool, self.progress = pool, progress
        self.cleaning = options.cleaning_settings()
        self.languages: list[languages.Language] = []
        if options.sampling_exponent is not None:
            self.languages = languages.divide(options.input, options.output)
        self.sentence_languages = options.sentence_languages(paths, self.languages)
        self.unfinished = ""

    def run(self, overwrite: bool) -> Built:
        options = self.options
        sizes = [readers.file_size(path) for path in self.paths]
        self.progress.start("reading", sum(sizes), "MB", 1e-6)
        digests = self.pool.run(
            readers.file_digest,
            [(None, path) for path in self.paths],
            lambda i, result: self.progress.advance(sizes[i]),
        )
        self.settings = resolve(options, self.tokenizer, self.paths, digests, self.languages)
        if done := finished(options.output, self.settings, overwrite):
            if files.is_directory(os.path.join(options.output, UNFINISHED)):  # from a build killed at its end
                with contextlib.suppress(UserError), claimed(options.output, self.settings) as unfinished:
                    files.remove_tree(unfinished)
            return Built(done, True)
        with claimed(options.output, self.settings, overwrite) as self.unfinished:
            try:
                manifest = self._make(sum(sizes))
            except UserError:  # the same command would fail again
                files.remove_tree(self.unfinished)
                if not files.is_remote(options.output):
                    with contextlib.suppress(OSError):
                        os.rmdir(options.output)
                raise
            files.remove_tree(self.unfinished)
        return Built(manifest, False)

    def _make(self, size: int) -> dict[str, Any]:
        """Makes the records of inputs of `size` bytes; returns their manifest."""
        by_language = self._tokenize(size)
        tokenized = list(itertools.chain.from_iterable(by_language))
        documents = sum(result["documents"] for result in tokenized)
        if not documents:
            raise readers.no_text(self.paths, self.options.input_format)
        nsp = self.settings["nsp"]
        check_flag("nsp", nsp, documents > 1 or nsp != "next", "none, since the text is only one document")
        rows = self._make_rows(by_language)
        for run in itertools.chain.from_iterable(result["runs"] for result in tokenized):
            duplicates.remove(run)
        return self._finish(tokenized, self._make_shards(rows))

    def _path(self, name: str) -> str:
        return os.path.join(self.unfinished, name)

    def _run(
        self,
        title: str,
        function: pools.Function,
        tasks: Sequence[Any],
        unit: str = "parts",
        sizes: Sequence[int] | None = None,
    ) -> list[pools.Result]:
        """Runs tasks that have an `output`; `sizes` are in bytes, None counts the tasks as `unit`."""
        if sizes is None:
            self.progress.start(title, len(tasks), unit)
        else:
            self.progress.start(title, sum(sizes), "MB", 1e-6)
        return self.pool.run(
            function,
            [(task.output + ".json", task) for task in tasks],
            lambda index, result: self.progress.advance(sizes[index] if sizes else 1),
        )

    def _tokenize(self, size: int) -> list[list[dict[str, Any]]]:
        """Returns the results of the tasks for inputs of `size` bytes, by language (or of all text)."""
        smallest, largest = _RANGE_BYTES
        target = min(max(smallest, size // 1024), largest)
        ranges = readers.split_ranges(self.paths, target, self.options.input_format)
        owners = {path: number for number, one in enumerate(self.languages) for path in one.paths}
        divided: list[list[readers.Range]] = [[] for _ in range(max(1, len(self.languages)))]
        for range_ in ranges:
            divided[owners.get(range_.path, 0)].append(range_)
        groups = [readers.group_ranges(of_language, target) for of_language in divided]
        codes = [code for code, some in zip(self.sentence_languages, groups, strict=True) for _ in some]
        every = list(itertools.chain.from_iterable(groups))
        tasks = [
            tokenizing.TokenizeTask(
                group,
                self.options.input_format,
                self.tokenizer,
                self._path(f"documents-{number:06d}"),
                self.cleaning,
                self.options.text_field,
                code,
            )
            for number, (group, code) in enumerate(zip(every, codes, strict=True))
        ]
        sizes = [sum(range_.size for range_ in group) for group in every]
        results = self._run("tokenizing", tokenizing.tokenize, tasks, sizes=sizes)
        if self.cleaning and self.cleaning.finds_duplicates:
            results = duplicates.drop(results, self.cleaning, self._path, self._run)
        for result in results:
            result["runs"] = [self._path(name) for name in result["runs"]]
            result["histogram"] = self._path(result["histogram"])
        remaining = iter(results)
        return [list(itertools.islice(remaining, len(some))) for some in groups]

    def _make_rows(self, by_language: Sequence[Sequence[dict[str, Any]]]) -> _Rows:
        """Returns the record files of the buckets of each split, and their counts."""
        self.text = [sum(result["tokens"] for result in results) for results in by_language]
        self.times = [1.0]
        if self.languages:
            self.times = languages.times(self.text, self.settings["sampling_exponent"])
        # Next-sentence prediction samples sentences of other documents.
        fewest = 2 if self.settings["nsp"] == "next" else 1
        # Tasks are sent to workers without the sources, which may be a hundred thousand files.
        settings = {name: value for name, value in self.settings.items() if name != "sources"}
        numbers: collections.Counter[str] = collections.Counter()  # of buckets in each split
        tasks, owners = [], []
        for owner, (results, times) in enumerate(zip(by_language, self.times, strict=True)):
            runs = tuple(run for result in results for run in result["runs"])
            for bucket in buckets.plan(results, self.settings["eval_fraction"]):
                bucket = dataclasses.replace(bucket, number=numbers[bucket.split])
                numbers[bucket.split] += 1
                output = self._path(f"rows-{bucket.name}")
                used = times if bucket.split == "train" else 1.0
                tasks.append(buckets.RowsTask(bucket, runs, self.tokenizer, settings, output, used))
                owners.append(owner)
        make = packed_rows.make_rows if self.settings["schema"] == packed.SCHEMA else google_rows.make_rows
        made = self._run("making rows", make, tasks, "buckets")
        parts: _Rows = {}
        trained = [0] * len(self.times)  # documents
        for owner, task, result in zip(owners, tasks, made, strict=True):
            if self.languages:
                result["language"] = self.languages[owner].name
            if task.bucket.split == "train":
                trained[owner] += result["documents"]
            parts.setdefault(task.bucket.split, []).append((task.output, result))
        if min(trained) < fewest:
            of = f" of {self.languages[trained.index(min(trained))].name}" if self.languages else ""
            raise UserError(
                f"--nsp={self.settings['nsp']} needs {counted(fewest, 'document')}{of} to train on; found "
                f"{min(trained)} with --eval_fraction={self.settings['eval_fraction']}"
            )
        return parts

    def _make_shards(self, parts: _Rows) -> dict[str, Any]:
        """Returns the splits as the manifest stores them."""
        tasks = {split: self._shard_tasks(split, parts) for split in parts}
        made = iter(self._run("writing files", make_shard, list(itertools.chain(*tasks.values())), "files"))
        files_of = {split: list(itertools.islice(made, len(tasks[split]))) for split in tasks}
        splits = {}
        for split in sorted(parts, reverse=True):  # train before eval
            results = [result for _, result in parts[split]]
            splits[split] = manifests.merge_splits(results, self.settings["max_seq_length"])
            if self.languages:
                splits[split]["languages"] = languages.written(results)
            splits[split]["files"] = files_of[split]
        return splits

    def _shard_tasks(self, split: str, parts: _Rows) -> list[ShardTask]:
        rows = [(path, result["rows"]) for path, result in parts[split]]
        # Evaluation rows are read in order, and a run may read only the first ones.
        mixed = bool(self.languages) and split == "eval"
        # The reference distributes the rows of a bucket over the files. Rows of many buckets are not
        # distributed: each file would read nearly all buckets, because skipped pages are read, too.
        dealt = self.settings["schema"] == google.SCHEMA and len(rows) == 1
        counts = {name: sum(result["rows"] for _, result in results) for name, results in parts.items()}
        if wanted := self.options.num_shards:
            most = counts["train"]
            check_flag("num_shards", wanted, wanted <= most, f"at most the {most} rows of the records")
            number = max(1, wanted * counts[split] // counts["train"])
        else:
            number = -(-sum(result["bytes"] for _, result in parts[split]) // _SHARD_BYTES)
        shares = share_rows(rows, number, dealt or mixed)
        shares = [spread(share) for share in shares] if mixed else shares
        names = (f"{split}-{place:05d}-of-{number:05d}.tfrecord" for place in range(number))
        return [ShardTask(share, self._path(name)) for share, name in zip(shares, names, strict=True)]

    def _finish(self, tokenized: list[dict[str, Any]], splits: dict[str, Any]) -> dict[str, Any]:
        """Moves the shards to the output directory, in place of old ones; writes and returns the manifest."""
        directory, vocabulary = self.options.output, self.settings["vocabulary"]["file"]
        move_records(directory, splits, vocabulary)
        atomic.write_file(os.path.join(directory, vocabulary), files.read(self.tokenizer.path))
        names = (*tokenizing.TEXT_COUNTS, *readers.COUNTS)
        manifest = self.settings | {
            "fingerprint": digest(self.settings),
            "made_by": f"bert-jax {bert_jax.__version__}",
            "special_ids": self.tokenizer.special_ids,
            "splits": splits,
            "text": {name: sum(result[name] for result in tokenized) for name in names},
        }
        inputs = ",".join(self.options.input).split(",")
        named = [found.source if (found := hub.data_set(name)) else name for name in inputs]
        if on_hub := [name for name in named if name.startswith(hub.DATA)]:
            manifest["data_sets"] = on_hub
        if self.languages:
            manifest["languages"] = languages.described(
                self.languages, self.text, self.times, splits["train"]["languages"]
            )
        if self.cleaning:
            manifest["cleaned"] = cleaning.merged_report([result["cleaning"] for result in tokenized])
        json_files.write(os.path.join(directory, manifests.FILE), manifest)
        return manifest


def share_rows(
    parts: Sequence[tuple[str, int]], shards: int, round_robin: bool = False
) -> list[tuple[tuple[str, int, int, int], ...]]:
    """Divides the rows of (record file, number of rows) pairs; returns the `ShardTask.parts` of each shard.

    With `round_robin`, row i goes to shard i % shards; otherwise, each shard gets consecutive rows.
    """
    total = sum(rows for _, rows in parts)
    edges = [total * number // shards for number in range(shards + 1)]
    shares: list[list[tuple[str, int, int, int]]] = [[] for _ in range(shards)]
    begin = 0
    for path, rows in parts:
        for number, (share, (low, high)) in enumerate(zip(shares, itertools.pairwise(edges), strict=True)):
            first, end, step = max(low - begin, 0), min(high - begin, rows), 1
            if round_robin:
                first, end, step = (number - begin) % shards, rows, shards
            if first < end:
                share.append((path, first, end, step))
        begin += rows
    return [tuple(share) for share in shares]


def spread(parts: Sequence[tuple[str, int, int, int]]) -> tuple[tuple[str, int, int, int], ...]:
    """Returns the `ShardTask.parts` of a file in pieces, in an order that spreads each part over the file.

    A reader of the first rows then sees rows of all parts.
    """
    placed = []
    for number, (path, first, end, step) in enumerate(parts):
        rows = -(-(end - first) // step)
        count = min(rows, _PIECES)
        edges = [rows * i // count for i in range(count + 1)]
        for low, high in itertools.pairwise(edges):
            piece = (path, first + low * step, min(end, first + high * step), step)
            placed.append(((low + high) / (2 * rows), number, piece))
    return tuple(piece for *_, piece in sorted(placed))


def make_shard(task: ShardTask) -> dict[str, Any]:
    """Copies rows into one record file, and checks their CRCs; returns the manifest's entry for the file."""
    repeated = len({path for path, *_ in task.parts}) < len(task.parts)
    # Files that occur once are closed after their rows, because their indexes are large.
    opened = functools.cache(tfrecord.RecordFile) if repeated else tfrecord.RecordFile
    parts = ((opened(path), range(*numbers)) for path, *numbers in task.parts)
    rows = (file[number] for file, numbers in parts for number in numbers)
    count, size = tfrecord.write_records(task.output, rows)
    return {"name": files.name(task.output), "rows": count, "bytes": size}


def finished(directory: str, settings: dict[str, Any], overwrite: bool = False) -> dict[str, Any] | None:
    """Returns the manifest of finished records with these settings; None if they have to be made.

    With `overwrite`, all files are read, and damaged records, and records with other settings (else a
    UserError), are made again. The old ones stay until `move_records`.
    """
    if not files.exists(os.path.join(directory, manifests.FILE)):
        return None
    manifest = manifests.read(directory)
    differing = difference(settings, manifest)
    if differing and not overwrite:
        raise UserError(f"--output={directory} holds other records ({differing}); --overwrite replaces them")
    if differing or not _has_vocabulary(directory, manifest["vocabulary"]):
        return None
    listed = [file for split in manifest["splits"].values() for file in split["files"]]
    whole = all(_is_whole(os.path.join(directory, file["name"]), file, overwrite) for file in listed)
    return manifest if whole else None


def _is_whole(path: str, file: Mapping[str, Any], read: bool) -> bool:
    if not files.exists(path) or files.size(path) != file["bytes"]:
        return False
    return not read or files.crc32c(path) == file["crc32c"]


def _has_vocabulary(directory: str, vocabulary: Mapping[str, Any]) -> bool:
    path = os.path.join(directory, vocabulary["file"])
    return files.exists(path) and hashlib.sha256(files.read(path)).hexdigest() == vocabulary["digest"]


@contextlib.contextmanager
def claimed(directory: str, settings: dict[str, Any], overwrite: bool = False) -> Iterator[str]:
    """Creates and locks the folder for unfinished work in the output directory, and yields its path.

    With `overwrite`, unfinished work with other settings, and another vocabulary, are replaced.
    """
    unfinished = os.path.join(directory, UNFINISHED)
    begun_with = settings | {"made_by": f"bert-jax {bert_jax.__version__}, {_FORM}"}
    path = os.path.join(unfinished, SETTINGS)
    if not (files.is_directory(unfinished) or files.exists(os.path.join(directory, manifests.FILE))):
        _check_stray(directory, settings, overwrite)
    files.make_directory(unfinished)
    # Object stores have no locks.
    lock = None if files.is_remote(directory) else open(os.path.join(unfinished, _LOCK), "w")  # noqa: SIM115
    with lock or contextlib.nullcontext():
        if not _take(lock):
            raise UserError(f"--output={directory}: another `bert-jax data` is writing there")
        differing = difference(begun_with, json.loads(files.read(path))) if files.exists(path) else ""
        if differing and not overwrite:
            raise UserError(
                f"--output={directory} has an unfinished run with other flags ({differing}); --overwrite "
                "replaces it"
            )
        if differing or not files.exists(path):
            _discard(directory)
            atomic.write_file(path, json.dumps(begun_with).encode())
        yield unfinished


def _check_stray(directory: str, settings: Mapping[str, Any], overwrite: bool) -> None:
    """Raises UserError for files in the directory that this build would replace and no build has written."""
    for name in files.names(directory):
        same = name == settings["vocabulary"]["file"] and _has_vocabulary(directory, settings["vocabulary"])
        if _is_of_records(name) and not same and (".tfrecord" in name or not overwrite):
            raise UserError(f"--output={directory} holds another {name}; expected an empty directory")


def _take(lock: IO[str] | None) -> bool:
    """Locks the unfinished work until the file is closed; returns False if another process has it."""
    if lock is None:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The file may have been deleted with the folder of a build that finished.
        return os.path.samestat(os.fstat(lock.fileno()), os.stat(lock.name))
    except (BlockingIOError, FileNotFoundError):
        return False


def _discard(directory: str) -> None:
    """Removes the unfinished work of another build, and the files that it moved to the output directory.

    The settings are removed first, so that no build resumes from the rest if this one is killed.
    """
    unfinished = os.path.join(directory, UNFINISHED)
    for name in sorted(files.names(unfinished), key=lambda name: name != SETTINGS):
        path = os.path.join(unfinished, name)
        if name != _LOCK:
            (files.remove_tree if files.is_directory(path) else files.remove)(path)
    if not files.exists(os.path.join(directory, manifests.FILE)):
        for name in files.names(directory):
            if ".tfrecord" in name:
                files.remove(os.path.join(directory, name))


def _is_of_records(name: str) -> bool:
    kinds = [kind.file for kind in tokenization.KINDS.values()]
    return name.endswith((".tfrecord", f".tfrecord{tfrecord.INDEX_SUFFIX}")) or name in (
        manifests.FILE, *kinds,
    )  # fmt: skip


def move_records(directory: str, splits: Mapping[str, Any], vocabulary: str) -> None:
    """Moves record files from the unfinished work to the output directory, and removes older records there.

    Files that were moved before the build was killed are kept, and so is the file `vocabulary`. The checksum
    of each file is added to `splits`, which are the splits as the manifest stores them.
    """
    unfinished, moved = os.path.join(directory, UNFINISHED), []
    for split in splits.values():
        for file in split["files"]:
            made, done = (os.path.join(folder, file["name"]) for folder in (unfinished, directory))
            file["crc32c"] = files.crc32c(made if files.exists(made) else done)
            moved += [file["name"], file["name"] + tfrecord.INDEX_SUFFIX]
    # The manifest is removed first: without it, no one uses the other files.
    files.remove(os.path.join(directory, manifests.FILE), missing_ok=True)
    for name in files.names(directory):
        if _is_of_records(name) and name not in (*moved, vocabulary):
            files.remove(os.path.join(directory, name))
    for name in moved:
        if files.exists(os.path.join(unfinished, name)):
            files.move(os.path.join(unfinished, name), os.path.join(directory, name))
