"""Knowledge distillation: `Distillation` wraps an objective, and `pairs` says what can be compared."""

from bert_jax.objectives.distillation.objective import DISTILLATION, TEACHER, Distillation
from bert_jax.objectives.distillation.pairs import (
    PAIRS,
    Models,
    PairOptions,
    check,
    parse_layers,
    parse_scales,
)

__all__ = [
    "DISTILLATION",
    "PAIRS",
    "TEACHER",
    "Distillation",
    "Models",
    "PairOptions",
    "check",
    "parse_layers",
    "parse_scales",
]
