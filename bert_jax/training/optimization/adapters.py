"""Chooses the few parameters that are trained in place of all: LoRA, BitFit, or the head alone."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

import jax

from bert_jax.convert import families
from bert_jax.errors import UserError
from bert_jax.models.parameters import parameter_shapes
from bert_jax.objectives.adapters import PartlyFrozen
from bert_jax.objectives.base import Objective
from bert_jax.objectives.distillation import DISTILLATION
from bert_jax.objectives.low_rank import INITIALIZERS, LowRank
from bert_jax.settings.run_config import AdapterConfig

# By `adapter.kind`: a regular expression of the parameters that are trained in addition to the head.
_KINDS = {"lora": "", "bitfit": r"encoder/(.*/)?bias", "head": ""}

_TARGETS = ("query", "key", "value", "attention_output", "intermediate", "output")


def adapt(objective: Objective, config: AdapterConfig, head: Collection[str] = ()) -> Objective:
    """Returns the objective with all parameters frozen that an adapter does not train.

    Args:
        objective: a training objective.
        config: the adapter; one without a kind returns the objective.
        head: the parameter groups of the head that are always trained, such as "classifier". If there are
            none, as in pre-training, the head is frozen too, except by the kind "head".

    Raises:
        UserError: a value of the configuration is not valid for this objective.
    """
    kind = config.kind
    if not kind:
        return objective
    if kind not in _KINDS:
        raise UserError(f"adapter.kind={kind!r}: expected one of {', '.join(_KINDS)}")
    shapes = parameter_shapes(jax.eval_shape(objective.init_model, jax.random.key(0)))
    groups = dict.fromkeys(name.split("/")[0] for name in shapes)
    if kind == "head" and not head:
        head = [group for group in groups if group not in ("encoder", "pooler")]
    # What only the comparison with a teacher has is new and thus trained.
    groups_trained = (*head, DISTILLATION)
    patterns = [_KINDS[kind], *(f"{re.escape(group)}/.*" for group in groups_trained), config.train]
    trained = [re.compile(pattern) for pattern in patterns if pattern]

    def is_frozen(name: str) -> bool:
        return not any(pattern.fullmatch(name) for pattern in trained)

    adapted = PartlyFrozen(objective, is_frozen)
    names = [name for flags in adapted.flags.values() for name in flags]
    if config.train and not any(re.fullmatch(config.train, name) for name in names):
        raise UserError(f"adapter.train={config.train!r} matches none; names are like {', '.join(names[:2])}")
    return _low_rank(adapted, config) if kind == "lora" else adapted


def _low_rank(adapted: PartlyFrozen, config: AdapterConfig) -> LowRank:
    if config.dropout:
        raise UserError(
            f"adapter.dropout={config.dropout:g}: the updates are added to the kernels, and have no inputs "
            "of their own to drop; leave it at 0"
        )
    if config.init not in INITIALIZERS:
        raise UserError(f"adapter.init={config.init!r}: expected one of {', '.join(INITIALIZERS)}")
    targets = [name.strip() for name in config.targets.split(",") if name.strip()]
    if adapted.config is not None and not targets:
        targets = list(families.of(adapted.config).low_rank_targets)
    if wrong := [name for name in targets if name not in _TARGETS]:
        raise UserError(
            f"adapter.targets={config.targets!r}: {wrong[0]} is none of the dense layers "
            f"{', '.join(_TARGETS)}"
        )
    pattern = re.compile(rf"encoder/layers/(.*/)?({'|'.join(targets)})/kernel")
    scale = config.alpha / (math.sqrt(config.rank) if config.rslora else config.rank)
    found = LowRank(
        adapted.objective,
        adapted.is_frozen,
        lambda name: pattern.fullmatch(name) is not None,
        config.rank,
        scale,
        config.init,
    )
    if trained := [name for name in found.targets if not all(found.flags[name].values())]:
        raise UserError(
            f"adapter.train={config.train!r} trains {trained[0]} itself, which has a low-rank update; leave "
            "it out of adapter.train or of adapter.targets"
        )
    return found


def describe(objective: Objective) -> str:
    """Returns one line about the numbers of trained and frozen parameters; "" if all are trained."""
    if objective.frozen() is None:
        return ""
    trained, model = (
        sum(math.prod(shape) for shape in parameter_shapes(jax.eval_shape(init, jax.random.key(0))).values())
        for init in (objective.init, objective.init_model)
    )
    if trained >= model:  # only a teacher is frozen
        return ""
    return f"{trained:,} parameters are trained, {trained / model:.2%} of the {model:,} of the model"
