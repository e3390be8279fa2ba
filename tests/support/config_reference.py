"""Writes the tables of docs/config.md from the declarations of the fields.

    python tests/support/config_reference.py docs/config.md

The fields of some groups stand between a line `<!-- fields: GROUP GROUP ... -->` and a line `<!-- end -->`.
The text around them is kept.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

from bert_jax.io import atomic, files
from bert_jax.settings import config_fields
from bert_jax.settings.config_fields import Field
from bert_jax.settings.finetune_config import FinetuneConfig
from bert_jax.settings.pretrain_config import PretrainConfig
from bert_jax.tasks import fields as task_fields
from bert_jax.tasks import registry

_BLOCK = re.compile(r"(<!-- fields: ([\w\- ]+) -->\n).*?(<!-- end -->\n)", re.DOTALL)

_RESUME = {"free": "yes", "same": "no", "fixed": "never"}


def render(page: str) -> str:
    """Returns the text of docs/config.md with its tables written anew."""
    groups = _groups_of_runs()

    def block(found: re.Match) -> str:
        if found[2] == "tasks":
            return f"{found[1]}{_sections_of_tasks()}{found[3]}"
        rows = (row for group in found[2].split() for row in groups[group])
        return f"{found[1]}{_table(rows)}{found[3]}"

    return _BLOCK.sub(block, page)


def _groups_of_runs() -> dict[str, list[str]]:
    """Returns the rows of groups of fields.

    A field with a dot is in the group of this prefix, except for `data` in fine-tuning. The other fields are
    in "run", or in "pre-training" or "fine-tuning" if only this command has them.
    """
    pretrain, finetune = (dict(config_fields.fields(each())) for each in (PretrainConfig, FinetuneConfig))
    shared = {name.split(".")[0] for name in pretrain if name in finetune and "." in name}
    groups: dict[str, list[str]] = {}
    for name, field in (finetune | pretrain).items():
        prefix, dot, _ = name.partition(".")
        command = "fine-tuning" if name not in pretrain else "" if name in finetune else "pre-training"
        is_prefixed = prefix in shared or (dot and name in pretrain)
        only = f" Only in {command}." if command and prefix in shared else ""
        rows = groups.setdefault(prefix if is_prefixed else command or "run", [])
        rows.append(_row(name, field, only, finetune.get(name)))
    return groups


def _sections_of_tasks() -> str:
    """Returns the tables of the fields that tasks declare, with a heading for each set of tasks."""
    titles = {spec.task: spec.task.title.partition(" (")[0] for spec in registry.tasks().values()}
    sections: dict[str, list[tuple[str, Field]]] = {}
    for name, field in task_fields.fields().items():
        users = [title for task, title in titles.items() if task in field.users]
        others = [title for title in titles.values() if title not in users]
        all_tasks = f"all tasks except {_listed(others)}" if others else "all tasks"
        label = all_tasks if len(others) < len(users) else _listed(users)
        sections.setdefault(label, []).append((name, field))
    tables = {label: [_row(*field) for field in each] for label, each in sections.items() if len(each) > 1}
    single = [_row(*each[0], f" For {label}.") for label, each in sections.items() if len(each) == 1]
    return "\n".join(
        f"### {label.capitalize()}\n\n{_table(rows)}"
        for label, rows in (tables | {"other fields": single}).items()
    )


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _table(rows: Iterable[str]) -> str:
    return "\n".join(["| field | default | on resume | meaning |", "|---|---|---|---|", *rows]) + "\n"


def _row(name: str, field: Field, only: str = "", of_finetuning: Field | None = None) -> str:
    others: dict[str, list[str]] = {}
    if of_finetuning and of_finetuning.default != field.default:
        others[_value(of_finetuning.default)] = ["fine-tuning"]
    for task, spec in registry.tasks().items():
        if name in spec.defaults:
            others.setdefault(_value(spec.defaults[name]), []).append(task)
    default = "; ".join(
        [_value(field.default), *(f"{', '.join(of)} {value}" for value, of in others.items())]
    )
    cells = (f"`{name}`", default, _RESUME[field.resume], field.meaning + only)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    return f"`{value}`" if value and isinstance(value, str) else "" if value in ("", None) else f"{value:g}"


def main(path: str) -> None:
    """Writes the tables of a page."""
    atomic.write_text(path, render(files.read(path).decode()))


if __name__ == "__main__":
    main(*sys.argv[1:])
