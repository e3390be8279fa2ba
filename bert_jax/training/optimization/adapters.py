"""Chooses the few parameters that are trained in place of all: LoRA, BitFit, adapters, the head alone."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Collection

from bert_jax import checkpoint, convert
from bert_jax.checkpoint.leaves import flatten, nest
from bert_jax.convert import families
from bert_jax.errors import UserError
from bert_jax.io import comma_lists, files
from bert_jax.models.parameters import parameter_shapes
from bert_jax.objectives.adapters import PartlyFrozen, low_rank_name
from bert_jax.objectives.base import Objective, Params
from bert_jax.objectives.distillation import DISTILLATION
from bert_jax.objectives.low_rank import INITIALIZERS, LowRank
from bert_jax.settings.typed.adapter_config import BOTTLENECKS, AdapterConfig
from bert_jax.settings.typed.run_config import RunConfig

# By `adapter.kind`: a regular expression of the parameters that are trained in addition to the head.
_BOTTLENECK = r"encoder/(.*/)?\w+_adapter/.*"
_KINDS = {
    "lora": "",
    "bitfit": r"encoder/(.*/)?bias",
    "houlsby": rf"{_BOTTLENECK}|encoder/(.*/)?\w*norm/\w+",
    "pfeiffer": _BOTTLENECK,
    "head": "",
}

INIT_FROM = "init_from"  # the value of `adapter.init` for the updates of that checkpoint

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
    shapes = parameter_shapes(objective.init_model_shapes)
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
    if kind != "lora" and all(map(is_frozen, names)):
        raise UserError(
            f"adapter.kind={kind}: nothing would be trained, because the model has no head of its own here; "
            "choose another, such as lora"
        )
    if _KINDS[kind] and not any(re.fullmatch(_KINDS[kind], name) for name in names):
        raise UserError(
            f"adapter.kind={kind}: the encoder has no parameters of this kind, as it has layers and norms "
            "without biases; choose another, such as lora"
        )
    return _low_rank(adapted, config) if kind == "lora" else adapted


def _low_rank(adapted: PartlyFrozen, config: AdapterConfig) -> LowRank:
    if config.dropout:
        raise UserError(
            f"adapter.dropout={config.dropout:g}: the updates are added to the kernels, and have no inputs "
            "of their own to drop; leave it at 0"
        )
    if config.init not in (*INITIALIZERS, INIT_FROM):
        known = ", ".join((*INITIALIZERS, INIT_FROM))
        raise UserError(f"adapter.init={config.init!r}: expected one of {known}")
    targets = comma_lists.names(config.targets, "adapter.targets")
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
        *([] if config.init == INIT_FROM else [config.init]),
    )
    if trained := [name for name in found.targets if not all(found.flags[name].values())]:
        raise UserError(
            f"adapter.train={config.train!r} trains {trained[0]} itself, which has a low-rank update; leave "
            "it out of adapter.train or of adapter.targets"
        )
    return found


def load_initial(
    config: RunConfig,
    objective: Objective,
    abstract_params: Params,
    log: Callable[[str], None],
    *,
    new_groups: Collection[str] = (),
    ignore: str = "",
) -> tuple[Params, checkpoint.Report]:
    """Loads the parameters that a run is initialized with from `init_from`.

    Args:
        config: the configuration of the run.
        objective: the training objective.
        abstract_params: see `convert.load_params`; all parameters of the model.
        log: called with one line of text for each notice.
        new_groups: parameter groups that are always new, because those of the checkpoint may be for other
            labels. A run that goes on training updates takes those of their checkpoint if their shapes fit.
        ignore: a regular expression in addition to `init_ignore`.

    Returns:
        The nested dict of the parameters, and the report.

    Raises:
        UserError: see `convert.load_params`; also a frozen parameter that the checkpoint lacks.
    """
    adapter = config.adapter
    if adapter.init == INIT_FROM:
        params, report = _load_updates(objective, config.init_from, abstract_params, log)
    else:
        body = {name: tree for name, tree in abstract_params.items() if name not in new_groups}
        new = _BOTTLENECK if adapter.kind in BOTTLENECKS else ""
        patterns = "|".join(filter(None, [config.init_ignore, ignore, new]))
        params, report = convert.load_params(config.init_from, body, ignore=patterns, log=log)
    flags = objective.flags if adapter.kind and isinstance(objective, PartlyFrozen) else {}
    if stuck := [name for name in report.new if all(flags.get(name, {"": False}).values())]:
        raise UserError(
            f"{report.source} lacks {stuck[0]}, which would stay at its random start; train it too: "
            f"--config.adapter.train='{stuck[0].split('/')[0]}/.*'"
        )
    given = (*report.loaded, *report.new)
    return params, dataclasses.replace(
        report,
        new=(*report.new, *(name for name in flatten(abstract_params) if name not in given)),
        base=files.absolute(report.base or config.init_from) if adapter.kind == "lora" else "",
    )


def _load_updates(
    objective: Objective, path: str, abstract_params: Params, log: Callable[[str], None]
) -> tuple[Params, checkpoint.Report]:
    """Loads the updates of a checkpoint, and its base without them, for a run that goes on training them.

    Returns:
        The nested dict of the parameters of the base, of those that were trained as a whole, and of A and B;
        and the report.

    Raises:
        UserError: the checkpoint has no updates, or others than the run.
    """
    model = convert.load(path, log=log)
    if (adapter := model.adapter) is None:
        raise UserError(
            f"adapter.init={INIT_FROM}: {path} has no low-rank updates; expected a PEFT folder or a run with "
            "adapter.kind=lora"
        )
    assert isinstance(objective, LowRank)
    ranks, scales = ({getattr(x, name) for x in adapter.updates.values()} for name in ("rank", "scale"))
    same = set(objective.targets) == set(adapter.updates) and {objective.rank} == ranks
    if not (same and all(math.isclose(objective.scale, scale, rel_tol=1e-5) for scale in scales)):
        rank, scale = max(ranks), max(scales)
        targets = ",".join(sorted({name.split("/")[-2] for name in adapter.updates}))
        raise UserError(
            f"adapter.init={INIT_FROM}: the updates of {path} are --config.adapter.rank={rank} "
            f"--config.adapter.alpha={scale * rank:g} --config.adapter.targets={targets}; set these"
        )
    wanted, stored = flatten(abstract_params), {**adapter.frozen, **adapter.params}
    loaded = {name: x for name, x in stored.items() if name in wanted and x.shape == wanted[name].shape}
    factors = {
        low_rank_name(name, factor): getattr(update, factor)
        for name, update in adapter.updates.items()
        for factor in "ab"
    }
    report = checkpoint.Report(
        model.source,
        (*loaded, *factors),
        tuple(name for name in wanted if name not in loaded),
        tuple(name for name in stored if name not in loaded),
        adapter.base,
    )
    return nest(loaded | factors), report


def describe(objective: Objective) -> str:
    """Returns one line about the numbers of trained and frozen parameters; "" if all are trained."""
    if objective.frozen() is None:
        return ""
    trained, model = (
        sum(math.prod(shape) for shape in parameter_shapes(boxed).values())
        for boxed in (objective.init_shapes, objective.init_model_shapes)
    )
    if trained >= model:  # only a teacher is frozen
        return ""
    return f"{trained:,} parameters are trained, {trained / model:.2%} of the {model:,} of the model"
