"""Infers the task and the columns of a training file for a run without a config."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax import hub
from bert_jax.errors import UserError
from bert_jax.io import checks, compression
from bert_jax.io.wording import counted
from bert_jax.tasks import table
from bert_jax.tasks.question_answering.question_files import squad_items
from bert_jax.tasks.tagging import WORDS

# Usual names of columns.
PAIRS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"),
    ("question", "sentence"),
)  # fmt: skip
TEXTS = ("text", "sentence", "review", "content")
LABELS = ("label", "labels", "stars", "score", "tags", "ner_tags")
_QUESTIONS = {"question", "context", "answers"}

# Integers are classes if there are at most this many, or if each has this many rows on average.
_FEW = 20

_CONFIGS = {  # configs for the tasks of data sets with short names, except GLUE
    "squad": "finetune/squad:v1", "squad2": "finetune/squad:v2", "swag": "finetune/multiple_choice:swag",
    "conll": "finetune/conll", "xnli": "finetune/xnli", "classification": "finetune/classification",
}  # fmt: skip


class Inferred(NamedTuple):
    """The inferred task of a training file. `str` returns one line with the equivalent flags."""

    what: str  # the task in words
    config: str
    fields: Mapping[str, str]  # {field: value} for values that differ from the config

    def __str__(self) -> str:
        flags = [f"--config={self.config}", *(f"--config.{name}={one}" for name, one in self.fields.items())]
        return f"task: {self.what} ({' '.join(flags)})"


def infer(source: str, texts: Sequence[str] = (), label: str = "") -> Inferred:
    """Returns the task of a training file, which is named as in `data.train`.

    A label column of strings or of few distinct integers means classification; other numbers mean regression.
    A list of words with a list of tags, or CoNLL columns, mean tagging. Rows with `question`, `context` and
    `answers`, or SQuAD's JSON, mean question answering. Columns are found by their usual names unless given.
    """
    given = bool(texts or label)
    found = hub.data_set(source)
    if found and found.task and not given:
        config = _CONFIGS.get(found.task, f"finetune/glue:{found.task}")
        return Inferred(f"{found.task} of {found.source}", config, {})
    paths = table.parts(source)
    for path in paths:
        checks.check_input(path)
    name = compression.strip_suffix(paths[0]).lower()
    if not name.endswith(tuple(table.FORMATS)):
        return Inferred("tags of words, in CoNLL columns", "finetune/tagging", _columns(texts, label))
    if name.endswith(".json") and not given:
        with contextlib.suppress(UserError):  # it has one object on each line
            return _questions(row for _, row in squad_items(paths[0]))
    first = next(_rows(paths), None)
    if first is None:
        raise UserError(f"{source} has no rows")
    names = list(first)
    if names and set(names) >= _QUESTIONS and not given:
        return _questions(_rows(paths, [name for name in names if name in ("answers", "is_impossible")]))
    if not texts:
        pairs = [pair for pair in PAIRS if set(pair) <= set(names)]
        singles = [(name,) for name in (*TEXTS, *WORDS) if name in names]
        texts = _one_of(source, "--text=COLUMN, or --text=A,B for pairs", pairs or singles, names)
    is_list = isinstance(first.get(texts[0]), list)
    if not label:
        labels = [name for name in LABELS if name in names and (not is_list or isinstance(first[name], list))]
        label = _one_of(source, "--label=COLUMN", labels, names)
    places = table.places(source, {"--text": texts, "--label": [label]}, names)
    columns = _columns(texts, label)
    if is_list:
        return Inferred("tags of words", "finetune/tagging", columns)
    values = [row.get(names[places[label]]) for row in _rows(paths, [names[places[label]]])]
    task = "finetune/classification"
    if any(isinstance(value, list) for value in values):
        return Inferred("several labels per text", task, {"task": "multilabel", **columns})
    labels = [text for value in values if value is not None and (text := str(value).strip())]
    if _are_numbers(labels):
        return Inferred("regression", task, {"task": "regression", **columns})
    of = " of pairs" if len(texts) == 2 else ""
    return Inferred(f"classification{of}, {counted(len(set(labels)), 'label')}", task, columns)


def _rows(paths: Sequence[str], columns: Sequence[str] = ()) -> Iterator[Mapping[str, Any]]:
    """Yields the valid rows of tables; the task reports malformed rows when it reads them.

    The rows of a TSV file end early if its quotes are text, because `data.quoting` is not known here.
    """
    found = False
    for path in paths:
        kind = table.detect_format(table.FORMATS, path)
        try:
            for _, row in table.records(path, kind, columns):
                if not isinstance(row, table.Malformed):
                    found = True
                    yield row
        except UserError:
            if kind != "tsv" or not found:
                raise


def _one_of(source: str, flag: str, found: Sequence[Any], names: Sequence[str]) -> Any:
    if len(found) != 1:
        raise UserError(f"{source}: expected {flag}, from the columns {', '.join(map(repr, names[:20]))}")
    return found[0]


def _columns(texts: Sequence[str], label: str) -> dict[str, str]:
    given = zip(("text_a", "text_b", "label"), (*texts, *[""] * (2 - len(texts)), label), strict=True)
    return {f"data.{field}": column for field, column in given if column}


def _questions(rows: Iterable[Mapping[str, Any]]) -> Inferred:
    def is_answered(row: Mapping[str, Any]) -> bool:
        answers = row.get("answers")
        return bool(answers.get("text") if isinstance(answers, dict) else answers)

    if all(is_answered(row) and row.get("is_impossible") is not True for row in rows):
        return Inferred("answers in a text", "finetune/squad:v1", {})
    return Inferred("answers in a text, or none", "finetune/squad:v2", {})


def _are_numbers(labels: Sequence[str]) -> bool:
    """Returns whether labels are regression targets: not all integers, or too many for classes."""
    try:
        numbers = [number for label in labels if not math.isnan(number := float(label))]
    except ValueError:
        return False
    whole = all(number.is_integer() for number in numbers)
    return not whole or len(set(numbers)) > max(_FEW, len(numbers) / _FEW)
