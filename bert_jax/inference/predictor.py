"""Prediction with a fine-tuned model, for files, rows and the lines of a stream."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import ml_collections
import numpy as np

from bert_jax import checkpoint, convert, tokenization
from bert_jax.checkpoint.leaves import flatten, nest
from bert_jax.convert.formats import work_directory
from bert_jax.errors import UserError, reading
from bert_jax.inference import engine
from bert_jax.io import comma_lists, files, progress
from bert_jax.io.wording import alternatives
from bert_jax.kernels import check as kernel_check
from bert_jax.kernels import platform
from bert_jax.models.parameters import layer_axes, parameter_shapes
from bert_jax.parallel import placement, sharding
from bert_jax.tasks import fields, inferred, registry, table
from bert_jax.tasks.base import TableTask
from bert_jax.tasks.predictions import Predictions
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.rows import assembly, batches, outputs
from bert_jax.tasks.setup import split_file
from bert_jax.tasks.table import SOURCE, LineReader, Malformed, OptionalPairs
from bert_jax.tasks.text import TextTask
from bert_jax.training import flops
from bert_jax.workdir import run_directory
from bert_jax.workdir.run_directory import BEST

_READ_BYTES = 1 << 16  # bytes read from a stream at a time

# For external models (not runs): the task of each head, and of more values of `problem_type`.
HEADS = {
    "sequence_classification": "classification",
    "token_classification": "tagging",
    "question_answering": "squad",
    "multiple_choice": "multiplechoice",
}
_PROBLEMS = {"multi_label_classification": "multilabel", "regression": "regression"}
_PAIRS = (("text_a", "text_b"), ("text", "text_b"))
_LONGEST = 512  # tokens per row for an external model
_ACTIVATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {  # for its single output
    "Identity": lambda x: x,
    "Sigmoid": lambda x: np.exp(-np.logaddexp(np.float32(0), -x)),
    "Tanh": np.tanh,
}


class _Source(NamedTuple):
    """The inputs of a predictor. For a run, `params` is None and `name` is the path of its checkpoint."""

    config: ml_collections.ConfigDict
    spec: TaskSpec
    labels: Sequence[str] | None
    tokenizer: tokenization.Tokenizer
    name: str
    params: Mapping[str, np.ndarray] | None = None
    activation: Callable[[np.ndarray], np.ndarray] = _ACTIVATIONS["Identity"]


class Predictor:
    """Predicts with a model that has a fine-tuned head, whose parameters are read when they are first used.

    Args:
        model: the work directory of a `finetune` run; or an external model with a head for sequences, tokens,
            questions or multiple choice: a loaded model, a path, or a name on the hub.
        which: "best" for the step that scored best on the evaluation file, if there is one; "last"; or the
            number of a step.
        batch_size: the maximum number of groups of rows in a batch. A packed batch has at most as many tokens
            as this number of rows of the maximum length. 0 for the batch size of training, and for packed
            batches of a size that suits the devices.
        log: called with each line to be logged.
        overrides: values of fields of the run's configuration that differ from training.
        dtype: the dtype of the computation, as in `EncoderConfig.for_inference`.
        columns: for an external model: the names of the columns `text_a`, `text_b`, `label` and `id`, and the
            comma-separated names of the `choices`. A run uses the columns of its training file.
    """

    def __init__(
        self,
        model: files.PathLike | convert.Model,
        which: str = BEST,
        batch_size: int = 0,
        log: Callable[[str], None] = print,
        overrides: Mapping[str, Any] = types.MappingProxyType({}),
        dtype: str = "auto",
        columns: Mapping[str, str] = types.MappingProxyType({}),
    ):
        loaded = model if isinstance(model, convert.Model) else _load_unless_run(model, log)
        if loaded is None:
            source = _of_run(os.fspath(model), which)  # type: ignore[arg-type]
        elif which == BEST:
            source = _of_model(loaded, columns, may_lack_answers="null_score_diff_threshold" in overrides)
        else:
            raise UserError(f"--step={which}: {loaded.source} is not a finetune run; omit --step")
        recorded, spec = source.config, source.spec
        for name, value in overrides.items():
            fields.override(recorded, name, value)
        config = fields.of_run(recorded)
        self._mesh = sharding.make_mesh()
        encoder = config.model.encoder().for_inference(platform.target(), dtype)
        encoder = placement.config_for(encoder, self._mesh)
        self.config, self._log, self._activation = config, log, source.activation
        self.task = spec.task(fields.of_task(config), spec, source.labels, source.tokenizer, encoder)
        self._finds_columns = loaded is not None and not columns.get("text_a")
        if loaded is not None and isinstance(self.task, TextTask):
            self.task.Lines = OptionalPairs  # type: ignore[assignment, misc]
        self.unknown = assembly.UnknownTokens(source.tokenizer, log)
        size = batch_size or config.batch_size
        self.batch_size = -(-size // self._mesh.size) * self._mesh.size
        self._limits_tokens = bool(batch_size)
        self._sizes = engine.few_sizes(self.batch_size, self._mesh.size)
        self._buckets: tuple[int, ...] = ()
        self.objective = self.task.objective()
        self._predict: Callable = outputs.make_predict(self.objective, self._mesh)
        self._name, self._found = source.name, source.params

    @functools.cached_property
    def _loaded(self) -> tuple[str, Any]:
        """The path of the model and its parameters, which take the most time to read."""
        kernel_check.ensure(self.task.model_config, self._log)
        shapes, name, found = self.objective.init_shapes, self._name, self._found
        if found is None:
            abstract = sharding.abstract_replicated(shapes, self._mesh)
            params, report = checkpoint.load_params(name, abstract, log=self._log)
            name, found = report.source, flatten(params)
        params = {each: found[each] for each in parameter_shapes(shapes)}
        dtype = self.task.model_config.dtype
        self._found = None
        return name, nest(placement.place(params, layer_axes(shapes), self._mesh, dtype))

    @property
    def source(self) -> str:
        """Returns the path or the name of the model."""
        return self._loaded[0]

    def find_columns(self, path: str, file_format: str = "auto") -> None:
        """Finds the columns of a table by their usual names, for an external model without given columns."""
        config = self.task.config
        if not (self._finds_columns and isinstance(self.task, TableTask)):
            return
        part = table.parts(path)[0]
        kind = table.detect_format({**table.FORMATS, ".txt": table.LINES}, part, file_format)
        rows = () if kind == table.LINES else table.records(part, kind)
        names = next((row for _, row in rows if not isinstance(row, Malformed)), {}).keys()
        pairs = [[*pair] for pair in (*_PAIRS, *inferred.PAIRS) if names >= set(pair)]
        texts = pairs or [[name] for name in ("text_a", *inferred.TEXTS) if name in names]
        labels = [name for name in inferred.LABELS if name in names] if config.data.label == "label" else []
        found: dict[str, Any] = {"id": "id"} if "id" in names else {}
        found |= {"label": labels[0]} if len(labels) == 1 else {}
        if len(texts) == 1:
            found |= zip(("text_a", "text_b"), texts[0], strict=False)
        self.task.config = dataclasses.replace(config, data=dataclasses.replace(config.data, **found))

    def file(self, split: str) -> str:
        """Returns the path of a split's file in the run's configuration; "" if there is none."""
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
        """Returns the reader of `row_of`. Raises UserError if the run cannot predict single rows."""
        return self.task.line_reader()

    def row_of(self, item: str | Mapping[str, Any]) -> dict[str, Any]:
        """Parses a text or {column: value} into fields. Raises Malformed if it is not a row of this task."""
        reader = self.reader
        if isinstance(item, str):
            return reader.from_text(item)
        if not isinstance(item, Mapping):
            raise Malformed(f"{type(item).__name__}, expected a text or {{column: value}}")
        return reader.from_object(item)

    def records_of(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the prediction for each result of `row_of`, without an id if the row has none."""
        examples = self.reader.examples(list(enumerate(rows, 1)))
        return [
            record if "id" in row else {name: value for name, value in record.items() if name != "id"}
            for record, row in zip(self.predict(examples).records(), rows, strict=True)
        ]

    def predict_rows(self, items: Iterable[str | Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Returns the predictions for rows, in the format of `bert-jax predict --input=-`.

        Args:
            items: each is a text, a pair of texts separated by a tab, or {column: value} with the columns of
                the training file.

        Returns:
            One dict per item. Classification has the predicted label and the probability of every label,
            regression the number, tagging the words, tags and entities, and question answering the answer.

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
        """Returns the outputs of encoded rows, as `outputs.predict_all`, in batches of `engine.few_sizes`."""
        groups = len(data) // data.rows_per_example
        size = next((size for size in self._sizes if size >= groups), self.batch_size)
        shapes = outputs.Shapes(size, self._buckets)
        if not self._buckets:
            # A run trained without packing does not pack in prediction: a BiLSTM reads one token at a time.
            most = self.batch_size * data.max_seq_length if self._limits_tokens else None
            shapes = outputs.Shapes.choose(
                data, size, self._row_flops, self._mesh, packs=self.task.packs, most_tokens=most
            )
        found = outputs.predict_all(
            self._predict, self._loaded[1], data, shapes, self._mesh, on_batch=on_batch
        )
        return self._activation(found)

    @functools.cached_property
    def _row_flops(self) -> Callable[[int], float]:
        return flops.row_flops(self.objective)

    def warm_up(self, on_program: Callable[[int, int], None] = progress.not_shown) -> int:
        """Compiles the programs that later calls, with `engine.few_lengths`, use; returns their number."""
        task = self.task
        longest, group = task.config.max_seq_length, task.objective().choices
        self._buckets = tuple(engine.few_lengths(longest, self._mesh))
        pairs: list[assembly.Pair] = [([], None)] * group
        rows = assembly.assemble([(pairs, False)], (), task.tokenizer, longest, rows_per_example=group)
        shapes = [(size, padded) for size in self._sizes for padded in self._buckets]
        predict = functools.partial(self._predict, self._loaded[1])
        on_program(0, len(shapes))
        for done, (size, padded) in enumerate(shapes, 1):
            of_padding = [(np.full(size, -1), (padded,))]
            for _ in outputs.computed(predict, rows, of_padding, self._mesh):
                on_program(done, len(shapes))
        return len(shapes)


def _load_unless_run(path: files.PathLike, log: Callable[[str], None]) -> convert.Model | None:
    if work_directory.FORMAT.detect(path):
        command = run_directory.read_run(path)["command"]
        if command == "finetune":
            return None
        if command != work_directory.COMMAND:
            raise UserError(f"{os.fspath(path)} is a {command} run; expected a finetune run")
    return convert.load(path, log=log)


def _of_run(directory: str, which: str) -> _Source:
    run, step = run_directory.read_run(directory), step_directory(directory, which)
    config = fields.complete(ml_collections.ConfigDict(run["config"]))
    tokenizer = run_directory.load_tokenizer(directory)
    step = step or run_directory.best_or_newest(directory)
    return _Source(config, registry.get(config.task), run["labels"], tokenizer, step)


def _of_model(model: convert.Model, columns: Mapping[str, str], may_lack_answers: bool) -> _Source:
    """Returns the task, with default settings, and the parameters of an external model, or UserError."""
    if model.head not in HEADS:
        expected = f"a fine-tuned model with the head {alternatives(HEADS)}"
        raise UserError(f"{model.source}: expected {expected}, not {model.head}")
    task, activation, longest = HEADS[model.head], "Identity", model.config.max_seq_length
    if task == "classification":
        task = _PROBLEMS.get(model.problem_type, "regression" if model.classes == 1 else task)
        longest = min(longest, model.scores.max_seq_length or longest)
    if task == "regression":  # as in sentence-transformers' CrossEncoder and transformers' pipelines
        default = "Identity" if model.problem_type == "regression" else "Sigmoid"
        activation = model.scores.activation.split(".")[-1] or default
        if model.classes != 1 or activation not in _ACTIVATIONS:
            expected = f"1 output with the activation {alternatives(_ACTIVATIONS)}"
            raise UserError(f"{model.source}: expected {expected}, not {model.classes} with {activation}")
    config = fields.default_config(task="squad2" if task == "squad" and may_lack_answers else task)
    config.model, config.max_seq_length = model.config.to_dict(), min(longest, _LONGEST)
    data = {"text_a": "text", "label": "label"} if task not in ("squad", "tagging") else {}
    for name, column in (data | dict(columns)).items():
        fields.assign(config, f"data.{name}", column)
    labels: Sequence[str] | None = None
    if task == "squad":  # short rows need room for the context
        for name in ("doc_stride", "max_query_length"):
            config[name] = min(config[name], config.max_seq_length // 4)
    elif task == "multiplechoice":
        labels = list(map(str, range(len(comma_lists.names(columns.get("choices", ""))))))
        if len(labels) < 2:
            raise UserError(f"{model.source} needs --choices=COLUMN,COLUMN with two or more columns")
    elif task != "regression":
        labels = model.labels or [f"LABEL_{number}" for number in range(model.classes)]
    spec = registry.get(config.task)
    if task == "classification" and labels and not any(label.isdecimal() for label in labels):
        # Files may have label numbers instead of names.
        numbers = {str(number): label for number, label in enumerate(labels)}
        spec = dataclasses.replace(spec, labels=tuple(labels), spellings=numbers)
    tokenizer = model.require_tokenizer()
    return _Source(config, spec, labels, tokenizer, model.source, model.params, _ACTIVATIONS[activation])


def step_directory(directory: str, which: str) -> str:
    """Returns the checkpoint of a run for "last" or the number of a step, else UserError; "" for "best"."""
    if which == BEST:
        return ""
    if which == "last":
        return os.fspath(directory)
    for folder in ("checkpoints", BEST):
        path = os.path.join(directory, folder, which)
        if which.isdecimal() and files.exists(path):
            return path
    raise UserError(f"--step={which}: {directory} has no such step; expected best, last or a number")


def answer_lines(model: Predictor, reader: LineReader, source: Any, out: IO[bytes]) -> tuple[int, int]:
    """Answers every line of a stream with one of JSON, in order; returns the numbers of all and wrong lines.

    All lines that are waiting when the model becomes idle form the next batch, up to its batch size. The
    answer to a malformed line is an object with the number of the line, `line`, and the problem, `error`.
    `source` has a method `read1`, like `sys.stdin.buffer`. `out` is flushed after each batch.
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
            content = source.read1(_READ_BYTES)  # returns the available bytes without waiting for more
        *lines, rest = (rest + content).split(b"\n")
        if not content and rest:
            lines, rest = [rest], b""
        for begin in range(0, len(lines), most):
            yield lines[begin : begin + most]
        if not content:
            return
