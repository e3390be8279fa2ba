"""List configs and data sets, or print a config to start your own from.

    bert-jax configs
    bert-jax configs pretrain/tiny
    bert-jax configs pretrain/tiny > mine.py
    bert-jax configs --fields finetune/glue:mrpc

Pass a name, or a copy that you changed, to pretrain, finetune, estimate or bench as `--config=NAME` or
`--config=mine.py`, and `experiments/NAME` to sweep as `--experiment=NAME`. --fields prints all fields, which
`--config.FIELD=VALUE` sets, with their values and descriptions.
"""

from collections.abc import Mapping
from typing import Any

from absl import flags as absl_flags
from etils import epy

from bert_jax import hub
from bert_jax.commands import shared
from bert_jax.settings import config_fields, config_files
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax.settings import pretrain_config
    from bert_jax.tasks import fields as task_fields
    from bert_jax.tasks import registry as task_registry

ARGUMENTS = "[NAME ...]"

_VALUES_WIDTH = 44  # width of the column of names and values


def define_flags(define: Define) -> None:
    define.boolean(
        "fields", "Print the fields of the config with values and descriptions, instead of the file."
    )


def run(flags: absl_flags.FlagValues, args: list[str]) -> None:
    if not args:
        shared.check_unused(flags, ["fields"], "the list of configs")
        names = config_files.names()
        width = max(map(len, names))
        print("\n".join(f"{name:<{width}}  {config_files.summary(name)}" for name in names))
        print("\nData sets by name, for --config.data.train, and corpora, for --input of vocab and data:\n")
        for name, found in hub.DATA_SETS.items():
            rows = f"{found.rows} rows" if found.task else f"{found.rows} million documents"
            license = found.license or "license: see its card"
            print(f"{name:<{width}}  {found.task or 'corpus'}, {found.source}, {rows}, {license}")
    for name in args:
        if flags.fields:
            print(describe_fields(config_files.load(name)))
        else:
            print(config_files.find(config_files.split(name)[0]).read_text(encoding="utf-8"), end="")


def describe_fields(config: Mapping[str, Any]) -> str:
    """Returns the fields that a config uses, a line each with its value and its meaning."""
    others: set[str] = set()
    if "task" in config:
        declared: Mapping[str, config_fields.Field] = task_fields.declared()
        others = {name for name, _ in task_fields.of_other_tasks(task_registry.get(config["task"]))}
    else:
        declared = dict(config_fields.fields(pretrain_config.PretrainConfig()))
    lines = []
    for name, value in config_fields.flatten(config):
        meaning = declared[name].meaning if name in declared else ""
        if name not in others:
            lines.append(f"{f'{name} = {value!r}':<{_VALUES_WIDTH}}  {meaning}".rstrip())
    return "\n".join(lines)
