"""Prediction with a fine-tuned work directory."""

from __future__ import annotations

import dataclasses
import functools
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np

from bert_jax import checkpoint
from bert_jax.checkpoint.leaves import flatten, nest
from bert_jax.errors import UserError
from bert_jax.inference import shapes
from bert_jax.inference.engine import check_items
from bert_jax.io import files, progress, wording
from bert_jax.kernels import check as kernel_check
from bert_jax.kernels import platform
from bert_jax.models.parameters import layer_axes
from bert_jax.parallel import placement, sharding
from bert_jax.tasks import fields, registry
from bert_jax.tasks.lines import LineReader
from bert_jax.tasks.predictions import Predictions
from bert_jax.tasks.rows import assembly, batches, outputs, windows
from bert_jax.tasks.rows.costs import Costs
from bert_jax.tasks.setup import split_file, training_objective
from bert_jax.tasks.table import Malformed
from bert_jax.workdir import run_directory
from bert_jax.workdir.run_directory import BEST


@dataclasses.dataclass
class Shared:
    """What the predictors of several runs keep once.

    Attributes:
        arrays: parameters on the devices, by name and by what the checkpoints record of them.
        programs: compiled programs; see `outputs.compile_predict`.
    """

    arrays: dict[Any, jax.Array] = dataclasses.field(default_factory=dict)
    programs: dict[Any, Any] = dataclasses.field(default_factory=dict)


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
        overrides: values of fields of the run's configuration that differ from those of training.
        shared: what the predictors of several runs keep once. The frozen parameters of a run with an adapter
            then stay apart from those that it trained, and are those of the other runs if they are equal.
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
        shared: Shared | None = None,
        dtype: str = "auto",
        prepare: Callable[[Predictor], Any] = lambda predictor: None,
    ):
        run = run_directory.read_run(directory)
        if run["command"] != "finetune":
            raise UserError(
                f"{directory} is a work directory of {run['command']}, expected one of finetune; such a "
                f"model is fine-tuned by `bert-jax finetune --config.init_from={directory}`, fills masks by "
                f"`fill-mask --model={directory}`, and has a held-out loss by `evaluate "
                f"--model={directory} --records=DIR`"
            )
        step = step_directory(directory, which)
        recorded = fields.complete(ml_collections.ConfigDict(run["config"]))
        for name, value in overrides.items():
            fields.override(recorded, name, value)
        config = fields.of_run(recorded)
        tokenizer = run_directory.load_tokenizer(directory)
        spec = registry.get(config.task)
        model = config.model.encoder().for_inference(platform.target(), dtype)
        self._mesh = sharding.make_mesh()
        # Parameters that runs share stay as they are stored.
        if shared is None:
            model = placement.config_for(model, self._mesh)
        self.config, self._log = config, log
        self.task = spec.task(fields.of_task(config), spec, run["labels"], tokenizer, model)
        self.task.training_columns = run.get("columns", 0)
        self.unknown = assembly.UnknownTokens(tokenizer, log)
        self.prepared = prepare(self)
        kernel_check.ensure(self.task.model_config, log)
        size = batch_size or config.batch_size
        self.batch_size = -(-size // self._mesh.size) * self._mesh.size
        self._limits_tokens = bool(batch_size)
        self._sizes = shapes.few_sizes(self.batch_size, self._mesh.size)
        self._buckets: tuple[int, ...] = ()
        source = step or run_directory.best_or_newest(directory)
        self.shared = shared
        self.objective = self.task.objective()
        self.own_bytes, self._frozen = 0, None
        if shared is None:
            self._params = self._load(source, log)
        else:
            self._load_parts(source, shared, log)
        self._predict: Callable = outputs.make_predict(self.objective, self._mesh)

    def _load(self, source: str, log: Callable[[str], None]) -> Any:
        """Returns the parameters of the model, whichever of them were trained."""
        abstract = sharding.abstract_replicated(self.objective.init, self._mesh)
        params, report = checkpoint.load_params(source, abstract, log=log)
        if report.new:
            raise UserError(f"{report.source} lacks {report.new[0]}: it is not a checkpoint of this task")
        self.source = report.source
        layered = layer_axes(self.objective.init_shapes)
        dtype = self.task.model_config.execution.dtype
        return nest(placement.place(flatten(params), layered, self._mesh, dtype))

    def _load_parts(self, source: str, shared: Shared, log: Callable[[str], None]) -> None:
        """Loads the trained and the frozen parameters, of which only those that are not there yet."""
        self.objective = training_objective(self.config, self.task, self.objective)
        abstract = {"params": sharding.abstract_replicated(self.objective.init, self._mesh)}
        if (frozen := self.objective.frozen()) is not None:
            abstract["frozen"] = sharding.shapes_replicated(frozen, self._mesh)
        self.source, found, read = checkpoint.load_stored(source, abstract, shared.arrays, log=log)
        self.own_bytes = sum(array.nbytes for array in read.values())
        shared.arrays |= read
        self._params, self._frozen = found["params"], found.get("frozen")

    def file(self, split: str) -> str:
        """Returns the path of a split's file in the run's configuration; "" if it has none."""
        return split_file(self.config, self.task.spec, split)

    def predict(
        self, examples: Any, on_batch: Callable[[int, int], None] = progress.not_shown
    ) -> Predictions:
        """Returns the predictions for examples that the task has read; `on_batch` as in `predict_all`."""
        rows = self.task.encode(examples)
        self.unknown.add(rows.tokens)
        return self.task.decode(examples, rows, self(rows, on_batch))

    def line_reader(self, file_format: str = "auto", **columns: Any) -> LineReader:
        """Returns a reader of lines, as the task does, and logs what their predictions lack."""
        if warning := self.task.stream_warning:
            self._log(f"warning: {warning}")
        return self.task.line_reader(file_format, **columns)

    @functools.cached_property
    def reader(self) -> LineReader:
        """Returns the reader of `row_of`. Raises UserError if the run predicts no rows."""
        return self.line_reader()

    def row_of(self, item: str | Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of a text, or of {column: value}, as a line of standard input has them.

        Raises:
            Malformed: the item is not a row of this task.
        """
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
            UserError: as of `check_items`, an item is not a row of this task, or `items` is empty.
        """
        check_items(items, "items")
        given = list(items)
        if not given:
            raise UserError("items is empty: expected a list of rows, such as ['one text']")
        rows = []
        for number, item in enumerate(given):
            try:
                rows.append(self.row_of(item))
            except Malformed as error:
                raise UserError(f"row {number}: {error}") from None
        return self.records_of(rows)

    def __call__(
        self, data: batches.EncodedRows, on_batch: Callable[[int, int], None] = progress.not_shown
    ) -> np.ndarray:
        """Returns the outputs of encoded rows; the result and `on_batch` are as in `outputs.predict_all`.

        Fewer groups of rows than `batch_size` are padded as `shapes.few_sizes` says.
        """
        groups = len(data) // data.rows_per_example
        size = next((size for size in self._sizes if size >= groups), self.batch_size)
        predict = self._predict
        if self._frozen is not None:
            predict = functools.partial(_with_frozen, predict, self._frozen)
        chosen = outputs.Shapes(size, self._buckets) if self._buckets else self._shapes(data, size)
        return outputs.predict_all(predict, self._params, data, chosen, self._mesh, on_batch=on_batch)

    def _shapes(self, data: batches.EncodedRows, size: int) -> outputs.Shapes:
        """Returns the shapes of the batches of encoded rows, `size` groups of them if they are padded.

        The rows of a run that was trained without packing are not packed: a BiLSTM reads one token at a time.
        """
        most_tokens = self.batch_size * data.max_seq_length if self._limits_tokens else None
        return outputs.Shapes.choose(
            data, size, self._costs, self._mesh, packs=self.task.packs, most_tokens=most_tokens
        )

    @functools.cached_property
    def _costs(self) -> Costs:
        dtype = self.task.model_config.execution.dtype
        return Costs.of_training(self.objective, self._mesh, dtype).of_outputs()

    def warm_up(self, on_program: Callable[[int, int], None] = progress.not_shown) -> int:
        """Compiles the model for all shapes that later calls use, so that none of them waits for compilation.

        From then on, rows are padded as `shapes.few_lengths` says.

        Args:
            on_program: called with (programs done, all programs) at the start and after each program.

        Returns:
            The number of programs that were compiled. Those of another run are not compiled again.
        """
        task = self.task
        longest, group = task.config.max_seq_length, task.objective().choices
        self._buckets = tuple(shapes.few_lengths(longest, self._mesh))
        pairs: list[windows.Pair] = [([], None)] * group
        rows = assembly.assemble([(pairs, False)], (), task.tokenizer, longest, rows_per_example=group)
        of_batches = [
            batches.make_batch(rows, np.full(size, -1), (padded,))
            for size in self._sizes
            for padded in self._buckets
        ]
        predict = outputs.make_predict(self.objective, self._mesh)
        programs = {} if self.shared is None else self.shared.programs
        before = len(programs)
        self._predict = outputs.compile_predict(
            predict, self._mesh, self._params, of_batches, self._frozen, programs, on_program=on_program
        )
        return len(programs) - before


def _with_frozen(predict: Callable, frozen: Any, params: Any, batch: Any) -> Any:
    return predict(params, batch, frozen)


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
    raise UserError(
        f"--step={which}: {directory} has no such step; expected best, last or the number of a step"
    )


def load_adapters(
    base: Predictor,
    directories: Mapping[str, str],
    which: str = BEST,
    log: Callable[[str], None] = print,
    overrides: Mapping[str, Any] = types.MappingProxyType({}),
    dtype: str = "auto",
) -> dict[str, Predictor]:
    """Returns {name: predictor} of runs that share the frozen parameters and the programs of another.

    Args:
        base: a predictor with `shared`.
        directories: {name: work directory}.
        which: as of `Predictor`.
        log: called with one line for each run.
        overrides: as of `Predictor`.
        dtype: as of `Predictor`.

    Raises:
        UserError: a run has another base, trained all of its parameters, or does not use a field of
            `overrides`.
    """
    found = {}
    for name, directory in directories.items():
        one = Predictor(directory, which, base.batch_size, log, overrides, base.shared, dtype)
        total = sum(x.nbytes for x in jax.tree.leaves((one._params, one._frozen)))
        if one.own_bytes > total / 2:
            raise UserError(
                f"--adapter={name}={directory}: {wording.size(one.own_bytes)} of its {wording.size(total)} "
                "are not those of --workdir; expected a run with adapter.kind from the same init_from"
            )
        found[name] = one
    return found
