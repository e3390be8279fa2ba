"""The fields of a fine-tuning configuration: their defaults, and the tasks that use each of them.

A configuration has the fields of every task, so that --config.task=NAME works with any config file. A field
that is set although the task does not use it is refused, rather than ignored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ml_collections

from bert_jax.errors import UserError
from bert_jax.settings import config_fields, config_files, defaults
from bert_jax.tasks import registry
from bert_jax.tasks.question_answering import question_files
from bert_jax.tasks.readers import sources, tables
from bert_jax.tasks.spec import TaskSpec
from bert_jax.tasks.tagging import word_files

# Kinds of tasks, as in TaskSpec.kind.
_CLASSES = ("classification",)
_TEXTS = (*_CLASSES, "regression", "multilabel")
_CHOICES = ("multiple_choice",)
_TABLES = (*_TEXTS, *_CHOICES)
_QUESTIONS = ("question_answering",)
_TAGS = ("tagging",)
_ALL = (*_TABLES, *_QUESTIONS, *_TAGS)


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of the configuration that fine-tuning adds to `defaults.finetune`.

    Attributes:
        default: its value unless a config file or a flag sets it; `TASK_DEFAULTS` has exceptions.
        kinds: of the tasks that use it.
    """

    default: Any
    kinds: tuple[str, ...] = _ALL


FIELDS = {
    "task": Field("classification"),
    "metrics": Field(""),  # names with commas between; the first selects the best checkpoint
    "max_length": Field(128),  # tokens, with [CLS] and [SEP]
    # Tokens from one window of a longer text to the next; 0: it is cut.
    "doc_stride": Field(0, (*_TABLES, *_QUESTIONS)),
    "pack": Field(True, _TEXTS),  # random batches, several examples a row, where [CLS] alone is read
    "group_by_length": Field(True),  # otherwise, batches of similar lengths
    "class_weights": Field("", _CLASSES),  # of the loss: "balanced", or LABEL=WEIGHT with commas between
    "head": Field("linear", _TAGS),  # or "bilstm", with a frozen encoder
    "head_size": Field(768, _TAGS),  # of each direction of the BiLSTM
    "frozen": Field(False, _TAGS),  # train the head alone
    "feature_layers": Field("", _TAGS),  # that the head of a frozen encoder reads; the last four
    "document_context": Field(False, _TAGS),  # rows are filled up with the sentences around
    "v2": Field(False, _QUESTIONS),  # questions may have no answer
    "max_query_length": Field(64, _QUESTIONS),  # tokens
    "n_best": Field(20, _QUESTIONS),
    "max_answer_length": Field(30, _QUESTIONS),  # tokens
    # No answer is predicted where it is likelier by more than this.
    "null_score_diff_threshold": Field(0.0, _QUESTIONS),
    "data_dir": Field(""),  # of the tasks that know the names of their files: the folder that has them
    "data.train": Field(""),
    "data.eval": Field(""),
    "data.text_a": Field(""),
    "data.text_b": Field("", (*_TABLES, *_QUESTIONS)),
    "data.label": Field(""),
    "data.id": Field(""),
    "data.choices": Field("", _CHOICES),
    "data.answer_start": Field("", _QUESTIONS),  # of JSON-lines files
    "data.header": Field(True, _TABLES),
    "data.format": Field("auto"),
    "data.quoting": Field("auto", _TABLES),
    "vocab": Field(""),  # with no init_from; otherwise the checkpoint's own
    "from_scratch": Field(False),  # init_from's architecture and vocabulary, but none of its weights
}

# What kinds of tasks, and then tasks, have instead of the defaults above. Of questions, see
# google-research/bert; of multiple choice, section 4.4 of the paper.
TASK_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "question_answering": {"max_length": 384, "doc_stride": 128},
    "squad2": {"v2": True, "batch_size": 48, "epochs": 2.0},
    "multiple_choice": {"batch_size": 16, "optimizer.learning_rate": 2e-5},
    "conll": {"epochs": 4.0},
}

# How messages call the kinds of tasks.
_NAMES = {
    "classification": "classification",
    "regression": "regression",
    "multilabel": "multilabel",
    "multiple_choice": "multiple choice",
    "question_answering": "questions (squad, squad2)",
    "tagging": "tagging (tagging, conll)",
}


def default_config(size: str = "base", task: str = "classification") -> ml_collections.ConfigDict:
    """Returns the configuration of a task, with every field at its default.

    Args:
        size: of the model where there is no `init_from`; see `bert_jax.models.config.named`.
        task: a name of `registry.TASKS`.
    """
    spec = registry.get(task)
    config = defaults.finetune(size)
    config.data = ml_collections.ConfigDict()
    for name, field in FIELDS.items():
        assign(config, name, field.default)
    for changes in (TASK_DEFAULTS.get(spec.kind, {}), TASK_DEFAULTS.get(spec.name, {})):
        for name, value in changes.items():
            assign(config, name, value)
    config.task = spec.name
    return config


