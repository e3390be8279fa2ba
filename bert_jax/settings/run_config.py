"""The configurations of pre-training and fine-tuning, with the declaration of each of their fields.

Config files are ml_collections, which `bert_jax.settings.defaults` makes from these classes. A run converts
its config once, by `pretraining` or by `bert_jax.tasks.fields.finetuning`, and passes on the dataclass.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from bert_jax.errors import UserError
from bert_jax.objectives.masking import MaskingOptions
from bert_jax.settings import config_fields, distillation_config
from bert_jax.settings.config_fields import Part, amount, fixed, free, option, share
from bert_jax.settings.distillation_config import DistillationConfig, PretrainDistillationConfig
from bert_jax.settings.masking_config import EvalMaskingConfig, MaskingConfig, ReplacedTokensConfig
from bert_jax.settings.model_config import ModelConfig
from bert_jax.settings.optimizer_config import (
    SCHEDULE_FIELDS,
    FinetuneOptimizerConfig,
    OptimizerConfig,
    PretrainOptimizerConfig,
)
from bert_jax.settings.ramps import Ramp

# Upper bounds that no real run reaches prevent a typing mistake from causing an overflow or a request for all
# of the machine's memory.


@dataclasses.dataclass(frozen=True)
class SpikesConfig(Part):
    """Which steps are skipped because of their loss or gradient."""

    factor: float = amount(
        0.0,
        "a step is a spike, and skipped, if `spikes.metric` is above this many times the median of the last "
        "`spikes.window` steps that were not skipped; 0 for no such rule",
    )
    window: int = option(
        128,
        "steps; no step is a spike until the run has done this many",
        minimum=2,
        maximum=10_000,
    )
    metric: str = option("loss", "`loss`, or `grad_norm`: the norm of the gradient before clipping")


@dataclasses.dataclass(frozen=True)
class MeshConfig(Part):
    """How the devices are divided."""

    data: int = free(
        -1,
        "devices among which the batch is split; one of the three may be -1, all other devices",
        minimum=-1,
        maximum=2**20,
    )
    fsdp: int = free(
        1, "devices among which the batch and the parameters are split", minimum=-1, maximum=2**20
    )
    tensor: int = free(1, "devices among which each matrix product is split", minimum=-1, maximum=2**20)


@dataclasses.dataclass(frozen=True)
class CheckpointConfig(Part):
    """When checkpoints are saved, and which of them stay."""

    every: int = free(1000, "steps between two checkpoints; 0: at the end alone")
    keep: int = free(3, "newest checkpoints that stay", minimum=1)
    keep_every: int = free(0, "checkpoints of multiples of this step stay too; 0: none")


@dataclasses.dataclass(frozen=True)
class EvalConfig(Part):
    """When a run is evaluated."""

    every: int = free(
        1000, "steps between two evaluations; 0: at the end alone, in fine-tuning once an epoch"
    )


@dataclasses.dataclass(frozen=True)
class PretrainEvalConfig(EvalConfig):
    """When pre-training is evaluated, and on how much."""

    batches: int = free(0, "batches to evaluate on; 0: all of the split")


@dataclasses.dataclass(frozen=True)
class PretrainDataConfig(Part):
    """The records of pre-training. Directory and vocabulary may move: their digests identify them."""

    dir: str = free(
        "", "records made by `bert-jax data`, or by google-research/bert's create_pretraining_data"
    )
    vocab: str = free("", "the vocabulary of records of the latter, which do not have it with them")
    replay: str = free(
        "",
        "records of general text, of which each batch takes a share, so that less is forgotten "
        "([continued-pretraining.md](continued-pretraining.md)); directories with commas between",
    )
    replay_share: float = option(
        0.1, "share of the rows of a batch that are from `data.replay`", minimum=0.001, maximum=0.999
    )
    train_split: str = option("train", "the split to train on")
    eval_split: str = option("eval", "the split to evaluate on; empty for no evaluation")
    max_corrupt_rows: int = option(
        100, "up to this many corrupt rows are replaced by the next row; one more stops the run"
    )

    @property
    def replay_fraction(self) -> Fraction:
        """Returns the share of the rows that are from `replay`, with a denominator of at most a million."""
        return Fraction(self.replay_share).limit_denominator(10**6) if self.replay else Fraction(0)


@dataclasses.dataclass(frozen=True)
class FinetuneDataConfig(Part):
    """The files of fine-tuning. A task declares the further fields of `config.data`."""

    train: str = option(
        "", "your own file to train on: TSV, CSV or JSON-lines; of questions JSON, of tags CoNLL columns too"
    )
    eval: str = option("", "your own file to evaluate on, as `data.train`")


BOTTLENECKS = ("houlsby", "pfeiffer")  # the values of `adapter.kind` with modules of their own


@dataclasses.dataclass(frozen=True)
class AdapterConfig(Part):
    """Which few parameters are trained in place of all of them."""

    kind: str = fixed(
        "",
        "`lora`: low-rank updates of some kernels; `bitfit`: the biases of the encoder; `houlsby`: new "
        "bottleneck modules after both halves of each layer, and the norms; `pfeiffer`: such modules after "
        "the feed-forward block; `head`: the head alone; empty: every parameter. The new head of a "
        "fine-tuning is trained with each of them, and everything else is frozen; see [LoRA and other "
        "adapters](lora.md)",
    )
    size: int = fixed(
        0,
        "width of the bottleneck of `houlsby` and `pfeiffer`; 0: 64, and `model.hidden_size` / 16",
        maximum=2**20,
    )
    rank: int = fixed(8, "the rank of LoRA's updates", minimum=1, maximum=2**16)
    alpha: float = fixed(16.0, "LoRA's updates are multiplied by alpha / rank", above=0, maximum=10**6)
    rslora: bool = fixed(False, "multiply by alpha / sqrt(rank) instead")
    targets: str = fixed(
        "",
        "dense layers with an update, with commas between: `query`, `key`, `value`, `attention_output`, "
        "`intermediate` and `output`; empty for the family's, in general `query,value`",
    )
    init: str = option(
        "kaiming",
        "LoRA's A at the start: `kaiming`, uniform up to 1 / sqrt(inputs); or `gaussian`, with a standard "
        "deviation of 1 / rank. B is 0. `init_from`: A, B and, where it has the same shape, the head of that "
        "checkpoint, a PEFT folder or a run with LoRA, whose base is frozen",
    )
    dropout: float = share(
        0.0, "0: the updates are added to the kernels, and have no inputs of their own to drop"
    )
    train: str = fixed(
        "",
        "regular expression: further parameters to train, such as `pooler/.*`, which is frozen as in PEFT",
        type="regex",
    )

    def model_fields(self, hidden_size: int) -> dict[str, int]:
        """Returns the fields of `EncoderConfig` that the adapter sets, for a model of this width."""
        if self.kind == "houlsby":
            return dict.fromkeys(("attention_adapter", "output_adapter"), self.size or 64)
        if self.kind == "pfeiffer":
            return {"output_adapter": self.size or max(1, hidden_size // 16)}
        return {}


@dataclasses.dataclass(frozen=True)
class BudgetConfig(Part):
    """What a run may spend; the schedule follows the share that has been spent."""

    hours: float = option(
        0.0,
        "hours of training after which the run ends, over all of its starts; 0: it ends after `steps` "
        "([optimizers.md](optimizers.md))",
        minimum=0,
        maximum=1000,
    )
    tokens: int = option(
        0, "tokens of training, without padding, after which the run ends; 0: it ends after `steps`",
        maximum=10**15,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RunConfig(Part):
    """What pre-training and fine-tuning have in common.

    Attributes:
        steps: the number of steps; in fine-tuning, it follows from `epochs`.
        resume_from: another run from whose state pre-training goes on; empty in fine-tuning.
        budget: the budget of pre-training; None in fine-tuning.
    """

    seed: int = option(0, "of weights, order of the rows, masks and dropout", maximum=2**32 - 1)
    model: ModelConfig = ModelConfig()
    batch_size: int = option(
        256, "rows of the global batch, over all devices and hosts", minimum=1, maximum=2**20
    )
    accumulate_steps: int = free(
        1,
        "parts in which the gradient of a batch is computed, to save memory; the result is that of the "
        "whole batch",
        minimum=1,
        maximum=2**20,
    )
    steps: int = 0
    optimizer: OptimizerConfig = OptimizerConfig()
    adapter: AdapterConfig = AdapterConfig()
    distillation: DistillationConfig = DistillationConfig()
    mesh: MeshConfig = MeshConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig = EvalConfig()
    log_every: int = free(100, "steps between two lines of metrics", minimum=1)
    resume_from: str = ""
    budget: BudgetConfig | None = None
    init_from: str = option(
        "",
        "checkpoint whose weights and architecture the run starts with: a work directory or one of its "
        "`checkpoints/STEP`, a Hugging Face folder, or a TF1 prefix. The dropout rates, and the fields of "
        "`model.*` that say how the model is computed (`dtype`, `attention`, `residual`, `remat`, "
        "`scan_unroll`), are those of the config. In pre-training, so is any other field of `model.*` that "
        "is set on the command line. A size that is set and differs from the checkpoint's is refused",
    )
    init_ignore: str = option(
        "",
        "regular expression: parameters that `init_from` may lack, or have beyond this model; any other "
        "stops the run",
        type="regex",
    )
    max_skipped_steps: int = free(
        20,
        "steps skipped in a row before the run goes back to a good checkpoint, once, and leaves out the "
        "batches up to the last of them; the second time it gives up. A step is skipped if its loss, "
        "gradient, new parameters or new optimizer state is not finite, or if it is a spike",
        minimum=1,
    )
    spikes: SpikesConfig = SpikesConfig()


@dataclasses.dataclass(frozen=True)
class PretrainConfig(RunConfig):
    """Pre-training; the defaults are those of the paper (appendix A.2)."""

    steps: int = option(1_000_000, "steps of the whole run; with a budget, the most steps", minimum=1)
    budget: BudgetConfig = BudgetConfig()
    batch_ramp: str = option(
        "",
        "rows of the global batch by step, `STEP=ROWS` with commas between, such as `0=256, 1000=512`: 512 "
        "from step 1,000 on. It begins at step 0 and ends with `batch_size` ([optimizers.md](optimizers.md))",
    )
    length_ramp: str = option(
        "",
        "tokens of a row by step, `STEP=TOKENS` with commas between, such as `0=128, 900000=512`; `data.dir` "
        "then names records of each of these lengths ([optimizers.md](optimizers.md)). Empty: records of one "
        "length",
    )
    constant_tokens: bool = option(
        False,
        "with `length_ramp`: `batch_size` and `batch_ramp` are rows of the longest length, and batches of "
        "shorter rows have more rows and as many tokens",
    )
    optimizer: PretrainOptimizerConfig = PretrainOptimizerConfig()
    distillation: PretrainDistillationConfig = PretrainDistillationConfig()
    eval: PretrainEvalConfig = PretrainEvalConfig()
    data: PretrainDataConfig = PretrainDataConfig()
    masking: MaskingConfig = MaskingConfig()
    eval_masking: EvalMaskingConfig = EvalMaskingConfig()
    objective: str = fixed(
        "masked_lm",
        "what is learned: `masked_lm`, BERT's; `causal_lm`, the next token at every position "
        "([causal.md](causal.md)); or `replaced_tokens`, [ELECTRA's](families/electra.md)",
    )
    causal_steps: int = option(
        0,
        "steps at the start that learn the next token, from left to right, before masked LM "
        "([causal.md](causal.md)); 0: none",
    )
    replaced_tokens: ReplacedTokensConfig = ReplacedTokensConfig()
    resume_from: str = option(
        "",
        "work directory of another run, or one of its `checkpoints/STEP`, to go on from with its optimizer "
        "and step",
    )

    @property
    def batch_sizes(self) -> Ramp:
        """Returns the rows of the global batch of each step.

        Raises:
            UserError: `batch_ramp` is not a list of steps and rows, or does not end with `batch_size`; or no
                whole number of shorter rows has the tokens of a batch.
        """
        ramp = Ramp.constant(self.batch_size)
        if self.batch_ramp:
            ramp = Ramp.parse("batch_ramp", self.batch_ramp, maximum=2**20)
            if ramp.values[-1] != self.batch_size:
                raise UserError(
                    f"batch_ramp={self.batch_ramp!r} ends with {ramp.values[-1]} rows, and batch_size is "
                    f"{self.batch_size}; set both to the rows of the last steps"
                )
        lengths = self.lengths
        if lengths is None or not self.constant_tokens:
            return ramp
        longest = max(lengths.values)

        def more_rows(rows: int, length: int) -> int:
            if rows * longest % length:
                raise UserError(
                    f"constant_tokens: {rows} rows of {longest} tokens are no whole number of rows of "
                    f"{length} tokens; choose other lengths or batch sizes"
                )
            return rows * longest // length

        return ramp.combine(lengths, more_rows)

    @property
    def lengths(self) -> Ramp | None:
        """Returns the tokens of a row at each step; None for those of the records at all steps.

        Raises:
            UserError: `length_ramp` is not a list of steps and tokens.
        """
        return Ramp.parse("length_ramp", self.length_ramp, maximum=2**16) if self.length_ramp else None

    @property
    def left_to_right(self) -> Ramp:
        """Returns 1 at the steps that learn from left to right before masked LM, and 0 at the others."""
        return Ramp((0, self.causal_steps), (1, 0)) if self.causal_steps else Ramp.constant(0)

    def mask_options(self, length: int) -> tuple[MaskingOptions, MaskingOptions | None]:
        """Returns the masks of training and those of evaluation for rows of up to `length` tokens.

        The latter are None if they are those of training.

        Raises:
            UserError: a value is unknown, out of its range, or contradicts another one.
        """
        training, evaluation = self.masking.options(length, self.steps), None
        if self.eval_masking != EvalMaskingConfig():
            evaluation = self.eval_masking.options(self.masking, length)
        if not self.length_ramp:
            return training, evaluation
        return (
            dataclasses.replace(training, full_length=length),
            evaluation and dataclasses.replace(evaluation, full_length=length),
        )


def _other_default(name: str, default: Any) -> Any:
    """Returns the field of `RunConfig` with this name with another default."""
    declared = {field.name: field for field in dataclasses.fields(RunConfig)}
    return dataclasses.field(default=default, metadata=declared[name].metadata)


@dataclasses.dataclass(frozen=True)
class FinetuneConfig(RunConfig):
    """Fine-tuning; the defaults are those of the paper (appendix A.3).

    Attributes:
        of_tasks: the values of the fields that tasks declare, by their dotted names.
    """

    task: str = option("classification", "the task, by a name of `bert_jax.tasks`")
    batch_size: int = _other_default("batch_size", 32)
    epochs: float = option(3.0, "passes over the training file", above=0, maximum=10**6)
    warmup_fraction: float = option(
        0.1, "share of all steps that is warm-up, unless `optimizer.warmup_steps` is set", minimum=0, below=1
    )
    optimizer: FinetuneOptimizerConfig = FinetuneOptimizerConfig(learning_rate=5e-5, warmup_steps=0)
    distillation: DistillationConfig = DistillationConfig(losses="logits=0.5, task=0.5")
    checkpoint: CheckpointConfig = CheckpointConfig(keep=1)
    eval: EvalConfig = EvalConfig(every=0)
    vocab: str = option("", "the vocabulary, where there is no `init_from`, which has one")
    from_scratch: bool = option(
        False, "start with the architecture and vocabulary of `init_from`, and none of its weights"
    )
    init_keep: str = option(
        "",
        "with `from_scratch`, regular expression: parameters that are those of `init_from` all the same, "
        "such as `encoder/embeddings/.*`; the others are drawn as without it",
    )
    data_dir: str = free(
        "", "folder with the files of a task that has names for them, or [tfds:glue](finetuning.md#glue)"
    )
    data: FinetuneDataConfig = FinetuneDataConfig()
    train_rows: int = option(
        0, "train on the first examples of the training file alone, this many; 0: on all of them"
    )
    group_by_length: bool = option(True, "batches of examples of similar lengths, where none are packed")
    early_stopping: int = option(
        0, "evaluations in a row without a better score that end the run; 0: it goes to its end"
    )
    log_every: int = _other_default("log_every", 20)
    of_tasks: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields that a config file has, including those of tasks, and `steps`."""
        found = super().to_dict() | ({"steps": self.steps} if self.steps else {})
        for name, value in self.of_tasks.items():
            *parents, last = name.split(".")
            part = found
            for parent in parents:
                part = part[parent]
            part[last] = value
        return found


