"""Builds a record directory from text, for `bert-jax data`."""

import collections
import contextlib
import dataclasses
import itertools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import bert_jax
from bert_jax import hub, tokenization
from bert_jax.data import google, manifests, packed
from bert_jax.errors import Preempted, UserError, check_flag
from bert_jax.io import atomic, files, json_files
from bert_jax.io.progress import Progress
from bert_jax.io.wording import counted
from data_pipelines import cleaning, languages, pools, readers
from data_pipelines.cleaning import duplicates
from data_pipelines.output import UNFINISHED, claimed, finished, move_records
from data_pipelines.settings import Options, digest, resolve
from data_pipelines.stages import buckets, google_rows, packed_rows, shards, tokenizing

_RANGE_BYTES = (16 << 20, 256 << 20)
_SHARD_BYTES = 128 << 20

_Rows = dict[str, list[tuple[str, pools.Result]]]  # by split: the record file and the counts of each bucket


class Built(NamedTuple):
    """The result of a build."""

    manifest: dict[str, Any]
    already_done: bool  # the records were already finished


def build(options: Options, workers: int = 1, beam_args: str = "", overwrite: bool = False) -> Built:
    """Builds a record directory, or resumes an interrupted build.

    The files depend only on the inputs, the vocabulary and `options`, not on the workers or on interruptions.

    Args:
        options: the options of the build.
        workers: the number of local processes.
        beam_args: the arguments of Apache Beam pipelines that run the build; "" for local processes.
        overwrite: whether records with other settings are replaced, once the new records are finished.

    Raises:
        UserError: an option, an input or the vocabulary is not valid, or the directory holds other records.
        KeyboardInterrupt, Preempted: a signal stopped the build.
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
        groups = self._grouped_ranges(size)
        tokenized = self._tokenize(groups)
        if self.cleaning and self.cleaning.finds_duplicates:
            tokenized = duplicates.drop(tokenized, self.cleaning, self._path, self._run)
        for result in tokenized:
            result["runs"] = [self._path(name) for name in result["runs"]]
            result["histogram"] = self._path(result["histogram"])
        documents = sum(result["documents"] for result in tokenized)
        if not documents:
            raise readers.no_text(self.paths, self.options.input_format)
        nsp = self.settings["nsp"]
        check_flag("nsp", nsp, documents > 1 or nsp != "next", "none, since the text is only one document")
        results = iter(tokenized)
        by_language = [list(itertools.islice(results, len(of_language))) for of_language in groups]
        return self._finish(tokenized, self._make_shards(self._make_rows(by_language)))

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

    def _grouped_ranges(self, size: int) -> list[list[tuple[readers.Range, ...]]]:
        """Returns, for each language (or for all text), the groups of ranges, one group per task."""
        smallest, largest = _RANGE_BYTES
        target = min(max(smallest, size // 1024), largest)
        ranges = readers.split_ranges(self.paths, target, self.options.input_format)
        owners = {path: number for number, one in enumerate(self.languages) for path in one.paths}
        divided: list[list[readers.Range]] = [[] for _ in range(max(1, len(self.languages)))]
        for range_ in ranges:
            divided[owners.get(range_.path, 0)].append(range_)
        return [readers.group_ranges(of_language, target) for of_language in divided]

    def _tokenize(self, by_language: Sequence[Sequence[tuple[readers.Range, ...]]]) -> list[dict[str, Any]]:
        groups = [
            (group, code)
            for code, of_language in zip(self.sentence_languages, by_language, strict=True)
            for group in of_language
        ]
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
            for number, (group, code) in enumerate(groups)
        ]
        sizes = [sum(range_.size for range_ in group) for group, _ in groups]
        return self._run("tokenizing", tokenizing.tokenize, tasks, sizes=sizes)

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
        for result in itertools.chain.from_iterable(by_language):
            for run in result["runs"]:
                duplicates.remove(run)
        return parts

    def _make_shards(self, parts: _Rows) -> dict[str, Any]:
        """Returns the splits as the manifest stores them."""
        tasks = {split: self._shard_tasks(split, parts) for split in parts}
        all_tasks = list(itertools.chain(*tasks.values()))
        made = iter(self._run("writing files", shards.make_shard, all_tasks, "files"))
        files_of = {split: list(itertools.islice(made, len(tasks[split]))) for split in tasks}
        splits = {}
        for split in sorted(parts, reverse=True):  # train before eval
            results = [result for _, result in parts[split]]
            splits[split] = manifests.merge_splits(results, self.settings["max_seq_length"])
            if self.languages:
                splits[split]["languages"] = languages.written(results)
            splits[split]["files"] = files_of[split]
        return splits

    def _shard_tasks(self, split: str, parts: _Rows) -> list[shards.ShardTask]:
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
        shares = shards.share_rows(rows, number, dealt or mixed)
        shares = [shards.spread(share) for share in shares] if mixed else shares
        names = (f"{split}-{place:05d}-of-{number:05d}.tfrecord" for place in range(number))
        return [shards.ShardTask(share, self._path(name)) for share, name in zip(shares, names, strict=True)]

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
