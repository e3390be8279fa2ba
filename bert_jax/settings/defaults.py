"""Default run configurations as ml_collections, with every field. The files in configs/ start from these."""

from __future__ import annotations

from typing import Any

import ml_collections

from bert_jax.errors import UserError
from bert_jax.models import sizes
from bert_jax.settings.finetune_config import FinetuneConfig
from bert_jax.settings.pretrain_config import PretrainConfig


def model(size: str, **overrides: Any) -> ml_collections.ConfigDict:
    """Returns the fields of EncoderConfig for a named size; the vocabulary sets `vocab_size` if that is 0."""
    fields = sizes.named(size, **overrides).to_dict()
    return ml_collections.ConfigDict(fields | {"vocab_size": overrides.get("vocab_size", 0)})


def pretrain(size: str = "base", **overrides: Any) -> ml_collections.ConfigDict:
    """Returns the pre-training configuration of the paper (appendix A.2), with the arguments of `model`."""
    return ml_collections.ConfigDict(PretrainConfig().to_dict() | {"model": model(size, **overrides)})


def paper_phase(config: ml_collections.ConfigDict, phase: str) -> ml_collections.ConfigDict:
    """Changes a configuration to "phase1", the first 90% of the steps, to "phase2", which resumes, or not."""
    if phase not in ("", "phase1", "phase2"):
        raise UserError(f"phase {phase!r}: expected phase1, of 128 tokens, phase2, of 512, or none")
    if phase == "phase1":
        config.optimizer.decay_steps = config.steps
        config.steps = config.steps * 9 // 10
    if phase == "phase2":
        config.requires = "resume_from"
    return config


def finetune(size: str = "base", **overrides: Any) -> ml_collections.ConfigDict:
    """Returns the fine-tuning configuration of the paper (appendix A.3), without the fields of tasks."""
    return ml_collections.ConfigDict(FinetuneConfig().to_dict() | {"model": model(size, **overrides)})
