"""No field of a fine-tuning configuration is ignored: a run reads it, or it is an error to set it."""

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
from bert_jax.runs import finetune
from bert_jax.settings import config_fields
from bert_jax.settings.finetune_config import FinetuneConfig
from bert_jax.tasks import base, fields, rows
from bert_jax.tasks.setup import split_file
from bert_jax.training.state import TrainState

PACKAGE = Path(bert_jax.__file__).parent
# A field that these files read is checked or copied, and has no effect by that.
CHECKS = {
    PACKAGE / "tasks" / "fields.py",
    *(PACKAGE / "settings").glob("*.py"),
    PACKAGE / "models" / "config.py",
    PACKAGE / "models" / "config_checks.py",
}


def note_reads(monkeypatch):
    """Returns a set to which the fields are added that are read from now on."""
    seen = set()
    parts = [(f"{name}.", type(part)) for name, part in vars(FinetuneConfig()).items()]
    parts = [(prefix, part) for prefix, part in parts if dataclasses.is_dataclass(part)]
    parts += [("", FinetuneConfig), ("", base.TaskConfig), ("data.", base.DataConfig)]
    for prefix, part in [*parts, ("model.", EncoderConfig)]:

        def get(self, name, plain=part.__getattribute__, prefix=prefix):
            value, caller = plain(self, name), sys._getframe(1).f_code
            reader, kind = Path(caller.co_filename), inspect.getattr_static(type(self), caller.co_name, None)
            # A property of the configuration reads a field for whoever reads the property.
            used = PACKAGE in reader.parents and (reader not in CHECKS or isinstance(kind, property))
            if used and name in type(self).__dataclass_fields__ and not dataclasses.is_dataclass(value):
                seen.add(prefix + name)
            return value

        monkeypatch.setattr(part, "__getattribute__", get)
    return seen


def fit(**given):
    """Stands for `train.fit`: traces the loss, and scores drawn weights."""
    config, task, key = given["config"], given["objective"], jax.random.key(0)
    batch = next(given["train_data"](0, np.arange(config.batch_size)))
    state = TrainState(config.steps, draw_parameters(task), opt_state=())
    jax.eval_shape(lambda x: task.loss(x, task.prepare(batch, key, True), {"dropout": key}), state.params)
    context = quiet_context(types.SimpleNamespace(heartbeat=lambda: None, paused=contextlib.nullcontext))
    for evaluator in given["evaluators"]:
        evaluator.evaluate(config.steps, state, context)
    return state


def make_predict(task, mesh):
    """Stands for `outputs.make_predict`: outputs of the right shape, of a model that is only traced."""

    def predict(params, batch):
        shape = jax.eval_shape(task.predict, params, batch).shape
        return np.random.default_rng(0).random(shape, np.float32)

    return predict


def another(value):
    if isinstance(value, bool):
        return not value
    if value is None:
        return 0.5
    return value + "x" if isinstance(value, str) else value + type(value)(1)


def ignored(config, seen):
    """The fields that were not read, and that may be set all the same."""
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
    """The fields that a run of two steps reads; it starts from a checkpoint. Models are not counted."""
    with pytest.MonkeyPatch.context() as patch:
        seen = note_reads(patch)
        config = configured("classification", task_files, vocabulary)
        config.model = tasks.default_config("base").model
        config.init_from, config.vocab, config.epochs = str(pretrained), "", 2.0
        finetune.finetune(config, str(tmp_path_factory.mktemp("run") / "run"), lambda line: None)
    return {name for name in seen if name not in fields.fields() and not name.startswith("model.")}


@pytest.mark.long
@pytest.mark.parametrize(
    "task", "classification regression multilabel multiplechoice squad2 tagging embedding reranking".split()
)
def test_every_field_is_read_or_is_an_error(
    task, task_files, vocabulary, read_by_the_loop, tmp_path, monkeypatch
):
    reads = note_reads(monkeypatch)
    monkeypatch.setattr(finetune.train, "fit", fit)
    monkeypatch.setattr(rows.outputs, "make_predict", make_predict)
    config = configured(task, task_files, vocabulary)
    for packed in (False, True) if tasks.get(task).task in fields.fields()["pack"].users else (True,):
        config.pack = packed
        finetune.finetune(config, str(tmp_path / str(packed)), lambda line: None)
    split_file(fields.of_run(config), tasks.get(task), "test")  # as `bert-jax predict --split=test` does
    assert list(ignored(config, reads | read_by_the_loop)) == []
