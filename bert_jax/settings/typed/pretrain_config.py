"""The configuration of pre-training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io.wording import counted
from bert_jax.objectives.masking import MaskingOptions
from bert_jax.settings import config_fields
from bert_jax.settings.config_fields import Part, fixed, free, option
from bert_jax.settings.ramps import Ramp
from bert_jax.settings.typed import run_config
from bert_jax.settings.typed.distillation_config import PretrainDistillationConfig
from bert_jax.settings.typed.masking_config import EvalMaskingConfig, MaskingConfig, ReplacedTokensConfig
from bert_jax.settings.typed.optimizer_config import PretrainOptimizerConfig
from bert_jax.settings.typed.run_config import BudgetConfig, EvalConfig, RunConfig


@dataclasses.dataclass(frozen=True)
class PretrainEvalConfig(EvalConfig):
    """When pre-training is evaluated, and on how much."""

    batches: int = free(0, "batches to evaluate on; 0: all of the split")
    sentences: str = free(
        "The capital of France is [MASK].; She opened the door and went into the [MASK].; The water in the "
        "river was too [MASK] to drink.; They have [MASK] in this house for ten years.",
        "sentences whose masks are filled at each evaluation, for TensorBoard, the trackers and `bert-jax "
        "report` ([evaluation.md](evaluation.md#fills-of-masks)), with `;` between; empty for none",
    )


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
    eval_split: str = option("eval", "the split to evaluate on; empty for no evaluation")

    @property
    def replay_fraction(self) -> Fraction:
        """Returns the share of the rows that are from `replay`, with a denominator of at most a million."""
        return Fraction(self.replay_share).limit_denominator(10**6) if self.replay else Fraction(0)


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
    requires: str = free("", "the field that names the model or run which a new run of this config continues")

    @property
    def batch_sizes(self) -> Ramp:
        """Returns the rows of the global batch of each step.

        Raises:
            UserError: `batch_ramp` is not a list of steps and rows, or does not end with `batch_size`.
        """
        if not self.batch_ramp:
            return Ramp.constant(self.batch_size)
        ramp = Ramp.parse("batch_ramp", self.batch_ramp, maximum=2**20)
        if ramp.values[-1] != self.batch_size:
            raise UserError(
                f"batch_ramp={self.batch_ramp!r} ends with {counted(ramp.values[-1], 'row')}, and batch_size "
                f"is {self.batch_size}; set both to the rows of the last steps"
            )
        return ramp

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
        training, evaluation = self.masking.options(length), None
        if self.eval_masking != EvalMaskingConfig():
            evaluation = self.eval_masking.options(self.masking, length)
        return training, evaluation


def _unused_in_pretraining(config: PretrainConfig) -> Iterator[tuple[str, str]]:
    """Yields (field, reason) for each field of pre-training only that has no effect in the configured run."""
    if not config.data.replay:
        yield "data.replay_share", "data.replay is empty, and no rows are from there"
    _, *evaluated = options = [each for each in config.mask_options(length=128) if each]
    if not any(each.replace[1] for each in options):
        yield "masking.exclude_special", "masking.replace has no random tokens"
    if config.objective != "masked_lm":
        yield "causal_steps", f"the objective {config.objective} has one phase"
    if config.objective == "causal_lm":
        for part in ("masking", "eval_masking"):
            for field in dataclasses.fields(getattr(config, part)):
                yield f"{part}.{field.name}", "the objective causal_lm has no masks"
    if config.eval.sentences:  # "" is off, and fits every run
        if config.objective == "causal_lm":
            yield "eval.sentences", "the objective causal_lm fills no masks"
        if not config.data.eval_split:
            yield "eval.sentences", "data.eval_split is empty, and nothing is evaluated"
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
    config_fields.refuse_unused(values, defaults, (*run_config.unused(typed), *_unused_in_pretraining(typed)))
    if given := [name for name, value in typed.budget.to_dict().items() if value]:
        for name in ("warmup_steps", "cooldown_steps", "decay_steps"):
            if value := getattr(typed.optimizer, name):
                hint = " and set optimizer.warmup_fraction" if name == "warmup_steps" else ""
                raise UserError(
                    f"optimizer.{name}={value}: with budget.{given[0]}, the schedule follows the share that "
                    f"has been spent and has no steps; set it to 0{hint}"
                )
        if typed.optimizer.schedule == "inverse_square_root" and not typed.optimizer.warmup_fraction:
            raise UserError(
                f"optimizer.schedule=inverse_square_root: with budget.{given[0]}, the rate falls from the "
                "end of the warm-up on, which is a share of the budget; set optimizer.warmup_fraction"
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
