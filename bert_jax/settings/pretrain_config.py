"""The configuration of pre-training."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from bert_jax.errors import UserError
from bert_jax.objectives.masking import (
    COUNTS,
    NEVER_CHOSEN,
    MaskingOptions,
    default_max_predictions,
    parse_fractions,
)
from bert_jax.settings import config_fields
from bert_jax.settings.config_fields import Part, Rule, amount, fixed, free, option
from bert_jax.settings.run_config import (
    RULES,
    EvalConfig,
    PretrainDistillationConfig,
    PretrainOptimizerConfig,
    RunConfig,
)


@dataclasses.dataclass(frozen=True)
class Ramp:
    """A number as a function of the step alone: the `values`, and the step from 0 where each starts."""

    starts: tuple[int, ...]
    values: tuple[int, ...]

    @classmethod
    def constant(cls, value: int) -> Ramp:
        """Returns the ramp with one value."""
        return cls((0,), (value,))

    @classmethod
    def parse(cls, field: str, text: str, maximum: int) -> Ramp:
        """Returns the ramp of a text like `0=256, 1000=512`; raises UserError, which names the field."""
        try:
            pairs = [tuple(map(int, part.split("="))) for part in text.split(",")]
            starts, values = zip(*pairs, strict=True)
        except ValueError:
            starts = values = ()
        ascends = all(one < other for one, other in itertools.pairwise(starts))
        if not (starts and starts[0] == 0 and ascends and all(1 <= value <= maximum for value in values)):
            raise UserError(
                f"{field}={text!r}: expected a list such as '0=256, 1000=512', with ascending steps from 0 "
                f"and values from 1 to {maximum:,}"
            )
        return cls(starts, values)

    def at(self, step: int) -> int:
        """Returns the value of a step."""
        return self.values[bisect.bisect_right(self.starts, step) - 1]

    def total_before(self, step: int) -> int:
        """Returns the sum of the values of all steps before a step."""
        ends = (*self.starts[1:], step)
        return sum(
            value * max(min(end, step) - start, 0)
            for start, end, value in zip(self.starts, ends, self.values, strict=True)
        )


@dataclasses.dataclass(frozen=True)
class MaskingConfig(Part):
    """Settings of the tokens to predict in pre-training, and of their replacements."""

    prob: float = option(0.15, "Fraction of the tokens to predict.", above=0, below=1)
    strategy: str = option(
        "token",
        "Unit to mask: `token`, `whole_word`, `span` (1 to 10 words, SpanBERT) or `ngram` (1 to 3 words, "
        "ALBERT).",
        choices=("token", "whole_word", "span", "ngram"),
    )
    max_predictions: int = option(
        0,
        "Maximum tokens to predict in a row. 0: from `prob` and `count`, by default 20 of 128 or 80 of 512.",
        maximum=2**16,
    )
    count: str = option(
        "google",
        "Rule for the number of tokens to predict: `google`, `electra`, `fairseq`, or `bernoulli` (each "
        "token independently).",
        choices=COUNTS,
    )
    replace: str = option(
        "0.8,0.1,0.1",
        "Fractions of the chosen tokens that become [MASK], become a random token, and stay the same.",
    )
    exclude_special: bool = option(False, "Exclude padding, [CLS], [SEP] and [UNK] from the random tokens.")
    never_chosen: str = option(
        "layout",
        "Special tokens that are never predicted: `layout` ([CLS] and [SEP]), `special` (also [UNK] and "
        "[MASK]) or `none`.",
        choices=NEVER_CHOSEN,
    )
    smoothing: float = option(
        0.0,
        "Choose tokens in proportion to (count in the corpus)^-smoothing (`token`). DistilBERT: 0.7.",
        minimum=0,
        maximum=3,  # float32 has to represent the quotients of the weights
    )
    copies: int = option(
        0,
        "Sets of masks per row, used in turn by epoch. 0: new masks at every step; 10: as "
        "google-research/bert.",
    )

    def options(self, length: int, part: str = "masking") -> MaskingOptions:
        """Returns the options for rows of up to `length` tokens; raises UserError, which names `part`."""
        fractions = parse_fractions(self.replace, f"{part}.replace")
        most = self.max_predictions or default_max_predictions(length, self.prob, self.count)
        return MaskingOptions(**self.to_dict() | {"replace": fractions, "max_predictions": most})


@dataclasses.dataclass(frozen=True)
class EvalMaskingConfig(Part):
    """The masks of evaluation, if they differ from the masks of training."""

    prob: float | None = option(
        None, "`masking.prob` in evaluation. None: the same.", type="float", above=0, below=1, optional=True
    )
    replace: str = option("", "`masking.replace` in evaluation. Empty: the same.")
    never_chosen: str = option(
        "", "`masking.never_chosen` in evaluation. Empty: the same.", choices=("", *NEVER_CHOSEN)
    )

    def options(self, masking: MaskingConfig, length: int) -> MaskingOptions:
        """Returns the options for rows of `length` tokens; `masking` provides the fields that are not set."""
        given = {name: value for name, value in self.to_dict().items() if value}
        if self.prob:
            given["max_predictions"] = 0
        return dataclasses.replace(masking, copies=0, **given).options(length, "eval_masking")


@dataclasses.dataclass(frozen=True)
class ReplacedTokensConfig(Part):
    """The objective of ELECTRA and DeBERTa v3, for `objective=replaced_tokens` only."""

    generator_hidden_size: int = fixed(
        0, "Width of the generator. 0: a quarter of `model.hidden_size`.", maximum=2**20
    )
    generator_layers: int = fixed(0, "Layers of the generator. 0: `model.num_hidden_layers`.", maximum=10_000)
    sharing: str = fixed(
        "all",
        "Embeddings that generator and discriminator share: `all` (ELECTRA), `gdes` (DeBERTa v3) or `none`.",
        choices=("all", "gdes", "none"),
    )
    weight: float = amount(50.0, "Weight of the discriminator's loss. The generator's is 1.")


@dataclasses.dataclass(frozen=True)
class PretrainEvalConfig(EvalConfig):
    """Settings of evaluation in pre-training: when, and on how much data."""

    batches: int = free(0, "Batches to evaluate on. 0: all of them.")


@dataclasses.dataclass(frozen=True)
class PretrainDataConfig(Part):
    """The records of pre-training. Directory and vocabulary may move: their digests identify them."""

    dir: str = free("", "Records of `bert-jax data` or of google-research/bert's create_pretraining_data.")
    vocab: str = free("", "Vocabulary file of records from create_pretraining_data.")
    replay: str = free(
        "", "Comma-separated directories of older records to mix into each batch, against forgetting."
    )
    replay_share: float = option(
        0.1, "Fraction of the rows that come from `data.replay`.", minimum=0.001, maximum=0.999
    )

    @property
    def replay_fraction(self) -> Fraction:
        """Returns the fraction of rows that are from `replay`, with a denominator of at most a million."""
        return Fraction(self.replay_share).limit_denominator(10**6) if self.replay else Fraction(0)


@dataclasses.dataclass(frozen=True)
class PretrainConfig(RunConfig):
    """Pre-training; the defaults are the paper's (appendix A.2)."""

    steps: int = option(1_000_000, "Steps of the whole run.", minimum=1)
    batch_ramp: str = option(
        "", "Batch size from given steps on, such as `0=256, 1000=512`; the last is `batch_size`."
    )
    optimizer: PretrainOptimizerConfig = PretrainOptimizerConfig()
    distillation: PretrainDistillationConfig = PretrainDistillationConfig()
    eval: PretrainEvalConfig = PretrainEvalConfig()
    data: PretrainDataConfig = PretrainDataConfig()
    masking: MaskingConfig = MaskingConfig()
    eval_masking: EvalMaskingConfig = EvalMaskingConfig()
    objective: str = fixed(
        "masked_lm",
        "Pre-training objective: `masked_lm`, `causal_lm` (next token) or `replaced_tokens` (ELECTRA, "
        "DeBERTa v3).",
        choices=("masked_lm", "causal_lm", "replaced_tokens"),
    )
    causal_steps: int = option(0, "Steps of causal LM at the start, before masked LM.")
    replaced_tokens: ReplacedTokensConfig = ReplacedTokensConfig()
    resume_from: str = option(
        "",
        "Work directory of another run, or one of its `checkpoints/STEP`, to continue with its step and "
        "optimizer state.",
    )
    requires: str = free("", "Field that a new run of this config must set, such as `init_from`.")

    @property
    def batch_sizes(self) -> Ramp:
        """Returns the rows of the global batch of each step; raises UserError for a wrong `batch_ramp`."""
        if not self.batch_ramp:
            return Ramp.constant(self.batch_size)
        ramp = Ramp.parse("batch_ramp", self.batch_ramp, maximum=2**20)
        if ramp.values[-1] != self.batch_size:
            raise UserError(
                f"batch_ramp={self.batch_ramp!r}: expected batch_size={self.batch_size} as the last value"
            )
        return ramp

    @property
    def left_to_right(self) -> Ramp:
        """Returns 1 at the steps of causal LM before masked LM, and 0 at the others."""
        return Ramp((0, self.causal_steps), (1, 0)) if self.causal_steps else Ramp.constant(0)

    def mask_options(self, length: int) -> tuple[MaskingOptions, MaskingOptions | None]:
        """Returns the masks of training and of evaluation (None if equal) for rows of `length` tokens."""
        differs = self.eval_masking != EvalMaskingConfig()
        evaluation = self.eval_masking.options(self.masking, length) if differs else None
        return self.masking.options(length), evaluation


