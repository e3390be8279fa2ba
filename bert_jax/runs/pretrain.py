"""Pre-training: trains a model from records and a configuration into a work directory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import ml_collections

from bert_jax import checkpoint, convert
from bert_jax.convert import families
from bert_jax.data import loader, token_counts, vocabularies
from bert_jax.data.records import Dataset
from bert_jax.errors import UserError
from bert_jax.io.wording import counted
from bert_jax.kernels import platform
from bert_jax.models.config import EncoderConfig
from bert_jax.objectives.base import Objective
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.masking import MaskingOptions, Vocabulary
from bert_jax.parallel import collective, distributed, sharding
from bert_jax.runs import distillation, fills, pretraining_objectives, pretraining_records, pretraining_start
from bert_jax.runs.pretraining_records import RunRecords, eval_batches
from bert_jax.settings import config_fields
from bert_jax.settings.typed import pretrain_config
from bert_jax.settings.typed.pretrain_config import PretrainConfig
from bert_jax.training import auto_accumulation, budget, train
from bert_jax.training.evaluators import EvalStep, Evaluator, RecordEvaluator
from bert_jax.training.metrics import flops
from bert_jax.training.metrics.metrics_writer import MetricsWriter
from bert_jax.training.optimization.adapters import describe
from bert_jax.training.optimization.optimizers import WITH_TRUST_RATIO, make_optimizer
from bert_jax.training.state import TrainState
from bert_jax.workdir import agreement, run_directory
from bert_jax.workdir.run_directory import WorkDir


def pretrain(
    config: ml_collections.ConfigDict,
    workdir: os.PathLike | str,
    *,
    explicit: Collection[str] = (),
    allow_changes: bool = False,
    evaluators: Collection[Evaluator] = (),
    log: Callable[[str], None] = print,
    memory_limit: float | None = None,
    **fit_options: Any,
) -> TrainState:
    """Pre-trains a model in a work directory, or resumes.

    Args:
        config: a config as `settings.defaults.pretrain` makes it, which is not changed.
        workdir: see `bert_jax.workdir.run_directory`.
        explicit: the fields of `config.model` that were set explicitly, such as on the command line. If
            `config.init_from` names a checkpoint, the other architecture fields are taken from it.
        allow_changes: see `WorkDir.open_run`.
        evaluators: evaluators in addition to that of the held-out records.
        log: called with lines of progress before the work directory is opened, in process 0 of the run.
        memory_limit: bytes of each device into which a batch has to fit with `accumulate_steps=0`; by default
            what is free.
        **fit_options: other arguments of `train.fit`.

    Returns:
        The final train state.

    Raises:
        UserError: the configuration, the records or the work directory are not valid.
        Preempted: the process received SIGTERM; the state has been saved.
        KeyboardInterrupt: the process received SIGINT; the state has been saved.
    """
    with contextlib.ExitStack() as cleanup:
        with collective.failing_together():
            opened = _open(config, workdir, explicit, allow_changes, evaluators, log, memory_limit, cleanup)
        return train.fit(**opened, **fit_options)


def _open(config, workdir, explicit, allow_changes, evaluators, log, memory_limit, cleanup) -> dict[str, Any]:
    """Returns the arguments of `train.fit`; `cleanup` closes the work directory. See `pretrain`."""
    log = distributed.log_of_primary(log)
    config = pretrain_config.pretraining(config)
    declared = dict(config_fields.fields(PretrainConfig()))
    agreement.check_run({"config": config.to_dict()}, declared)
    records = pretraining_records.open_records(config, workdir, log)
    tokenizer = records.tokenizer
    config, adopted = pretraining_start.adopt_architecture(config, explicit, workdir, tokenizer)
    config = _resolve(config, records, workdir, log)
    model = config.model.encoder()
    if not (config.init_from or config.resume_from or run_directory.read_started(workdir)):
        if config.requires:
            raise UserError(f"give --config.{config.requires}: this config continues another run or model")
        families.check_known(model)
        families.check_rows(tokenizer, model, f"data.dir={config.data.dir}")
    task = _masked_lm(config, model, records, workdir)
    learned = pretraining_objectives.taught(
        config,
        task,
        max_seq_length=records.longest.max_seq_length,
        tokenizer=tokenizer,
        workdir=workdir,
    )
    learned = pretraining_objectives.read_teacher(learned, config, workdir, log)
    objective = pretraining_objectives.trained(config, learned)
    # Mistakes are refused before there is a work directory.
    sentences = fills.Sentences.of(config, learned, tokenizer)
    make_optimizer(config.optimizer, budget.schedule_steps(config), None)
    mesh = sharding.mesh_of(config.mesh)
    for size in config.batch_sizes.values:
        sharding.check_batch_size(size, mesh, config.accumulate_steps)
    local_rows = functools.cache(functools.partial(sharding.local_rows, mesh))
    _check_unlearned_head(config, task)
    flops_per_step = _flops_per_step(config, objective, task.masking, records)

    primary = jax.process_index() == 0
    total = 0 if budget.from_config(config) else config.steps  # The number of steps of a budget is not known.
    writer = MetricsWriter(
        workdir, total_steps=total, primary=primary, trackers=config.trackers, config=config.to_dict()
    )
    corrupt_rows = loader.CorruptRows(config.data.max_corrupt_rows, distributed.log_of_each(writer.message))
    held = cleanup.enter_context(WorkDir(workdir, primary=primary, log=writer.message))
    cleanup.enter_context(contextlib.closing(writer))
    held.open_run(
        _describe_run(config, records) | distillation.record(learned),
        declared,
        allow_changes=allow_changes,
    )
    held.copy_vocabulary(tokenizer.path)
    if adopted:
        writer.message(adopted)
    records.describe(config, writer.message)
    if records.held_out:
        sentences.describe(writer.message)
    _describe_objective(config, task, objective, writer.message)
    if config.resume_from and not held.has_steps:
        theirs = convert.load_architecture(config.resume_from)[1]
        vocabularies.check("resume_from", config.resume_from, theirs, tokenizer)
    config, programs = auto_accumulation.choose(
        config,
        objective,
        held,
        lambda _: records.largest_batch(config, local_rows),
        writer.message,
        batch_sizes=config.batch_sizes.values,
        limit=memory_limit,
    )
    return dict(
        workdir=held,
        config=config,
        objective=objective,
        train_data=lambda step, _: records.train_batches(config, step, local_rows, corrupt_rows),
        evaluators=[
            *_evaluators(config, objective, records, sentences, mesh, corrupt_rows),
            *evaluators,
        ],
        flops_per_step=flops_per_step,
        writer=writer,
        initial_params=pretraining_start.load_function(config, objective, held, writer.message),
        programs=programs,
    )


def _describe_objective(
    config: PretrainConfig, task: MaskedLM, objective: Objective, log: Callable[[str], None]
) -> None:
    """Logs what the first steps learn, which parameters are trained, and which labels are not used."""
    if config.causal_steps:
        log(
            f"the first {counted(config.causal_steps, 'step learns', 'steps learn')} from left to "
            "right, the others masked LM"
        )
    if described := describe(objective):
        log(described)
    if unused := _unused_labels(config, task):
        log(f"the next-sentence labels of the records are not used: {unused}")


def _resolve(config: PretrainConfig, records: RunRecords, workdir: os.PathLike | str, log) -> PretrainConfig:
    """Returns the configuration with the vocabulary size, the number of predictions and the dtype filled in.

    Raises:
        UserError: the model has too few positions for the records, or too small a vocabulary.
    """
    tokenizer, length = records.tokenizer, records.longest.max_seq_length
    positions = config.model.max_position_embeddings - config.model.position_offset
    if length > positions:
        enlarge = f", or set --config.model.max_position_embeddings={length + config.model.position_offset}"
        raise UserError(
            f"the records {config.data.dir} have rows of {length} tokens and the model has "
            f"{positions} positions; make records with a --max_seq_length of at "
            f"most that{'' if config.init_from else enlarge}"
        )
    vocab_size = config.model.vocab_size or tokenizer.vocab_size
    if vocab_size < tokenizer.vocab_size:
        raise UserError(
            f"model.vocab_size={vocab_size} is less than the {tokenizer.vocab_size} of the "
            f"records' vocabulary ({tokenizer.path}); leave it at 0, or set it to at least that"
        )
    masking = config.masking
    if static := getattr(records.longest, "max_predictions", 0):
        _check_static_masks(config)
    max_predictions = static or masking.options(length, config.steps).max_predictions
    dtype = run_directory.resolve_dtype(config.model.dtype, workdir, platform.target(), log)
    return dataclasses.replace(
        config,
        model=config.model.replace(vocab_size=vocab_size, dtype=dtype),
        masking=dataclasses.replace(masking, max_predictions=max_predictions),
    )


def _check_static_masks(config: PretrainConfig) -> None:
    """Raises UserError if options of masks are set, which records with masks do not use."""
    for part in ("masking", "eval_masking"):
        given = getattr(config, part)
        for name, field in config_fields.fields(type(given)()):
            if (value := getattr(given, name)) != field.default:
                raise UserError(
                    f"{part}.{name}={value}: the records {config.data.dir} come with their masks; leave it "
                    f"at {field.default!r}, or make records with `bert-jax data --schema=packed`"
                )


def _masked_lm(
    config: PretrainConfig, model: EncoderConfig, records: RunRecords, workdir: os.PathLike | str
) -> MaskedLM:
    """Returns masked LM with the model, the masks and the vocabulary of a run.

    Other objectives take these from it; see `pretraining_objectives.make`.

    Args:
        config: the configuration of the run, resolved.
        model: the architecture.
        records: the records of the run.
        workdir: the work directory, which may have a state with a next-sentence head.
    """
    family, tokenizer = families.of(model), records.tokenizer
    masking, eval_masking = config.mask_options(records.longest.max_seq_length)
    counts = None
    if masking.smoothing or (eval_masking and eval_masking.smoothing):
        path = config.masking.token_counts
        counts = token_counts.read(path, tokenizer.vocab_size) if path else records.token_counts()
    # Without labels, a next-sentence head and its pooler would only decay. A run that has them keeps them.
    next_sentence = records.next_sentence
    return MaskedLM(
        model,
        Vocabulary.of(tokenizer, counts),
        masking,
        next_sentence=next_sentence,
        token_types=tokenizer.layout.types,
        head=family.masked_lm,
        next_sentence_head="pretraining" in family.heads
        and (next_sentence or _saved_next_sentence_head(config, workdir)),
        eval_masking=eval_masking,
    )


def _check_unlearned_head(config: PretrainConfig, task: MaskedLM) -> None:
    """Raises UserError if the optimizer would shrink the next-sentence head while it has no gradient.

    LAMB scales weight decay alone to the norm of the parameter, times the learning rate.
    """
    optimizer = config.optimizer
    shrinks = optimizer.name in WITH_TRUST_RATIO and optimizer.weight_decay
    if config.causal_steps and task.next_sentence_head and shrinks:
        raise UserError(
            f"causal_steps={config.causal_steps}: optimizer.name={optimizer.name} would shrink the "
            "next-sentence head, which learns nothing in these steps; choose another optimizer, or records "
            "without next-sentence labels"
        )


def _unused_labels(config: PretrainConfig, task: MaskedLM) -> str:
    """Returns why next-sentence labels of the records are not used; "" if there are none or they are."""
    if not task.next_sentence:
        return ""
    if config.objective == "causal_lm":
        return "[CLS] sees no other token from left to right"
    return "" if task.next_sentence_head else "the model's family has no head for them"


def _saved_next_sentence_head(config: PretrainConfig, workdir: os.PathLike | str) -> bool:
    """Returns whether the state from which the run goes on has a next-sentence head."""
    for path in (os.path.join(workdir, "checkpoints"), config.resume_from):
        if path and (names := checkpoint.parameter_names(path)):
            return any(name.startswith("nsp/") for name in names)
    return False


def _evaluators(
    config, objective: Objective, records: RunRecords, sentences: fills.Sentences, mesh, corrupt_rows
) -> Iterator[Evaluator]:
    """Yields the evaluators of the held-out records: `eval`, and `eval_replay` for those of replay.

    The first also fills the masks of the sentences.
    """
    eval_step = EvalStep(objective, config.seed, mesh)
    evaluator = functools.partial(
        _evaluator, config=config, length_of=records.length_of, eval_step=eval_step, corrupt=corrupt_rows
    )
    if records.held_out:
        own = evaluator("eval", held_out=records.held_out)
        yield fills.FillsMasks(own, objective, sentences, mesh) if sentences.rows else own
    if records.replay_held_out:
        yield evaluator("eval_replay", held_out=records.replay_held_out)


def _evaluator(
    name: str, *, config, held_out: Mapping[int, Dataset], length_of: Callable[[int], int], eval_step, corrupt
) -> RecordEvaluator:
    return RecordEvaluator(
        eval_step,
        lambda local_rows, step: loader.eval_batches(
            held_out[length_of(step)],
            config.batch_size,
            local_rows,
            max_batches=config.eval.batches,
            corrupt=corrupt,
        ),
        batch_size=config.batch_size,
        every=config.eval.every,
        total=lambda step: eval_batches(config, held_out[length_of(step)]),
        name=name,
    )


def _flops_per_step(
    config, objective: Objective, masking: MaskingOptions, records: RunRecords
) -> Callable[[int], float]:
    """Returns the function that returns the model FLOPs of a step, counted from 1.

    The mean number of sequences of a row is rounded up.
    """
    phases = {0: flops.row_flops(objective)}
    if config.causal_steps:
        phases[1] = flops.row_flops(objective, left_to_right=True)
    found = {}
    for length, dataset in records.train.items():
        predictions = getattr(dataset, "max_predictions", 0) or masking.predictions(length)
        for phase, row_flops in phases.items():
            found[length, phase] = row_flops(length, predictions, records.sequences_per_row(length))
    rows, lengths, phase_of = config.batch_sizes, records.lengths, config.left_to_right
    return lambda step: rows.at(step - 1) * found[lengths.at(step - 1), phase_of.at(step - 1)]


def _describe_run(config, records: RunRecords) -> dict[str, Any]:
    return {
        "command": "pretrain",
        "config": config.to_dict(),
        "records": {
            "fingerprint": records.fingerprint,
            "max_seq_length": records.longest.max_seq_length,
        },
        "vocabulary": records.tokenizer.settings(),
    }