def unused(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yields (field, reason) for each field of every run that has no effect in the configured one."""
    if not config.spikes.factor:
        for name in ("spikes.window", "spikes.metric"):
            yield name, "spikes.factor=0 is no rule"
    used = SCHEDULE_FIELDS.get(config.optimizer.schedule, ())
    for name in dict.fromkeys(itertools.chain.from_iterable(SCHEDULE_FIELDS.values())):
        if name not in used:
            yield f"optimizer.{name}", f"the schedule {config.optimizer.schedule} does not use it"
    objective = getattr(config, "objective", "")
    if objective and objective != "replaced_tokens":
        for part in dataclasses.fields(ReplacedTokensConfig):
            yield f"replaced_tokens.{part.name}", f"the objective {objective} does not use it"
    yield from distillation_config.unused(config)
    kind = config.adapter.kind
    if kind:
        yield "optimizer.freeze", f"adapter.kind={kind} freezes all that it does not train"
        weights = config.init_from and not getattr(config, "from_scratch", False)
        if not (weights or getattr(config, "resume_from", "")):
            yield "adapter.kind", "there are no trained weights to adapt, give init_from"
    else:
        yield "adapter.train", "adapter.kind is empty, and every parameter is trained"
    if kind != "lora":
        for name in ("rank", "alpha", "rslora", "targets", "init", "dropout"):
            yield f"adapter.{name}", "adapter.kind is not lora"
    if kind not in BOTTLENECKS:
        yield "adapter.size", "adapter.kind is neither houlsby nor pfeiffer"


def _unused_in_pretraining(config: PretrainConfig) -> Iterator[tuple[str, str]]:
    """Yields (field, reason) for each field of pre-training only that has no effect in the configured run."""
    if not config.length_ramp:
        yield "constant_tokens", "length_ramp is empty, and all rows have the same length"
    if not config.data.replay:
        yield "data.replay_share", "data.replay is empty, and no rows are from there"
    _, *evaluated = options = [each for each in config.mask_options(length=128) if each]
    if not any(each.smoothing for each in options):
        yield "masking.token_counts", "only masking.smoothing uses the counts"
    if not any(each.replace[1] for each in options):
        yield "masking.exclude_special", "masking.replace has no random tokens"
    if config.objective != "masked_lm":
        yield "causal_steps", f"the objective {config.objective} has one phase"
    if config.objective == "causal_lm":
        for part in ("masking", "eval_masking"):
            for field in dataclasses.fields(getattr(config, part)):
                yield f"{part}.{field.name}", "the objective causal_lm has no masks"
    if evaluated and not config.data.eval_split:
        for field in dataclasses.fields(config.eval_masking):
            yield f"eval_masking.{field.name}", "data.eval_split is empty"


def pretraining(config: Mapping[str, Any]) -> PretrainConfig:
    """Returns the configuration of a pre-training run.

    Args:
        config: a config as `bert_jax.settings.defaults.pretrain` makes it.

    Raises:
        UserError: a field is missing, unknown, not valid, or set although it would be ignored.
    """
    declared = dict(config_fields.fields(PretrainConfig()))
    have = {name for name, _ in config_fields.flatten(config)}
    if missing := sorted(set(declared) - have):
        raise UserError(
            f"the config has no {', '.join(missing)}: start it from bert_jax.settings.defaults.pretrain()"
        )
    if unknown := sorted(have - set(declared)):
        near = config_fields.closest(unknown[0], declared)
        hint = f"; did you mean {near} by {unknown[0]}?" if near else ""
        raise UserError(f"the config has a field that pre-training does not know: {', '.join(unknown)}{hint}")
    config_fields.check_values(config, declared)
    typed = config_fields.build(PretrainConfig, config)
    values = dict(config_fields.flatten(config))
    defaults = {name: field.default for name, field in declared.items()}
    config_fields.refuse_unused(values, defaults, (*unused(typed), *_unused_in_pretraining(typed)))
    if given := [name for name, value in typed.budget.to_dict().items() if value]:
        for name in ("warmup_steps", "cooldown_steps", "decay_steps"):
            if value := getattr(typed.optimizer, name):
                instead = {"warmup_steps": "warmup_fraction", "cooldown_steps": "cooldown_fraction"}.get(name)
                hint = f" and set optimizer.{instead}" if instead else ""
                raise UserError(
                    f"optimizer.{name}={value}: with budget.{given[0]}, the schedule follows the share that "
                    f"has been spent and has no steps; set it to 0{hint}"
                )
    _check_causal_steps(typed)
    typed.batch_sizes  # noqa: B018  # refuses a wrong ramp
    return typed


def _check_causal_steps(config: PretrainConfig) -> None:
    """Raises UserError if masked LM has no steps, or if the change of the loss would be a spike."""
    given = f"causal_steps={config.causal_steps}"
    if config.causal_steps >= config.steps:
        raise UserError(
            f"{given} leaves none of steps={config.steps} to masked LM; set fewer, or --config.objective="
            "causal_lm --config.model.causal=true"
        )
    if config.causal_steps and config.spikes.factor:
        raise UserError(
            f"{given} and spikes.factor={config.spikes.factor:g}: the loss after these steps is another one, "
            "which the rule would take for a spike; set one of them to 0"
        )