def _has_random_tokens(config: PretrainConfig) -> bool:
    return any(options.replace[1] for options in config.mask_options(length=128) if options)


_RULES: Sequence[Rule] = (
    *RULES,
    ("data.replay_share", lambda c: c.data.replay, "data.replay"),
    ("masking.exclude_special", _has_random_tokens, "random tokens in masking.replace"),
    *((f"replaced_tokens.{field.name}", lambda c: c.objective == "replaced_tokens",
       "objective=replaced_tokens") for field in dataclasses.fields(ReplacedTokensConfig)),
    ("masking.smoothing", lambda c: c.masking.strategy == "token", "masking.strategy=token"),
    ("causal_steps", lambda c: c.objective == "masked_lm" and c.causal_steps < c.steps,
     "objective=masked_lm and more steps than these"),
    *((f"{part}.{field.name}", lambda c: c.objective != "causal_lm", "an objective other than causal_lm")
      for part, kind in (("masking", MaskingConfig), ("eval_masking", EvalMaskingConfig))
      for field in dataclasses.fields(kind)),
)  # fmt: skip


def pretraining(config: Mapping[str, Any]) -> PretrainConfig:
    """Returns the typed form of a config as `bert_jax.settings.defaults.pretrain` makes it.

    It raises UserError if a field is missing, unknown, not valid, or set although it would be ignored.
    """
    declared = dict(config_fields.fields(PretrainConfig()))
    have = {name for name, _ in config_fields.flatten(config)}
    if different := sorted(have ^ set(declared)):
        raise UserError(
            f"the config misses fields or has unknown ones: {', '.join(different)}; start it from "
            "bert_jax.settings.defaults.pretrain()"
        )
    config_fields.check_values(config, declared)
    typed = config_fields.build(PretrainConfig, config)
    values = dict(config_fields.flatten(config))
    defaults = {name: field.default for name, field in declared.items()}
    config_fields.refuse_unused(values, defaults, config_fields.unused(typed, _RULES))
    typed.batch_sizes  # noqa: B018  # raises an error for a wrong ramp
    return typed
