"""Pre-training: trains a model from records and a configuration into a work directory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from fractions import Fraction
from typing import Any

import ml_collections
import numpy as np

from bert_jax import checkpoint, convert
from bert_jax.checkpoint.leaves import flatten
from bert_jax.convert import families, surgery
from bert_jax.data import cache, loader, manifests, records
from bert_jax.data.rows import Dataset
from bert_jax.errors import UserError
from bert_jax.io import comma_lists
from bert_jax.io.wording import counted
from bert_jax.kernels import platform
from bert_jax.models.config import HEAD_FIELDS, RUN_FIELDS, EncoderConfig
from bert_jax.models.heads import structures
from bert_jax.objectives.base import Objective
from bert_jax.objectives.causal_lm import LEFT_TO_RIGHT, CausalLM, CausalThenMasked
from bert_jax.objectives.distillation import parse_layers
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.masking import Vocabulary
from bert_jax.objectives.replaced_tokens import ReplacedTokens, generator_config
from bert_jax.parallel import collective, distributed, sharding
from bert_jax.runs import distillation
from bert_jax.settings import config_fields, pretrain_config
from bert_jax.settings.pretrain_config import PretrainConfig, PretrainDataConfig
from bert_jax.settings.run_config import ModelConfig
from bert_jax.tokenization import Tokenizer
from bert_jax.training import auto_accumulation, flops, train
from bert_jax.training.adapters import adapt, load_initial, write_report
from bert_jax.training.evaluators import EvalStep, Evaluator, RecordEvaluator
from bert_jax.training.metrics import MetricsWriter
from bert_jax.training.optimizers import WITH_TRUST_RATIO, freeze, make_optimizer
from bert_jax.training.state import TrainState
from bert_jax.workdir import run_directory
from bert_jax.workdir.run_directory import WorkDir

TRAIN, EVAL = "train", "eval"  # the splits of the records to train and to evaluate on
HEAD = "masked_lm"  # the head of a teacher; a key of `convert.HEADS`

_SPREAD = "spread"  # the value of `distillation.init_layers` for evenly spaced layers


def pretrain(
    config: ml_collections.ConfigDict,
    workdir: os.PathLike | str,
    *,
    explicit: Collection[str] = (),
    allow_changes: bool = False,
    evaluators: Collection[Evaluator] = (),
    log: Callable[[str], None] = print,
    memory_limit: float | None = None,
    command_line: str = "",
    **fit_options: Any,
) -> TrainState:
    """Pre-trains a model in a work directory, or resumes, and returns the final train state.

    Args:
        config: a config as `settings.defaults.pretrain` makes it, which is not changed.
        workdir: see `bert_jax.workdir.run_directory`.
        explicit: the fields of `config.model` that were set explicitly, such as on the command line. If
            `config.init_from` names a checkpoint, the other architecture fields are taken from it.
        allow_changes: see `WorkDir.open_run`.
        evaluators: evaluators in addition to the one of the held-out records.
        log: called with lines of progress before the work directory is opened, in process 0 of the run.
        memory_limit: bytes of each device into which a batch has to fit with `accumulate_steps=0`; by default
            the free memory.
        command_line: the command line of the run, for its model card.
        **fit_options: other arguments of `train.fit`, which also lists the errors. UserError is raised if the
            configuration, the records or the work directory are not valid, too.
    """
    with contextlib.ExitStack() as cleanup:
        with collective.failing_together():
            opened = _open(
                config, workdir, explicit, allow_changes, evaluators, log, memory_limit, command_line, cleanup
            )
        return train.fit(**opened, **fit_options)


def _open(
    config, workdir, explicit, allow_changes, evaluators, log, memory_limit, command_line, cleanup
) -> dict[str, Any]:
    """Returns the arguments of `train.fit`; `cleanup` closes the work directory. See `pretrain`."""
    # All errors in the settings are found before the work directory is created.
    log = distributed.log_of_primary(log)
    config = pretrain_config.pretraining(config)
    declared = dict(config_fields.fields(PretrainConfig()))
    run_directory.check_run({"config": config.to_dict()}, declared)
    data = open_records(config.data, log)
    config, adopted = adopt_architecture(config, explicit, workdir, data.tokenizer)
    config = _resolve(config, data, workdir, log)
    if not (config.init_from or config.resume_from or run_directory.read_started(workdir)):
        if config.requires:
            raise UserError(f"this config continues another run or model: give --config.{config.requires}")
        families.check_known(config.model.encoder())
        families.check_rows(data.tokenizer, config.model.encoder(), f"data.dir={config.data.dir}")
    masked_lm = _masked_lm(config, data, workdir)
    length = data.train.max_seq_length
    learned = make_objective(config, masked_lm, length, tokenizer=data.tokenizer, workdir=workdir)
    learned = distillation.read_teacher(learned, config.distillation.teacher, HEAD, workdir, log)
    objective = trainable(config, learned)
    make_optimizer(config.optimizer, config.steps, None)
    mesh = sharding.mesh_of(config.mesh)
    for size in config.batch_sizes.values:
        sharding.check_batch_size(size, mesh, config.accumulate_steps)
    local_rows = functools.cache(functools.partial(sharding.local_rows, mesh))

    writer = MetricsWriter(
        workdir, total_steps=config.steps, trackers=config.trackers, config=config.to_dict()
    )
    log = writer.message
    held = cleanup.enter_context(WorkDir(workdir, log=log))
    cleanup.enter_context(contextlib.closing(writer))
    run = {
        "command": "pretrain",
        "config": config.to_dict(),
        "records": {"fingerprint": data.fingerprint, "max_seq_length": length},
        "vocabulary": data.tokenizer.settings(),
        "origin": data.origin,
        "command_line": command_line,
    } | convert.commit_of_hub(config.init_from, workdir)
    held.open_run(run | distillation.record(learned), declared, allow_changes=allow_changes)
    held.copy_vocabulary(data.tokenizer.path)
    for line in filter(None, (adopted, *_describe_data(config, data))):
        log(line)
    if config.resume_from and not held.has_steps:
        theirs = convert.load_architecture(config.resume_from)[1]
        records.check_vocabulary("resume_from", config.resume_from, theirs, data.tokenizer)
    config = auto_accumulation.choose(
        config,
        objective,
        held,
        lambda _: data.largest_batch(config, local_rows),
        log,
        batch_sizes=config.batch_sizes.values,
        limit=memory_limit,
    )
    return dict(
        workdir=held,
        config=config,
        objective=objective,
        train_data=lambda step, _: data.train_batches(config, step, local_rows),
        evaluators=[*_evaluators(config, objective, data, mesh), *evaluators],
        flops_per_step=_flops_per_step(config, objective, masked_lm.masking.max_predictions, data),
        writer=writer,
        initial_params=_initial_params(config, objective, held, log),
    )


# Records


@dataclasses.dataclass(frozen=True)
class Records:
    """The records that a run is trained and evaluated on.

    `replay_share` is the fraction of the rows of each batch that come from `replay`.
    """

    train: Dataset
    held_out: Dataset | None
    tokenizer: Tokenizer
    replay: Dataset | None = None
    replay_held_out: Dataset | None = None
    replay_share: Fraction = Fraction(0)

    @property
    def fingerprint(self) -> str:
        """Returns the digest of the records."""
        own = self.train.manifest["fingerprint"]
        return f"{own}, replay {self.replay.manifest['fingerprint']}" if self.replay else own

    @property
    def origin(self) -> dict[str, list[str]]:
        """The data sets on the hub and the languages of the text, if the manifests name them."""
        both = [dataset.manifest for dataset in (self.train, self.replay) if dataset]
        kept = [(each.get("cleaning") or {}).get("language") for each in both]
        languages = [*(name for each in both for name in each.get("languages", ())), *filter(None, kept)]
        data_sets = [name for each in both for name in each.get("data_sets", ())]
        return {"data_sets": list(dict.fromkeys(data_sets)), "languages": list(dict.fromkeys(languages))}

    @property
    def next_sentence(self) -> bool:
        """Returns whether there are next-sentence labels."""
        return any(x.manifest.get("nsp") != "none" for x in (self.train, self.replay) if x)

    def token_counts(self) -> np.ndarray:
        """Returns how often each token occurs, in the proportion of the batches: [V]."""
        size = self.tokenizer.vocab_size
        own = records.count_tokens(self.train, size)
        if not self.replay:
            return own
        replay, share = records.count_tokens(self.replay, size), float(self.replay_share)
        return (1 - share) * own + share * replay * (own.sum() / replay.sum())

    def train_batches(
        self, config: PretrainConfig, start_step: int, own: Callable[[int], np.ndarray], prefetch: int = 4
    ) -> Generator[dict[str, np.ndarray], None, None]:
        """Returns an iterator over the batches; `own` maps a number of rows to this process's rows."""
        return loader.train_batches(
            self.train,
            config.batch_sizes,
            config.seed,
            start_step,
            own,
            prefetch,
            mask_copies=config.masking.copies,
            marks={LEFT_TO_RIGHT: config.left_to_right},
            replay=loader.Replay(self.replay, self.replay_share) if self.replay else None,
        )

    def largest_batch(
        self, config: PretrainConfig, own: Callable[[int], np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Returns this process's rows of a batch with the most rows."""
        sizes, phases = config.batch_sizes, config.left_to_right
        starts = [step for step in {*sizes.starts, *phases.starts} if step < max(config.steps, 1)]
        largest = max(starts, key=lambda step: (sizes.at(step), phases.at(step)))
        return next(self.train_batches(config, largest, own, prefetch=0))


def open_records(data: PretrainDataConfig, log: Callable[[str], None]) -> Records:
    """Opens the records in `data.dir` and `data.replay`; raises UserError if they are not valid or differ."""
    if not data.dir:
        raise UserError("--config.data.dir is missing; expected the output directory of `bert-jax data`")
    train, held_out = _open_splits(cache.localize(data.dir, log), data.vocab)
    tokenizer = records.tokenizer_of(train)
    if not data.replay:
        return Records(train, held_out, tokenizer)
    replay_dir = cache.localize(data.replay, log)
    # Records of other programs have no vocabulary, and only one of the two data sets may be foreign.
    foreign = any(map(records.foreign_files, comma_lists.paths(replay_dir)))
    replay, replay_held_out = _open_splits(replay_dir, data.vocab if foreign else "")
    schemas = train.manifest["schema"], replay.manifest["schema"]
    if schemas[0] != schemas[1]:
        raise UserError(
            f"data.dir={data.dir} and data.replay={data.replay}: expected one schema, got {schemas[0]} and "
            f"{schemas[1]}"
        )
    pairs = [(data.dir, train.manifest), (data.replay, replay.manifest)]
    manifests.check_alike(pairs, TRAIN)
    every = [dataset for dataset in (train, replay, held_out, replay_held_out) if dataset]
    most = max(dataset.max_sequences_per_row for dataset in every)
    for dataset in every:  # batches of both have the same shape
        dataset.max_sequences_per_row = most
    return Records(train, held_out, tokenizer, replay, replay_held_out, data.replay_fraction)


def open_training_set(data: PretrainDataConfig, log: Callable[[str], None]) -> Dataset:
    """Opens the training set in `data.dir`, without replay."""
    return records.open_dataset(cache.localize(data.dir, log), TRAIN, data.vocab)


def _open_splits(directory: str, vocab: str) -> tuple[Dataset, Dataset | None]:
    train = records.open_dataset(directory, TRAIN, vocab)
    if not train.manifest["splits"].get(EVAL, {"rows": 0})["rows"]:
        return train, None
    return train, records.open_dataset(directory, EVAL, vocab)


def _describe_data(config: PretrainConfig, data: Records) -> Iterator[str]:
    total = config.batch_sizes.total_before(config.steps)
    most = 20 if config.init_from else 50  # epochs; the paper trains for 40
    length = data.train.max_seq_length
    yield f"{counted(config.steps, 'step')}, {counted(total, 'row')} of {length} tokens"
    replayed = loader.replayed_before(total, data.replay_share)
    for name, dataset, used in (
        (config.data.dir, data.train, total - replayed),
        (config.data.replay, data.replay, replayed),
    ):
        if dataset:
            epochs = used / len(dataset)
            yield f"{epochs:,.3g} epochs of {counted(len(dataset), 'row')} in {name}"
            if epochs > most:
                yield f"warning: the run repeats the rows of {name} {epochs:,.0f} times"
    if copies := config.masking.copies:
        yield f"each row has {counted(copies, 'set')} of masks, used in turn by epoch"
    if config.causal_steps:
        yield f"the first {counted(config.causal_steps, 'step')} train causal LM, the others masked LM"
    if not data.held_out:
        yield f"no evaluation: the records have no split {EVAL!r}"
    for name, held_out in ((config.data.dir, data.held_out), (config.data.replay, data.replay_held_out)):
        if held_out:
            used = min(_eval_batches(config, held_out) * config.batch_size, len(held_out))
            yield f"evaluating on {used:,} of {counted(len(held_out), 'held-out row')} of {name}"


# The model


def adopt_architecture(
    config: PretrainConfig,
    explicit: Collection[str],
    workdir: os.PathLike | str = "",
    tokenizer: Tokenizer | None = None,
) -> tuple[PretrainConfig, str]:
    """Returns the configuration with the architecture of the checkpoint that the model starts with, if any.

    The checkpoint is `config.init_from`, or the teacher whose layers the student starts with. A run that has
    started takes it from its work directory; otherwise the tokenizer of the records must have the
    checkpoint's vocabulary. The second result is a line about it; "" if the checkpoint was not read.
    """
    # The pooling is saved with the model and read by fine-tuning runs that start from it.
    structures.check_fields(config.model.to_dict(), ("classifier_pooling",), "pre-training")
    before, message = config.model.to_dict(), ""
    field, of_teacher = "init_from", bool(config.distillation.init_layers)
    path = config.init_from
    if of_teacher:
        field, path = "distillation.teacher", config.distillation.teacher
    fields = before
    if path:
        started = run_directory.read_started(workdir).get("config", {}) if workdir else {}
        if dict(config_fields.flatten(started)).get(field) == path:
            recorded = {name: value for name, value in started["model"].items() if name in before}
            fields = before | recorded | {name: before[name] for name in (*RUN_FIELDS, *explicit)}
        elif of_teacher:
            theirs, vocabulary = convert.load_architecture(path)
            own = ("model_type", "num_hidden_layers", "type_vocab_size", *RUN_FIELDS, *HEAD_FIELDS, *explicit)
            fields = theirs.to_dict() | {name: before[name] for name in own}
            layers = _student_layers(config, fields["num_hidden_layers"], theirs)
            fields["num_hidden_layers"] = len(layers)
            message = f"the model starts with layers {', '.join(map(str, layers))} of {path}"
        else:
            fields, vocabulary = convert.adopt_architecture(path, before, explicit)
            message = convert.describe_architecture(path, fields)
        if message and tokenizer is not None:
            records.check_vocabulary(field, path, vocabulary, tokenizer)
    adapter = config.adapter.model_fields(fields["hidden_size"])
    return dataclasses.replace(config, model=ModelConfig(**fields | adapter)), message


def _resolve(config: PretrainConfig, data: Records, workdir: os.PathLike | str, log) -> PretrainConfig:
    """Returns the configuration with the vocabulary's size, predictions, dtype and warm-up filled in."""
    model, tokenizer, length = config.model, data.tokenizer, data.train.max_seq_length
    vocab_size = model.vocab_size or tokenizer.vocab_size
    if vocab_size < tokenizer.vocab_size:
        raise UserError(
            f"model.vocab_size={vocab_size}: the records have {tokenizer.vocab_size} tokens; leave it at 0"
        )
    static = getattr(data.train, "max_predictions", 0)
    if static:
        for part in ("masking", "eval_masking"):
            if getattr(config, part) != getattr(PretrainConfig(), part):
                raise UserError(
                    f"{part}: the records {config.data.dir} are already masked; leave these fields at their "
                    "defaults, or use records with --schema=packed"
                )
    most = static or config.masking.options(length).max_predictions
    dtype = run_directory.resolve_dtype(model.dtype, workdir, platform.target(), log)
    optimizer, steps = config.optimizer, config.optimizer.decay_steps or config.steps
    if optimizer.warmup_steps >= steps > 0:
        longer = f"optimizer.warmup_steps={optimizer.warmup_steps} is too long for this run"
        log(f"warm-up: {steps // 10} of {steps} steps; {longer}")
        optimizer = dataclasses.replace(optimizer, warmup_steps=steps // 10)
    return dataclasses.replace(
        config,
        optimizer=optimizer,
        model=dataclasses.replace(model, vocab_size=vocab_size, dtype=dtype),
        masking=dataclasses.replace(config.masking, max_predictions=most),
    )


def _initial_params(
    config: PretrainConfig, objective: Objective, workdir: WorkDir, log: Callable[[str], None]
) -> Callable[[Any], Any] | None:
    """Returns a function that loads the parameters of `init_from` or of the teacher, or None for neither."""
    if config.distillation.init_layers:
        return functools.partial(_load_student, config, workdir, log)
    if config.init_from:
        return functools.partial(load_initial, config, objective, workdir, log)
    return None


def _student_layers(config: PretrainConfig, count: int, teacher: EncoderConfig) -> tuple[int, ...]:
    """Returns the layers of the teacher that a student of `count` layers starts with."""
    many = teacher.num_hidden_layers
    if config.distillation.init_layers != _SPREAD:
        return parse_layers(config.distillation.init_layers, "init_layers")
    # 0, 2, 4, 7, 9 and 11 of 12 layers, as in DistilBERT.
    return tuple(round(i * (many - 1) / max(1, count - 1)) for i in range(count))


def _load_student(
    config: PretrainConfig, workdir: WorkDir, log: Callable[[str], None], abstract_params: Mapping[str, Any]
) -> dict:
    model = convert.load(config.distillation.teacher, log=log)
    if "mlm" in abstract_params and "mlm" not in model.groups:
        model = surgery.change_head(model, HEAD)  # a generator's head
    layers = _student_layers(config, config.model.num_hidden_layers, model.config)
    model = surgery.select_layers(model, layers)
    if missing := [name for name in flatten(abstract_params) if name not in model.params]:
        raise UserError(
            f"distillation.init_layers={config.distillation.init_layers}: the teacher lacks {missing[0]}; "
            "expected a student of the same architecture"
        )
    params, report = checkpoint.select_params(model.source, model.params, abstract_params)
    write_report(report, workdir, log)
    return params


# The objective


def _masked_lm(config: PretrainConfig, data: Records, workdir: os.PathLike | str) -> MaskedLM:
    model = config.model.encoder()
    family = families.of(model)
    masking, eval_masking = config.mask_options(data.train.max_seq_length)
    # Without labels, a next-sentence head and its pooler would only decay. A run that has them keeps them.
    states = (os.path.join(workdir, "checkpoints"), config.resume_from)
    saved = [name for path in states if path for name in checkpoint.parameter_names(path) or ()]
    labeled = data.next_sentence or any(name.startswith("nsp/") for name in saved)
    masked_lm = MaskedLM(
        model,
        Vocabulary.from_tokenizer(data.tokenizer, data.token_counts() if masking.smoothing else None),
        masking,
        next_sentence=data.next_sentence,
        token_types=data.tokenizer.layout.types,
        head=family.masked_lm,
        next_sentence_head="pretraining" in family.heads and labeled,
        eval_masking=eval_masking,
    )
    # LAMB scales weight decay alone to the norm of the parameter, times the learning rate.
    shrinks = config.optimizer.name in WITH_TRUST_RATIO and config.optimizer.weight_decay
    if config.causal_steps and masked_lm.next_sentence_head and shrinks:
        raise UserError(
            f"causal_steps={config.causal_steps}: optimizer.name={config.optimizer.name} would shrink the "
            "next-sentence head; expected another optimizer, or records without next-sentence labels"
        )
    return masked_lm


def make_objective(
    config: PretrainConfig,
    masked_lm: MaskedLM,
    max_seq_length: int,
    *,
    tokenizer: Tokenizer | None = None,
    workdir: os.PathLike | str = "",
) -> Objective:
    """Returns the objective of a configuration, with its teacher if it has one.

    The tokenizer is None without records, and the work directory "" if there is none. It raises UserError if
    the rows are too long, or if the model or the teacher does not fit the objective.
    """
    name, model = config.objective, masked_lm.config
    if max_seq_length > model.max_seq_length:
        raise UserError(
            f"the rows have {max_seq_length} tokens, and the model {model.max_seq_length} positions; make "
            "shorter rows, or for a new model set --config.model.max_position_embeddings"
        )
    if model.causal != (name == "causal_lm"):
        raise UserError(
            f"objective={name} with model.causal={str(model.causal).lower()}: expected both "
            "objective=causal_lm and model.causal=true, or neither"
        )
    objective: Objective = masked_lm
    if name == "causal_lm":
        objective = CausalLM(model, masked_lm.token_types, masked_lm.head)
    elif name == "replaced_tokens":
        options, family = config.replaced_tokens, families.of(model)
        if "replaced_tokens" not in family.heads:
            raise UserError(
                f"objective=replaced_tokens: model.model_type={model.model_type} has no such head; expected "
                "electra or deberta-v2"
            )
        small = generator_config(model, options.generator_hidden_size, options.generator_layers)
        norms = {each.hidden_size for each in (model, small) if each.projection_placement == "before_norm"}
        if options.sharing == "all" and len(norms) > 1:
            raise UserError(
                "replaced_tokens.sharing=all: a DeBERTa generator needs generator_hidden_size="
                f"{model.hidden_size}, as the model; or set sharing=gdes"
            )
        generator = dataclasses.replace(masked_lm, config=small, next_sentence_head=False)
        objective = ReplacedTokens(model, generator, options.weight, options.sharing, family.replaced_tokens)
    elif config.causal_steps:
        objective = CausalThenMasked(masked_lm)
    return distillation.add_distillation(
        objective, config.distillation, HEAD, tokenizer, max_seq_length, workdir
    )


def trainable(config: PretrainConfig, learned: Objective) -> Objective:
    """Returns an objective that freezes the parameters that the optimizer and the adapter do not train."""
    return adapt(freeze(learned, config.optimizer.freeze), config.adapter)


def _flops_per_step(
    config: PretrainConfig, objective: Objective, max_predictions: int, data: Records
) -> Callable[[int], float]:
    length = data.train.max_seq_length
    predictions = getattr(data.train, "max_predictions", 0) or max_predictions
    own, *replay = (
        Fraction(x.manifest["splits"][x.split]["sequences"], len(x)) for x in (data.train, data.replay) if x
    )
    sequences = math.ceil((1 - data.replay_share) * own + data.replay_share * sum(replay))
    of_row = [
        flops.row_flops(objective, left_to_right=phase)(length, predictions, sequences)
        for phase in ((False, True) if config.causal_steps else (False,))
    ]
    rows, phases = config.batch_sizes, config.left_to_right
    return lambda step: rows.at(step - 1) * of_row[phases.at(step - 1)]


# Evaluation


def _eval_batches(config: PretrainConfig, dataset: Dataset) -> int:
    batches = -(-len(dataset) // config.batch_size)
    return min(batches, config.eval.batches or batches)


def _evaluators(config: PretrainConfig, objective: Objective, data: Records, mesh) -> Iterator[Evaluator]:
    eval_step = EvalStep(objective, config.seed, mesh)
    for name, dataset in (("eval", data.held_out), ("eval_replay", data.replay_held_out)):
        if dataset is None:
            continue
        size, most = config.batch_size, config.eval.batches
        yield RecordEvaluator(
            eval_step,
            functools.partial(loader.eval_batches, dataset, size, max_batches=most),
            batch_size=size,
            every=config.eval.every,
            total=_eval_batches(config, dataset),
            name=name,
        )
