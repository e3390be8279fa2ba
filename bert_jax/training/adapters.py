"""Parameter-efficient training of a few parameters instead of all: LoRA, BitFit, adapters, head only."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection

from bert_jax import checkpoint, convert
from bert_jax.checkpoint.leaves import flatten
from bert_jax.convert import families
from bert_jax.errors import UserError
from bert_jax.io import comma_lists, files
from bert_jax.io.wording import some
from bert_jax.models.parameters import parameter_shapes
from bert_jax.objectives.adapters import LowRank, PartlyFrozen
from bert_jax.objectives.base import Objective, Params
from bert_jax.objectives.distillation import DISTILLATION
from bert_jax.settings.run_config import BOTTLENECKS, AdapterConfig, RunConfig
from bert_jax.workdir.run_directory import REPORT_FILE, WorkDir

# By `adapter.kind`: a regular expression for the parameters that are trained in addition to the head.
_BOTTLENECK = r"encoder/(.*/)?\w+_adapter/.*"
_KINDS = {
    "lora": "",
    "bitfit": r"encoder/(.*/)?bias",
    "houlsby": rf"{_BOTTLENECK}|encoder/(.*/)?\w*norm/\w+",
    "pfeiffer": _BOTTLENECK,
    "head": "",
}

_TARGETS = ("query", "key", "value", "attention_output", "intermediate", "output")


def adapt(objective: Objective, config: AdapterConfig, head: Collection[str] = ()) -> Objective:
    """Returns the objective with all parameters frozen that an adapter, if there is one, does not train.

    The parameter groups in `head`, such as "classifier", are always trained. If there are none, as in
    pre-training, the head is also frozen, unless the kind is "head". It raises UserError if a value of the
    configuration is not valid for this objective.
    """
    kind = config.kind
    if not kind:
        return objective
    shapes = parameter_shapes(objective.init_model_shapes)
    groups = dict.fromkeys(name.split("/")[0] for name in shapes)
    if kind == "head" and not head:
        head = [group for group in groups if group not in ("encoder", "pooler")]
    # Parameters that only distillation uses are new, and therefore trained.
    heads = "|".join(f"{re.escape(group)}/.*" for group in (*head, DISTILLATION))
    trained = [re.compile(pattern) for pattern in (_KINDS[kind], heads, config.train) if pattern]

    def is_frozen(name: str) -> bool:
        return not any(pattern.fullmatch(name) for pattern in trained)

    adapted = PartlyFrozen(objective, is_frozen)
    names = [name for flags in adapted.flags.values() for name in flags]
    for field, pattern in (("kind", heads if kind == "head" else _KINDS[kind]), ("train", config.train)):
        if pattern and not any(re.fullmatch(pattern, name) for name in names):
            raise UserError(
                f"adapter.{field}={getattr(config, field)} matches none of the parameters {some(names)}"
            )
    return _low_rank(adapted, config) if kind == "lora" else adapted


def _low_rank(adapted: PartlyFrozen, config: AdapterConfig) -> LowRank:
    targets = comma_lists.names(config.targets)
    if adapted.config is not None and not targets:
        targets = list(families.of(adapted.config).low_rank_targets)
    if wrong := [name for name in targets if name not in _TARGETS]:
        raise UserError(
            f"adapter.targets={config.targets!r}: {wrong[0]} is unknown; expected names from "
            f"{', '.join(_TARGETS)}"
        )
    pattern = re.compile(rf"encoder/layers/(.*/)?({'|'.join(targets)})/kernel")
    found = LowRank(
        adapted.objective,
        adapted.is_frozen,
        lambda name: pattern.fullmatch(name) is not None,
        config.rank,
        config.alpha / config.rank,
    )
    if trained := [name for name in found.targets if not all(found.flags[name].values())]:
        raise UserError(f"adapter.train={config.train!r}: {trained[0]} already has a low-rank update")
    return found


def load_initial(
    config: RunConfig,
    objective: Objective,
    workdir: WorkDir,
    log: Callable[[str], None],
    abstract_params: Params,
    *,
    new_groups: Collection[str] = (),
    ignore: str = "",
) -> Params:
    """Returns the nested dict of the parameters that a run takes from `init_from`, and writes a report.

    Groups in `new_groups` are always newly initialized, because the checkpoint's groups may be for other
    labels. `ignore` is a regular expression in addition to `init_ignore`. It raises UserError as
    `convert.load_params` does, and for a frozen parameter that the checkpoint lacks.
    """
    adapter = config.adapter
    body = {name: tree for name, tree in abstract_params.items() if name not in new_groups}
    new = _BOTTLENECK if adapter.kind in BOTTLENECKS else ""
    patterns = "|".join(filter(None, [config.init_ignore, ignore, new]))
    params, report = convert.load_params(config.init_from, body, ignore=patterns, log=log)
    flags = objective.flags if adapter.kind and isinstance(objective, PartlyFrozen) else {}
    if stuck := [name for name in report.new if all(flags.get(name, {"": False}).values())]:
        raise UserError(
            f"{report.source} lacks {stuck[0]}, which adapter.kind={adapter.kind} does not train; train it: "
            f"--config.adapter.train='{stuck[0].split('/')[0]}/.*'"
        )
    given = (*report.loaded, *report.new)
    report = dataclasses.replace(
        report,
        new=(*report.new, *(name for name in flatten(abstract_params) if name not in given)),
        base=files.absolute(report.base or config.init_from) if adapter.kind == "lora" else "",
    )
    write_report(report, workdir, log)
    return params


def write_report(report: checkpoint.Report, workdir: WorkDir, log: Callable[[str], None]) -> None:
    """Logs which parameters a new run has loaded, and writes them to the work directory."""
    log(str(report))
    workdir.write_json(REPORT_FILE, dataclasses.asdict(report))
