"""What pre-training learns, by its name in the configuration."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

from bert_jax.convert import families
from bert_jax.errors import UserError
from bert_jax.models.config import EncoderConfig
from bert_jax.objectives.adapters import encoder_config
from bert_jax.objectives.base import Objective
from bert_jax.objectives.causal_lm import CausalLM, CausalThenMasked
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.replaced_tokens import ReplacedTokens, generator_config
from bert_jax.runs import distillation
from bert_jax.settings.typed.pretrain_config import PretrainConfig
from bert_jax.tokenization import Tokenizer
from bert_jax.training.optimization.adapters import adapt
from bert_jax.training.optimization.param_groups import freeze

_TEACHER_HEAD = "masked_lm"  # a key of `convert.HEADS`


def make(config: PretrainConfig, task: MaskedLM) -> Objective:
    """Returns the objective of a configuration.

    Args:
        config: the configuration of a pre-training run.
        task: masked LM for the configured model, with the masks and the vocabulary of the run.

    Raises:
        UserError: the name is unknown, or the family has no such head.
    """
    if config.objective not in _OBJECTIVES:
        raise UserError(f"objective={config.objective!r} is unknown; choose one of {', '.join(_OBJECTIVES)}")
    return _OBJECTIVES[config.objective](config, task)


def taught(
    config: PretrainConfig,
    task: MaskedLM,
    *,
    max_seq_length: int,
    tokenizer: Tokenizer | None = None,
    workdir: os.PathLike | str = "",
) -> Objective:
    """Returns the objective of a configuration with its teacher, if it has one; see `distillation.distill`.

    Args:
        config: the configuration of a pre-training run.
        task: see `make`.
        max_seq_length: the number of tokens of the longest row.
        tokenizer: the tokenizer of the records; None if there are none.
        workdir: the work directory; "" if there is none.

    Raises:
        UserError: the objective or its teacher is not valid.
    """
    return distillation.distill(
        make(config, task),
        config,
        _TEACHER_HEAD,
        tokenizer=tokenizer,
        max_seq_length=max_seq_length,
        workdir=workdir,
    )


def read_teacher(
    learned: Objective, config: PretrainConfig, workdir: os.PathLike | str, log: Callable[[str], None]
) -> Objective:
    """Returns a result of `taught` with the parameters of its teacher; see `distillation.read_teacher`."""
    return distillation.read_teacher(learned, config, _TEACHER_HEAD, workdir, log)


def trained(config: PretrainConfig, learned: Objective) -> Objective:
    """Returns the training objective: a result of `taught` with what the optimizer and an adapter freeze.

    Raises:
        UserError: a regular expression matches no parameter, or the adapter does not fit the model.
    """
    return adapt(freeze(learned, config.optimizer.freeze), config.adapter)


def encoders(objective: Objective) -> list[EncoderConfig]:
    """Returns the configurations of the encoders that a step of an objective computes."""
    parts = [objective, objective.generator] if isinstance(objective, ReplacedTokens) else [objective]
    return [config for part in parts if (config := encoder_config(part)) is not None]


def _replaced_tokens(config: PretrainConfig, task: MaskedLM) -> ReplacedTokens:
    _refuse_causal(task)
    options, family = config.replaced_tokens, families.of(task.config)
    if "replaced_tokens" not in family.heads:
        known = [name for name, one in families.FAMILIES.items() if "replaced_tokens" in one.heads]
        raise UserError(
            f"objective=replaced_tokens: a {family.name} has no such head; set "
            f"--config.model.model_type={known[0]}"
        )
    generator = dataclasses.replace(
        task,
        config=generator_config(task.config, options.generator_hidden_size),
        next_sentence_head=False,
    )
    return ReplacedTokens(
        task.config, generator, options.variant, options.weight, options.temperature, options.disallow_correct
    )


def _refuse_causal(task: MaskedLM) -> None:
    if task.config.causal:
        raise UserError(
            "model.causal=true: masked tokens are predicted from both sides; set "
            "--config.model.causal=false, or --config.objective=causal_lm"
        )


def _masked_lm(config: PretrainConfig, task: MaskedLM) -> MaskedLM | CausalThenMasked:
    _refuse_causal(task)
    given = f"causal_steps={config.causal_steps}"
    if not config.causal_steps:
        return task
    if config.distillation.teacher:
        raise UserError(
            f"{given} and distillation.teacher={config.distillation.teacher}: only masked LM "
            "has a teacher; set causal_steps=0, or no teacher"
        )
    return CausalThenMasked(task)


def _causal_lm(config: PretrainConfig, task: MaskedLM) -> CausalLM:
    if not task.config.causal:
        raise UserError("objective=causal_lm needs left-to-right attention; set --config.model.causal=true")
    return CausalLM(task.config, task.token_types, task.head)


_OBJECTIVES: dict[str, Callable[[PretrainConfig, MaskedLM], Objective]] = {
    "masked_lm": _masked_lm,
    "causal_lm": _causal_lm,
    "replaced_tokens": _replaced_tokens,
}
