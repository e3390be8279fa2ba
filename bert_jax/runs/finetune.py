"""Fine-tuning: trains a task from its files and a checkpoint into a work directory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import ml_collections
import numpy as np

from bert_jax import convert
from bert_jax.convert import model_card
from bert_jax.errors import UserError
from bert_jax.io.wording import alternatives, counted
from bert_jax.kernels import platform
from bert_jax.objectives.base import Objective
from bert_jax.objectives.distillation import Distillation
from bert_jax.parallel import collective, distributed, sharding
from bert_jax.runs import distillation
from bert_jax.settings.finetune_config import FinetuneConfig
from bert_jax.settings.run_config import ModelConfig
from bert_jax.tasks import fields, metrics, table
from bert_jax.tasks.base import FinetuneTask
from bert_jax.tasks.evaluation import TaskEvaluator
from bert_jax.tasks.rows import assembly, batches, outputs, packing
from bert_jax.tasks.setup import (
    from_training_file,
    resolve_schedule,
    split_file,
    training_objective,
    with_named_data,
)
from bert_jax.training import auto_accumulation, flops, train
from bert_jax.training.adapters import load_initial
from bert_jax.training.evaluators import Batches, BestCheckpoint
from bert_jax.training.metrics import MetricsWriter
from bert_jax.training.optimizers import make_optimizer
from bert_jax.workdir import run_directory
from bert_jax.workdir.run_directory import WorkDir

_ROW_LENGTH = "row_length"  # the entry of config.json with the number of tokens of a packed row, or 0


def finetune(
    config: ml_collections.ConfigDict,
    directory: str,
    log: Callable[[str], None] = print,
    *,
    explicit: Collection[str] = (),
    command_line: str = "",
    memory_limit: float | None = None,
    **fit_options: Any,
) -> dict[str, Any]:
    """Fine-tunes a model, or resumes, and keeps the checkpoint with the best score on the evaluation file.

    `pretrain.pretrain` describes the arguments; the configuration is like `bert_jax.tasks.default_config`.
    Returns the content of best.json: the best step and its scores. Without an evaluation file, it is the last
    step and no scores.
    """
    with contextlib.ExitStack() as cleanup:
        with collective.failing_together():
            opened = _open(config, directory, log, explicit, command_line, memory_limit, cleanup)
        state = train.fit(**opened, **fit_options)
        workdir: WorkDir = opened["workdir"]
        if workdir.primary:
            workdir.write_text(model_card.FILE, model_card.of_run(directory))
        found = next((each.best for each in opened["evaluators"]), None)
        return found or {"step": int(state.step), "scores": {}}


def _open(config, directory, log, explicit, command_line, memory_limit, cleanup) -> dict[str, Any]:
    """Returns the arguments of `train.fit`; `cleanup` closes the work directory. See `finetune`."""
    log = distributed.log_of_primary(log)
    config = with_named_data(config, log)
    run_directory.check_run({"config": config.to_dict()}, fields.declared(config.task))
    config, task, training = prepare(config, directory, log, explicit)
    examples = {"train": training}
    if dev := split_file(config, task.spec, "dev"):
        examples["dev"] = task.read(dev)
    else:
        log("no data.eval: the run is not evaluated and keeps its last step")
    data = {split: task.encode(found) for split, found in examples.items()}
    config = resolve_schedule(config, len(data["train"].group_lengths))
    config = dataclasses.replace(config, model=ModelConfig(**task.model_config.to_dict()))
    for split, found in examples.items():
        unknown = assembly.UnknownTokens(task.tokenizer, log).add(data[split].tokens)
        log(_describe(split, found, data[split], task) + str(unknown))
        found.warn(log)
    mesh = sharding.mesh_of(config.mesh)
    learned = _learned(config, task, directory)
    teacher = config.distillation.teacher
    learned = distillation.read_teacher(learned, teacher, task.export_head, directory, log, task.labels)
    objective = training_objective(config, task, learned)

    writer = MetricsWriter(
        directory, total_steps=config.steps, trackers=config.trackers, config=config.to_dict()
    )
    log = writer.message
    workdir = cleanup.enter_context(WorkDir(directory, log=log))
    cleanup.enter_context(contextlib.closing(writer))
    run = _describe_run(config, task, examples, command_line) | distillation.record(learned)
    run |= convert.commit_of_hub(config.init_from, directory)
    workdir.open_run(run, fields.declared(config.task))
    workdir.copy_vocabulary(task.tokenizer.path)
    data = task.precompute(data, mesh, config, log)
    best = None
    if "dev" in data:
        shapes = outputs.Shapes.choose(
            data["dev"],
            config.batch_size,
            flops.row_flops(task.objective()),
            mesh,
            packs=task.packs,
            # A batch may have as many tokens as a padded one: the state leaves little memory.
            most_tokens=config.batch_size * data["dev"].max_seq_length,
        )
        evaluator = TaskEvaluator(
            task, objective, data["dev"], examples["dev"], shapes, mesh, workdir, every=config.eval.every
        )
        best = BestCheckpoint(
            evaluator,
            workdir,
            metric=task.metrics[0],
            lower_is_better=task.metrics[0] in metrics.LOWER_IS_BETTER,
            patience=config.early_stopping,
            on_best=evaluator.write_results,
            log=log,
        )
    # A resumed run may have other devices, but it keeps the batches that it started with.
    row_length, row_flops = workdir.recorded(_ROW_LENGTH), flops.row_flops(objective)

    def in_microbatches(count: int) -> TrainingBatches:
        divided = dataclasses.replace(config, accumulate_steps=count)
        return TrainingBatches(divided, task, data["train"], mesh, row_flops, row_length)

    chosen = auto_accumulation.choose(
        config, objective, workdir, lambda count: in_microbatches(count).largest(), log, limit=memory_limit
    )
    training_batches = in_microbatches(chosen.accumulate_steps)
    packed = training_batches.packing
    workdir.record(_ROW_LENGTH, packed.length if packed else 0)
    if packed:
        rows = f"{alternatives(packed.rows)} rows of {packed.length} tokens"
        log(f"sequence packing: {counted(config.batch_size, 'example')} in {rows} per step")
    flops_per_step = training_batches.flops_per_step()
    load = functools.partial(
        load_initial,
        config,
        objective,
        workdir,
        log,
        new_groups=task.objective().new_groups,
        ignore=task.objective().may_differ,
    )
    return dict(
        workdir=workdir,
        config=chosen,
        objective=objective,
        train_data=training_batches,
        evaluators=[best] if best else [],
        flops_per_step=lambda step: flops_per_step,
        writer=writer,
        initial_params=load if config.init_from and not config.from_scratch else None,
    )


def prepare(
    config: ml_collections.ConfigDict,
    directory: str,
    log: Callable[[str], None] = lambda line: None,
    explicit: Collection[str] = (),
) -> tuple[FinetuneConfig, FinetuneTask, Any]:
    """Returns the complete configuration, the task that it describes, and the examples of its training file.

    The work directory may not exist yet; a run that resumes keeps its dtype. UserError is raised for all that
    can be found before the computation starts, such as a field that would be ignored or a missing column.
    """
    config = fields.finetuning(config)
    dtype = run_directory.resolve_dtype(config.model.dtype, directory, platform.target(), log)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, dtype=dtype))
    mesh = sharding.mesh_of(config.mesh)
    sharding.check_batch_size(config.batch_size, mesh, config.accumulate_steps)
    make_optimizer(config.optimizer, 0, None)  # the number of steps depends on the rows
    task, training = from_training_file(config, explicit, log)
    training_objective(config, task, _learned(config, task, directory))
    task.metrics  # noqa: B018, raises UserError for unknown names
    return config, task, training


def _learned(config: FinetuneConfig, task: FinetuneTask, directory: str) -> Objective:
    """Returns the objective of the task, with the shapes of its teacher if there is one."""
    learned = distillation.add_distillation(
        task.objective(),
        config.distillation,
        task.export_head,
        task.tokenizer,
        task.config.max_seq_length,
        directory,
    )
    if isinstance(learned, Distillation):
        allowed = ("task", "logits") if task.objective().has_softmax else ("task",)
        if not learned.uses_heads or ("logits" in learned.factors and "logits" not in allowed):
            raise UserError(
                f"distillation.losses={config.distillation.losses}: the task {config.task} needs "
                f"{alternatives(allowed)}, and supports no other loss of the head"
            )
    return learned


@dataclasses.dataclass(eq=False)
class TrainingBatches:
    """The batches of a training file: packed if that saves computation, otherwise grouped by length."""

    config: FinetuneConfig
    task: FinetuneTask
    data: batches.EncodedRows
    mesh: jax.sharding.Mesh
    row_flops: Callable[[int], float]
    row_length: int | None  # of the packed rows of a run that resumes; see `packing.plan`

    def __post_init__(self):
        config, task, data, mesh, row_flops = self.config, self.task, self.data, self.mesh, self.row_flops
        compilation = flops.compilation_flops(mesh, task.model_config.dtype)
        self.packing: packing.Packing | None = None
        if task.packs:
            devices = mesh.shape["data"] * mesh.shape["fsdp"]
            self.packing = packing.plan(
                data,
                config.batch_size,
                config.steps,
                devices,
                row_flops,
                config.accumulate_steps,
                compilation,
                self.row_length,
            )
        size = config.batch_size
        epochs = config.steps / batches.steps_per_epoch(len(data.group_lengths), size)
        longest = data.max_seq_length
        of_token = row_flops(longest) * data.rows_per_example / longest
        least = compilation / max(of_token * epochs, 1.0)
        self._buckets = batches.bucket_lengths(data.group_lengths, size, longest, config.steps, least)

    def __call__(self, start_step: int, local_rows: np.ndarray) -> Batches:
        """Yields the rows of each batch that this process feeds; see `train.fit`."""
        config, data = self.config, self.data
        if self.packing:
            # The number of rows differs between packed batches, and so do the rows that this process feeds.
            rows_of = functools.partial(sharding.local_rows, self.mesh)
            return packing.train_batches(
                data, self.packing, config.batch_size, config.seed, start_step, rows_of
            )
        return batches.train_batches(
            data, config.batch_size, config.seed, start_step,
            group_by_length=config.group_by_length, buckets=self._buckets, local_rows=local_rows,
        )  # fmt: skip

    def largest(self) -> dict[str, np.ndarray]:
        """Returns this process's rows of a batch of the largest shape, all of them padding."""
        data, size = self.data, self.config.batch_size
        rows_of = functools.partial(sharding.local_rows, self.mesh)
        nothing = np.full(size, -1)
        if self.packing is None:
            return batches.make_batch(data, nothing, self._buckets[-1:], rows_of(size))
        largest = dataclasses.replace(self.packing, rows=self.packing.rows[-1:])
        return packing.make_batch(data, batches.expand(nothing, data.rows_per_example), largest, rows_of)

    def flops_per_step(self) -> float:
        """Returns the mean model FLOPs of a batch; 0 if the encoder is not trained."""
        if self.task.freeze:
            return 0.0
        data, row_flops = self.data, self.row_flops
        if self.packing:
            return self.packing.mean_rows * row_flops(self.packing.length)
        # Rows are padded to their bucket's length. The mean over examples approximates the mean over batches.
        widths = np.asarray(self._buckets)[np.searchsorted(self._buckets, data.group_lengths)]
        row_widths = self.task.objective().row_widths
        of_width = {
            int(width): sum(map(row_flops, row_widths(data.rows_per_example, int(width))))
            for width in np.unique(widths)
        }
        return self.config.batch_size * float(np.mean([of_width[int(width)] for width in widths]))


