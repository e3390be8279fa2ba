"""No field of a fine-tuning configuration is ignored: each one is read by a run, or refused.

A run is made for every kind of task with a configuration that notes which of its fields are read. To the
fields that were not read another value is given, which must be refused by name.
"""

import contextlib
import dataclasses
import inspect
import sys
import types
from pathlib import Path

import jax
import ml_collections
import numpy as np
import pytest
from support.evaluations import quiet_context
from support.tiny_model import draw_parameters
from support.tiny_tasks import configured

import bert_jax
from bert_jax import tasks
from bert_jax.errors import UserError
from bert_jax.models.config import EncoderConfig
from bert_jax.models.execution import Execution
from bert_jax.runs import finetune
from bert_jax.settings import config_fields
from bert_jax.settings.typed import finetune_config
from bert_jax.tasks import config as task_config
from bert_jax.tasks import fields
from bert_jax.tasks.rows import outputs as task_outputs
from bert_jax.tasks.setup import split_file
from bert_jax.tasks.tagging import TaggingTask
from bert_jax.training.state import TrainState

PACKAGE = Path(bert_jax.__file__).parent
# What is read in order to check it, or to copy it, has no effect by that.
CHECKS = {
    PACKAGE / "tasks" / "fields.py",
    PACKAGE / "tasks" / "config.py",
    PACKAGE / "settings" / "config_fields.py",
    PACKAGE / "settings" / "typed" / "adapter_config.py",
    PACKAGE / "settings" / "typed" / "finetune_config.py",
    PACKAGE / "settings" / "typed" / "run_config.py",
    PACKAGE / "models" / "config.py",
    PACKAGE / "models" / "config_checks.py",
    PACKAGE / "models" / "execution.py",
}
assert all(path.is_file() for path in CHECKS)


@pytest.fixture
def reads(monkeypatch):
    """{field: files that read it}, filled by the runs of a test."""
    seen = {}
    note_run_fields(monkeypatch, seen)
    note_task_fields(monkeypatch, seen)
    for part in (EncoderConfig, Execution):
        monkeypatch.setattr(part, "__getattribute__", noting_model(part.__getattribute__, seen))
    return seen


def noting_model(plain, seen):
    """`plain`, the attributes of a model's configuration, with a note of the files that read its fields."""

    def noting(self, name):
        caller = sys._getframe(1).f_code
        reader, kind = Path(caller.co_filename), inspect.getattr_static(type(self), caller.co_name, None)
        # A property of the configuration reads a field for whoever reads the property.
        reads = reader not in CHECKS or isinstance(kind, property)
        if PACKAGE in reader.parents and reads and name in self.__dataclass_fields__:
            seen.setdefault(f"model.{name}", set()).add(reader)
        return plain(self, name)

    return noting


def noting(prefix, seen):
    """`__getattribute__` of a part of a configuration, with a note of the files that read its fields."""

    def get(self, name):
        value = object.__getattribute__(self, name)
        reader = Path(sys._getframe(1).f_code.co_filename)
        known = name in type(self).__dataclass_fields__ and not dataclasses.is_dataclass(value)
        if known and PACKAGE in reader.parents and reader not in CHECKS:
            seen.setdefault(prefix + name, set()).add(reader)
        return value

    return get


def note_run_fields(monkeypatch, seen):
    """Notes which fields of a run's configuration are read, and by which file."""
    parts = {"": finetune_config.FinetuneConfig()}
    parts |= {
        f"{name}.": part for name, part in vars(parts[""]).items() if isinstance(part, config_fields.Part)
    }
    for prefix, part in parts.items():
        monkeypatch.setattr(type(part), "__getattribute__", noting(prefix, seen))


def note_task_fields(monkeypatch, seen):
    """Notes which fields of a task's own configuration are read, and by which file."""

    monkeypatch.setattr(task_config.TaskConfig, "__getattribute__", noting("", seen))
    monkeypatch.setattr(task_config.DataConfig, "__getattribute__", noting("data.", seen))


