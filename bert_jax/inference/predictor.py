"""Prediction with a fine-tuned work directory: of files, of rows, and of the lines of a stream."""

from __future__ import annotations

import functools
import json
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import ml_collections
import numpy as np

from bert_jax import checkpoint
from bert_jax.checkpoint.leaves import flatten, nest
from bert_jax.errors import UserError, reading
from bert_jax.inference import engine
from bert_jax.io import files, progress
from bert_jax.kernels import check as kernel_check
from bert_jax.kernels import platform
from bert_jax.models.parameters import layer_axes
from bert_jax.parallel import placement, sharding
from bert_jax.tasks import fields, registry
from bert_jax.tasks.predictions import Predictions
from bert_jax.tasks.rows import assembly, batches, outputs
from bert_jax.tasks.rows.outputs import Costs
from bert_jax.tasks.setup import split_file
from bert_jax.tasks.table import SOURCE, LineReader, Malformed
from bert_jax.workdir import run_directory
from bert_jax.workdir.run_directory import BEST

_READ_BYTES = 1 << 16  # of a stream at a time


class Predictor:
    """Predicts with the model of a fine-tuned work directory.

    Args:
        directory: the work directory of a `finetune` run.
        which: "best" for the step that scored best on the evaluation file, if there is one, "last", or the
            number of a step.
        batch_size: the maximum number of groups of rows in a batch, and of rows of the maximum length whose
            tokens a packed batch may have. 0 for the batch size of training, and for packed batches that
            suit the devices.
        log: called with each line to be logged.
        overrides: values of fields of the run's configuration that differ from training.
        dtype: the type of the computation, as in `EncoderConfig.for_inference`.
        prepare: called with the predictor before its parameters are read, which take the most time: what it
            checks is reported at once.

    Attributes:
        prepared: what `prepare` returned.
    """

    def __init__(
        self,
        directory: str,
        which: str = BEST,
        batch_size: int = 0,
        log: Callable[[str], None] = print,
        overrides: Mapping[str, Any] = types.MappingProxyType({}),
        dtype: str = "auto",
        prepare: Callable[[Predictor], Any] = lambda predictor: None,
    ):
        run = run_directory.read_run(directory)
        if run["command"] != "finetune":
            raise UserError(
                f"{directory} is a work directory of {run['command']}, expected one of finetune: give it to "
                "`finetune --config.init_from`, or to --model of fill-mask, embed or evaluate"
            )
        step = step_directory(directory, which)
        recorded = fields.complete(ml_collections.ConfigDict(run["config"]))
        for name, value in overrides.items():
            fields.override(recorded, name, value)
        config = fields.of_run(recorded)
        tokenizer = run_directory.load_tokenizer(directory)
        spec = registry.get(config.task)
        self._mesh = sharding.make_mesh()
        model = config.model.encoder().for_inference(platform.target(), dtype)
        model = placement.config_for(model, self._mesh)
        self.config, self._log = config, log
        self.task = spec.task(fields.of_task(config), spec, run["labels"], tokenizer, model)
        self.unknown = assembly.UnknownTokens(tokenizer, log)
        self.prepared = prepare(self)
        kernel_check.ensure(self.task.model_config, log)
        size = batch_size or config.batch_size
        self.batch_size = -(-size // self._mesh.size) * self._mesh.size
        self._limits_tokens = bool(batch_size)
        self._sizes = engine.few_sizes(self.batch_size, self._mesh.size)
        self._buckets: tuple[int, ...] = ()
        self.objective = self.task.objective()
        self._params = self._load(step or run_directory.best_or_newest(directory), log)
        self._predict: Callable = outputs.make_predict(self.objective, self._mesh)

    def _load(self, source: str, log: Callable[[str], None]) -> Any:
        abstract = sharding.abstract_replicated(self.objective.init_shapes, self._mesh)
        params, report = checkpoint.load_params(source, abstract, log=log)
        if report.new:
            raise UserError(f"{report.source} lacks {report.new[0]}: it is not a checkpoint of this task")
        self.source = report.source
        layered = layer_axes(self.objective.init_shapes)
        dtype = self.task.model_config.execution.dtype
        return nest(placement.place(flatten(params), layered, self._mesh, dtype))

    def file(self, split: str) -> str:
        """Returns the path of a split's file in the run's configuration; "" if it has none."""
        return split_file(self.config, self.task.spec, split)

    def predict(
        self, examples: Any, on_batch: Callable[[int, int], None] = progress.not_shown
    ) -> Predictions:
        """Returns the predictions for examples that the task has read."""
        rows = self.task.encode(examples)
        self.unknown.add(rows.tokens)
        return self.task.decode(examples, rows, self(rows, on_batch))

    @functools.cached_property
    def reader(self) -> LineReader:
        """Returns the reader of `row_of`. Raises UserError if the run predicts no rows."""
        return self.task.line_reader()

    def row_of(self, item: str | Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of a text or {column: value}. Raises Malformed if it is no row of this task."""
        reader = self.reader
        if isinstance(item, str):
            return reader.from_text(item)
        if not isinstance(item, Mapping):
            raise Malformed(f"{type(item).__name__}, expected a text or {{column: value}}")
        return reader.from_object(item)

    def records_of(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the prediction of each row of `row_of`, without an id if it has none."""
        examples = self.reader.examples(list(enumerate(rows, 1)))
        return [
            record if "id" in row else {name: value for name, value in record.items() if name != "id"}
            for record, row in zip(self.predict(examples).records(), rows, strict=True)
        ]

    def predict_rows(self, items: Iterable[str | Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Returns the predictions of some rows, as `bert-jax predict --input=-` writes them.

        Args:
            items: each is a text, a pair of texts with a tab between, or {column: value}, with the columns of
                the training file.

        Returns:
            A dict for each: of classes, the prediction and the probability of every label; of numbers the
            number; of tags the words, tags and entities; of questions the answer.

        Raises:
            UserError: an item is not a row of this task.
        """
        engine.check_items(items, "items")
        rows: list[dict[str, Any]] = []
        for number, item in enumerate(items):
            try:
                rows.append(self.row_of(item))
            except Malformed as error:
                raise UserError(f"row {number}: {error}") from None
        return self.records_of(rows) if rows else []

    def __call__(
        self, data: batches.EncodedRows, on_batch: Callable[[int, int], None] = progress.not_shown
    ) -> np.ndarray:
        """Returns the outputs of encoded rows, as `outputs.predict_all` does.

        Fewer groups of rows than `batch_size` are padded to one of `engine.few_sizes`.
        """
        groups = len(data) // data.rows_per_example
        size = next((size for size in self._sizes if size >= groups), self.batch_size)
        shapes = outputs.Shapes(size, self._buckets)
        if not self._buckets:
            # A run that was trained without packing does not pack: a BiLSTM reads one token at a time.
            most = self.batch_size * data.max_seq_length if self._limits_tokens else None
            shapes = outputs.Shapes.choose(
                data, size, self._costs, self._mesh, packs=self.task.packs, most_tokens=most
            )
        return outputs.predict_all(self._predict, self._params, data, shapes, self._mesh, on_batch=on_batch)

    @functools.cached_property
    def _costs(self) -> Costs:
        dtype = self.task.model_config.execution.dtype
        return Costs.of_training(self.objective, self._mesh, dtype).of_outputs()

    def warm_up(self, on_program: Callable[[int, int], None] = progress.not_shown) -> int:
        """Compiles the programs of all shapes that later calls use; returns their number.

        From then on, rows are padded to `engine.few_lengths`. `on_program` is called with (programs done, all
        programs).
        """
        task = self.task
        longest, group = task.config.max_seq_length, task.objective().choices
        self._buckets = tuple(engine.few_lengths(longest, self._mesh))
        pairs: list[assembly.Pair] = [([], None)] * group
        rows = assembly.assemble([(pairs, False)], (), task.tokenizer, longest, rows_per_example=group)
        shapes = [(size, padded) for size in self._sizes for padded in self._buckets]
        predict = functools.partial(self._predict, self._params)
        on_program(0, len(shapes))
        for done, (size, padded) in enumerate(shapes, 1):
            of_padding = [(np.full(size, -1), (padded,))]
            for _ in outputs.computed(predict, rows, of_padding, self._mesh):
                on_program(done, len(shapes))
        return len(shapes)


def step_directory(directory: str, which: str) -> str:
    """Returns the checkpoint of a run that `which` names: best, last or a number; "" for the best.

    Raises:
        UserError: the run has no such step.
    """
    if which == BEST:
        return ""
    if which == "last":
        return os.fspath(directory)
    for folder in ("checkpoints", BEST):
        path = os.path.join(directory, folder, which)
        if which.isdecimal() and files.exists(path):
            return path
    raise UserError(f"--step={which}: {directory} has no such step; expected best, last or its number")


def answer_lines(model: Predictor, reader: LineReader, source: Any, out: IO[bytes]) -> tuple[int, int]:
    """Answers every line of a stream with one line of JSON, in order, until the stream ends.

    All lines that are waiting when the model becomes idle form the next batch. A malformed line is answered
    with an object that has its number, `line`, and a description of the problem, `error`.

    Args:
        model: the predictor, whose batch size limits the lines of a batch.
        reader: parses the lines.
        source: the stream in UTF-8, with one example per line and a method `read1`, as `sys.stdin.buffer`.
        out: the stream that the answers are written to. It is flushed after each batch.

    Returns:
        (number of lines, number of malformed lines).

    Raises:
        StorageError: the source breaks off.
    """
    count = bad = 0
    for lines in _waiting(source, model.batch_size):
        rows: list[tuple[int, dict[str, Any]]] = []
        answers: dict[int, dict[str, Any]] = {}
        for number, line in enumerate(lines, count + 1):
            try:
                rows.append((number, reader.parse(line)))
            except Malformed as error:
                answers[number] = {"line": number, "error": str(error)}
        count, bad = count + len(lines), bad + len(answers)
        if rows:
            records = model.predict(reader.examples(rows)).records()
            answers |= zip((number for number, _ in rows), records, strict=True)
        text = "".join(json.dumps(answers[n], ensure_ascii=False) + "\n" for n in sorted(answers))
        out.write(text.encode("utf-8", "replace"))
        out.flush()
    return count, bad


def _waiting(source: Any, most: int) -> Iterator[list[bytes]]:
    rest = b""
    while True:
        with reading(SOURCE):
            content = source.read1(_READ_BYTES)  # does not wait for more than is there
        *lines, rest = (rest + content).split(b"\n")
        if not content and rest:
            lines, rest = [rest], b""
        for begin in range(0, len(lines), most):
            yield lines[begin : begin + most]
        if not content:
            return