def complete(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Returns a copy of a configuration, with the defaults of fields that it lacks.

    A work directory of an older version lacks those that came later.
    """
    config = ml_collections.ConfigDict(config.to_dict())
    default = default_config(task=config.task)
    given = dict(config_files.fields(config))
    for name, value in config_files.fields(default):
        if name not in given:
            assign(config, name, value)
    return config


def check(config: ml_collections.ConfigDict) -> None:
    """Refuses every field that would be ignored.

    Args:
        config: as `complete` returns it.

    Raises:
        UserError: naming a field that no fine-tuning has, or that is set although this task, or the run as it
            is configured, does not use it.
    """
    spec = registry.get(config.task)
    known = dict(config_files.fields(default_config(task=spec.name)))
    for name, value in config_files.fields(config):
        if name not in known:
            raise UserError(f"{name}={value}: {_no_such_field(name, known)}")
        field = FIELDS.get(name)
        if field and spec.kind not in field.kinds and value != field.default:
            users = ", ".join(_NAMES[kind] for kind in field.kinds)
            raise UserError(
                f"{name}={value}: the task {spec.name} does not use it, only {users}; leave it at "
                f"{field.default!r}"
            )
    if spec.name == "squad2" and not config.v2:
        raise UserError(
            "v2=False: questions of the task squad2 may have no answer; set --config.v2=true, as "
            "--config=finetune/squad:v2 does, or --config.task=squad"
        )
    for name, reason in _unused(config, spec):
        value = lookup(config, name)
        if value != known[name]:
            raise UserError(f"{name}={value}: {reason}; leave it at {known[name]!r}")


def _unused(config: ml_collections.ConfigDict, spec: TaskSpec) -> Iterator[tuple[str, str]]:
    """Yields (a field that the task uses, but not as the run is configured; why not)."""
    data = config.data
    if not config.init_from:
        yield "init_ignore", "there is no init_from"
    elif config.from_scratch:
        yield "init_ignore", "from_scratch takes no parameters of init_from"
    if not config.spikes.factor:
        for name in ("spikes.window", "spikes.metric"):
            yield name, "spikes.factor=0 is no rule"
    if config.optimizer.warmup_steps:
        yield "warmup_fraction", "optimizer.warmup_steps is given too"
    if not spec.file_name:
        yield "data_dir", f"the task {spec.name} does not know the names of its files, give data.train"
    if data.train and not data.eval and not (spec.file_name and config.data_dir):
        for name in ("early_stopping", "eval.every"):
            yield name, "there is nothing to evaluate on, give data.eval"
    if not config.v2:
        yield "null_score_diff_threshold", "every question has an answer unless v2=true"
    if config.head != "bilstm":
        yield "head_size", "it is of head=bilstm"
    formats = _formats(config, spec)
    if formats == {sources.PREPARED}:
        for name in ("data.format", "data.quoting", "data.header"):
            yield name, f"it is of files, and {config.data_dir} is a prepared data set"
    elif formats == {"jsonl"} and spec.kind in _TABLES:
        for name in ("data.quoting", "data.header"):
            yield name, f"it is of TSV and CSV, and {data.train} is JSON-lines"
    elif formats == {"conll"}:
        yield "data.id", "it is of JSON-lines, and a file of CoNLL columns has none"
    elif formats == {"json"}:
        for name in ("text_a", "text_b", "label", "id", "answer_start"):
            yield f"data.{name}", "it is of JSON-lines, and SQuAD's layout has names of its own"


def _formats(config: ml_collections.ConfigDict, spec: TaskSpec) -> set[str]:
    """Returns the formats of the training and the evaluation file, as far as their names tell."""
    detect = {_QUESTIONS: question_files.detect_format, _TAGS: word_files.detect_format}.get(
        (spec.kind,), tables.detect_format
    )
    found = set()
    for given in (config.data.train, config.data.eval):
        if given:
            found.add(detect(given, config.data.format))
        elif spec.file_name and config.data_dir.startswith(sources.PREPARED):
            found.add(sources.PREPARED)
        elif spec.file_name and config.data_dir:
            # A name without a suffix stands for files of several formats, but of those of CoNLL.
            known = "." in spec.file_name or spec.kind in _TAGS
            found.add(detect(spec.file_name, config.data.format) if known else "")
    return found


def lookup(config: ml_collections.ConfigDict, name: str) -> Any:
    """Returns the value of a field.

    Raises:
        UserError: there is no field of this dotted name; with the one that is most alike.
    """
    known = dict(config_files.fields(config))
    if name not in known:
        raise UserError(f"{name}: {_no_such_field(name, known)}")
    return known[name]


def _no_such_field(name: str, known: Iterable[str]) -> str:
    near = config_fields.closest(name, known)
    hint = f"did you mean {near}?" if near else "`bert-jax configs --fields NAME` lists those of a config"
    return f"a fine-tuning has no such field; {hint}"


def assign(config: ml_collections.ConfigDict, name: str, value: Any) -> None:
    """Sets the field of a dotted name, which may be a new one."""
    *parents, last = name.split(".")
    for parent in parents:
        if parent not in config:
            config[parent] = ml_collections.ConfigDict()
        config = config[parent]
    config[last] = value