def loop(**given):
    """Stands for `train.fit`, which every task calls: traces the loss, and scores drawn weights."""
    config, task = given["config"], given["objective"]
    batch, key = next(given["train_data"](0, np.arange(config.batch_size))), jax.random.key(0)
    state = TrainState(config.steps, draw_parameters(task), opt_state=())
    jax.eval_shape(
        lambda params: task.loss(params, task.prepare(batch, key, True), {"dropout": key}), state.params
    )
    context = quiet_context(types.SimpleNamespace(heartbeat=lambda: None, paused=contextlib.nullcontext))
    for evaluator in given["evaluators"]:
        evaluator.evaluate(config.steps, state, context)
    return state


def outputs(task, mesh):
    """Stands for `predictions.make_predict`: outputs of the right shape, of a model that is only traced."""

    def predict(params, batch):
        shape = jax.eval_shape(task.predict, params, batch).shape
        return np.random.default_rng(0).random(shape, np.float32)

    predict.lower = predict
    return predict


def another(value):
    if isinstance(value, bool):
        return not value
    if value is None:
        return 0.5
    return value + "x" if isinstance(value, str) else value + type(value)(1)


def ignored(config, seen):
    """The fields of a configuration that were not read, and are not refused when they have another value."""
    for name, value in list(config_fields.flatten(config)):
        if name in seen or name == "model.model_type":  # which names the family of a run that is converted
            continue
        changed = ml_collections.ConfigDict(config.to_dict())
        fields.assign(changed, name, another(value))
        try:
            finetune.prepare(changed, "")
        except UserError as error:
            if name.removeprefix("model.") in str(error):
                continue
        yield name


@pytest.fixture(scope="module")
def read_by_the_loop(task_files, vocabulary, pretrained, tmp_path_factory):
    """The fields that `train.fit` and what it calls read; of a whole run, from a checkpoint."""
    seen = {}
    with pytest.MonkeyPatch.context() as patch:
        note_run_fields(patch, seen)
        config = configured("classification", task_files, vocabulary)
        config.model = tasks.default_config("base").model
        config.init_from, config.vocab, config.epochs = str(pretrained), "", 2.0
        finetune.finetune(config, str(tmp_path_factory.mktemp("run") / "run"), lambda line: None)
    wiring = {PACKAGE / "tasks", PACKAGE / "runs"}
    assert "init_ignore" in seen and "checkpoint.every" in seen
    return {name for name, readers in seen.items() if any(wiring.isdisjoint(r.parents) for r in readers)}


def run(config, directory, monkeypatch):
    monkeypatch.setattr(finetune.loop, "fit", loop)
    monkeypatch.setattr(task_outputs, "make_predict", outputs)
    finetune.finetune(config, str(directory), lambda line: None)


@pytest.mark.long
@pytest.mark.parametrize(
    "task",
    [
        "classification",
        "regression",
        "multilabel",
        "multiplechoice",
        "squad2",
        "tagging",
        "embedding",
        "lateinteraction",
        "reranking",
    ],
)
def test_every_field_is_read_or_refused(
    task, task_files, vocabulary, reads, read_by_the_loop, tmp_path, monkeypatch
):
    config = configured(task, task_files, vocabulary)
    for number, packed in enumerate((True, False) if "pack" in fields_of(task) else (True,)):
        config.pack = packed
        run(config, tmp_path / str(number), monkeypatch)
    config.pack = True
    split_file(fields.of_run(config), tasks.get(task), "test")  # as `bert-jax predict --split=test` does
    assert list(ignored(config, set(reads) | read_by_the_loop)) == []


def fields_of(task):
    return [name for name, field in fields.fields().items() if tasks.get(task).task in field.users]


@pytest.mark.long
def test_a_new_field_that_nothing_reads_is_found(
    task_files, vocabulary, reads, read_by_the_loop, tmp_path, monkeypatch
):
    useless = config_fields.option(0, "nothing")
    larger = dataclasses.make_dataclass(
        "Larger", [("useless", int, useless)], bases=(TaggingTask.Config,), frozen=True
    )
    monkeypatch.setattr(TaggingTask, "Config", larger)
    config = configured("tagging", task_files, vocabulary)
    run(config, tmp_path / "run", monkeypatch)
    split_file(fields.of_run(config), tasks.get("tagging"), "test")
    assert list(ignored(config, set(reads) | read_by_the_loop)) == ["useless"]