def _describe_run(
    config: FinetuneConfig, task: FinetuneTask, examples: Mapping[str, Any], command_line: str
) -> dict[str, Any]:
    run: dict[str, Any] = {
        "command": "finetune",
        "config": config.to_dict(),
        "vocabulary": task.tokenizer.settings(),
        "labels": task.labels or None,
        "head": task.export_head,
        "problem_type": task.problem_type,
        "files": {split: table.digest(found.path) for split, found in examples.items()},
    }
    if task.sentence:
        run["sentence"] = task.sentence.stored()
    return run | ({"command_line": command_line} if command_line else {})


def _describe(split: str, examples: Any, data: batches.EncodedRows, task: FinetuneTask) -> str:
    parts = [f"{split}: {counted(len(examples), 'example')} from {examples.path}"]
    if described := task.describe(examples, data):
        parts.append(described)
    cut = f"{data.truncated:,} truncated to {data.max_seq_length}"
    if data.row_weights is not None:
        most, cut = max(np.bincount(data.examples)), f"; the shorter text truncated in {data.truncated:,}"
        cut = f"{counted(len(data), 'window')}, up to {most} per example{cut if data.truncated else ''}"
    parts.append(f"{np.mean(data.lengths):.0f} tokens on average, {cut}")
    return "; ".join(parts)
