"""docs/config.md names every field that there is, and no other."""

import re
from pathlib import Path

import ml_collections
import pytest

from bert_jax import tasks
from bert_jax.settings import defaults
from bert_jax.tasks.fields import classes
from bert_jax.tasks.fields import fields as task_fields

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "config.md").read_text(encoding="utf-8")


def fields(config, prefix=""):
    for name, value in config.items():
        if isinstance(value, ml_collections.ConfigDict):
            yield from fields(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def documented(*titles):
    """The fields in the first column of the tables under these headings."""
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
    rows = [line.split("|")[1] for title in titles for line in sections[title].splitlines() if "|" in line]
    return sorted(name for row in rows for name in re.findall(r"`([\w.]+)`", row))


@pytest.mark.parametrize(
    "config, titles",
    [
        (defaults.pretrain(), ["Pre-training"]),
        (tasks.default_config(), ["Fine-tuning", "Question answering"]),
    ],
    ids=["pretrain", "finetune"],
)
def test_the_page_has_every_field_and_no_other(config, titles):
    assert documented("Both commands", *titles) == sorted(fields(config))


def test_the_page_names_the_tasks_that_use_a_field():
    """A field that not every task uses says so in its row, by "only", "all but" or "has no"."""
    rows = {name: line for line in PAGE.splitlines() if line.startswith("| `")
            for name in re.findall(r"`([\w.]+)`", line.split("|")[1])}  # fmt: skip
    questions = PAGE[PAGE.index("## Question answering") :]
    for name, field in task_fields().items():
        everywhere = len(field.users) == len(classes())
        says = re.search(r"\bonly\b|\ball but\b", rows[name]) or rows[name] in questions
        of_tagging = name == "data.text_b" and "tagging has no `data.text_b`" in rows[name]
        assert bool(says or of_tagging) != everywhere, name
