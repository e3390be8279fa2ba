"""Writes the tables of docs/config.md from the declarations of the fields.

    python tests/support/config_reference.py docs/config.md

A table stands between a line `<!-- fields: NAME -->` and a line `<!-- end -->`. The text around the tables is
kept.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from bert_jax.io import atomic, files
from bert_jax.settings import config_fields
from bert_jax.settings.config_fields import Field
from bert_jax.settings.finetune_config import FinetuneConfig
from bert_jax.settings.pretrain_config import PretrainConfig
from bert_jax.tasks import fields as task_fields
from bert_jax.tasks import registry

_TABLE = re.compile(r"(<!-- fields: ([\w-]+) -->\n).*?(<!-- end -->\n)", re.DOTALL)

_RESUME = {"free": "yes", "same": "no", "fixed": "never"}


def render(page: str) -> str:
    """Returns the text of docs/config.md with its tables written anew."""
    tables = _tables()
    return _TABLE.sub(lambda found: f"{found[1]}{tables[found[2]]}{found[3]}", page)


def _tables() -> dict[str, str]:
    """Returns the tables by their names."""
    pretrain = dict(config_fields.fields(PretrainConfig()))
    finetune, of_tasks = dict(config_fields.fields(FinetuneConfig())), task_fields.fields()
    shared = {name: field for name, field in pretrain.items() if name in finetune}
    return {
        "both": _table(shared, finetune),
        "pre-training": _table({name: field for name, field in pretrain.items() if name not in shared}),
        "fine-tuning": _table({name: field for name, field in finetune.items() if name not in shared}),
        "tasks": _table(of_tasks),
    }


def _table(fields: Mapping[str, Field], of_finetuning: Mapping[str, Field] | None = None) -> str:
    """Returns a table of fields."""
    lines = ["| field | default | on resume | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        default = _value(field.default)
        if of_finetuning and of_finetuning[name].default != field.default:
            default += f"; fine-tuning {_value(of_finetuning[name].default)}"
        for task, spec in registry.tasks().items():
            if name in spec.defaults:
                default += f"; {task} {_value(spec.defaults[name])}"
        cells = (f"`{name}`", default, _RESUME[field.resume], field.meaning + _users(field))
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    return f"`{value}`" if value and isinstance(value, str) else "" if value in ("", None) else f"{value:g}"


def _users(field: Field) -> str:
    """Returns the names of the tasks that use a field, if not all of them do."""
    classes = {spec.task for spec in registry.tasks().values()}
    users = getattr(field, "users", classes)
    if len(users) == len(classes):
        return ""
    return f"; only {', '.join(task.title for task in users)}"


def main(path: str) -> None:
    """Writes the tables of a page."""
    atomic.write_text(path, render(files.read(path).decode()))


if __name__ == "__main__":
    main(*sys.argv[1:])
