"""No field of a fine-tuning configuration is ignored: each one is read by a run, or refused.

A run is made for every kind of task with a configuration that notes which of its fields are read. To the
fields that were not read another value is given, which must be refused by name.
"""

import contextlib
import dataclasses
import inspect
import json
import sys
import types
from pathlib import Path

import jax
import ml_collections
import numpy as np
import pytest
from support.pretrained import write
from support.tiny_model import draw_parameters, tiny_config

import bert_jax
from bert_jax import tasks, tokenization
from bert_jax.errors import UserError
from bert_jax.models import config as bert_config
from bert_jax.runs import finetune
from bert_jax.settings import config_fields
from bert_jax.settings.typed import finetune_config
from bert_jax.tasks import config as task_config
from bert_jax.tasks import fields
from bert_jax.tasks.rows import outputs as task_outputs
from bert_jax.tasks.setup import split_file
from bert_jax.tasks.tagging import TaggingTask
from bert_jax.training.evaluators import EvaluationContext
from bert_jax.training.state import TrainState

PACKAGE = Path(bert_jax.__file__).parent
DISTILBERT = Path(__file__).parents[1] / "testdata" / "distilbert" / "masked_lm"
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
}
assert all(path.is_file() for path in CHECKS)


@pytest.fixture
def reads(monkeypatch):
    """{field: files that read it}, filled by the runs of a test."""
    seen = {}
    note_run_fields(monkeypatch, seen)
    note_task_fields(monkeypatch, seen)
    for part in (bert_config.EncoderConfig, bert_config.Execution):
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


SENTENCES = ["the red cat", "a blue dog is big", "one bird", "two small cat", "the dog", "a cat three"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """{kind of task: (its training file, fields of the configuration)}."""
    folder = tmp_path_factory.mktemp("files")

    def table(name, header, cells):
        path = folder / f"{name}.csv"
        rows = [f"{text},{cell}" for text, cell in zip(SENTENCES, cells, strict=True)]
        path.write_text("\n".join([f"text,{header}", *rows]) + "\n")
        return str(path)

    squad = folder / "squad.jsonl"
    squad.write_text(
        "".join(
            json.dumps({"id": str(i), "question": "is the", "context": text, "answers": text.split()[-1],
                        "answer_start": len(text) - len(text.split()[-1])}) + "\n"
            for i, text in enumerate(SENTENCES)
        )
    )  # fmt: skip
    conll = folder / "tags.conll"
    tagged = ["\n".join(f"{word} {'B-X' if word in ('cat', 'dog') else 'O'}" for word in text.split())
              for text in SENTENCES]  # fmt: skip
    conll.write_text("\n\n".join(tagged) + "\n")
    text = {"data.text_a": "text", "data.label": "label"}
    choices = text | {"data.choices": "x,y"}
    return {
        "classification": (table("classes", "label", "ababab"), text),
        "regression": (table("numbers", "label", "123123"), text),
        "multilabel": (table("several", "label", "ababab"), text),
        "multiplechoice": (table("choices", "x,y,label", ["one,two,0", "one,two,1"] * 3), choices),
        "squad2": (str(squad), {"max_query_length": 4, "doc_stride": 4}),
        "tagging": (str(conll), {}),
        "embedding": (
            table("triples", "second,wrong,label", [f"the {i},no,{i}" for i in range(len(SENTENCES))]),
            text | {"data.text_b": "second", "data.negatives": "wrong"},
        ),
        "lateinteraction": (
            table("documents", "second,wrong", [f"the {i},no" for i in range(len(SENTENCES))]),
            {"data.text_a": "text", "data.text_b": "second", "data.negatives": "wrong", "query_length": 8},
        ),
        "reranking": (
            table("candidates", "second,wrong", [f"the {i},no" for i in range(len(SENTENCES))]),
            {"data.text_a": "text", "data.text_b": "second", "data.negatives": "wrong"},
        ),
    }


def configured(task, files, vocabulary):
    """A run from scratch, of a step."""
    path, more = files[task]
    config = tasks.default_config("tiny", task)
    config.model = tiny_config(tokenization.load(vocabulary).vocab_size).to_dict()
    given = {"vocab": str(vocabulary), "max_seq_length": 16, "batch_size": 8, "epochs": 1.0}
    for name, value in (given | {"data.train": path, "data.eval": path} | more).items():
        fields.assign(config, name, value)
    return config


def loop(**given):
    """Stands for `train.fit`, which every task calls: traces the loss, and scores drawn weights."""
    config, task = given["config"], given["objective"]
    batch, key = next(given["train_data"](0, np.arange(config.batch_size))), jax.random.key(0)
    state = TrainState(config.steps, draw_parameters(task), opt_state=())
    jax.eval_shape(
        lambda params: task.loss(params, task.prepare(batch, key, True), {"dropout": key}), state.params
    )
    quiet = types.SimpleNamespace(
        check=lambda: None, heartbeat=lambda: None, paused=contextlib.nullcontext, wait_for=lambda f: f(),
        stage=lambda *unused: contextlib.nullcontext(lambda *done: None),
        write_image=lambda *unused: None,
    )  # fmt: skip
    for evaluator in given["evaluators"]:
        evaluator.evaluate(config.steps, state, EvaluationContext(quiet, quiet, quiet))
    return state


def outputs(task, mesh):
    """Stands for `predictions.make_predict`: outputs of the right shape, of a model that is only traced."""

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
def read_by_the_loop(files, vocabulary, pretrained, tmp_path_factory):
    """The fields that `train.fit` and what it calls read; of a whole run, from a checkpoint."""
    seen = {}
    with pytest.MonkeyPatch.context() as patch:
        note_run_fields(patch, seen)
        config = configured("classification", files, vocabulary)
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
    task, files, vocabulary, reads, read_by_the_loop, tmp_path, monkeypatch
):
    config = configured(task, files, vocabulary)
    for number, packed in enumerate((True, False) if "pack" in fields_of(task) else (True,)):
        config.pack = packed
        run(config, tmp_path / str(number), monkeypatch)
    config.pack = True
    split_file(fields.of_run(config), tasks.get(task), "test")  # as `bert-jax predict --split=test` does
    assert list(ignored(config, set(reads) | read_by_the_loop)) == []


def fields_of(task):
    return [name for name, field in fields.fields().items() if tasks.get(task).task in field.users]


def test_a_new_field_that_nothing_reads_is_found(
    files, vocabulary, reads, read_by_the_loop, tmp_path, monkeypatch
):
    useless = config_fields.option(0, "nothing")
    larger = dataclasses.make_dataclass(
        "Larger", [("useless", int, useless)], bases=(TaggingTask.Config,), frozen=True
    )
    monkeypatch.setattr(TaggingTask, "Config", larger)
    config = configured("tagging", files, vocabulary)
    run(config, tmp_path / "run", monkeypatch)
    split_file(fields.of_run(config), tasks.get("tagging"), "test")
    assert list(ignored(config, set(reads) | read_by_the_loop)) == ["useless"]


@pytest.mark.parametrize("task", tasks.tasks())
def test_every_task_has_a_configuration_with_the_same_fields(task):
    config = tasks.default_config(task=task)
    fields.check(config)
    names = [sorted(dict(config_fields.flatten(one))) for one in (config, tasks.default_config())]
    assert names[0] == names[1]
    assert config.task == task


@pytest.mark.parametrize(
    "task, given, message",
    [
        ("tagging", {"class_weights": "balanced"}, "class_weights=balanced: the task tagging does not use "
         "it, only classification, xnli; leave it at ''"),
        ("squad", {"class_weights": "balanced"}, "task squad does not use it"),
        ("regression", {"class_weights": "balanced"}, "task regression does not use it"),
        ("classification", {"positive_label": "a"}, "=a: it is only used with f1 among the metrics; leave"),
        ("mrpc", {"positive_label": "0"}, "=0: f1 is defined by the task mrpc, which knows its labels"),
        ("regression", {"positive_label": "a"}, "task regression does not use it, only classification, xnli"),
        ("mrpc", {"frozen": True}, "frozen=True: the task mrpc does not use it, only tagging"),
        ("mrpc", {"n_best": 5}, "n_best=5: the task mrpc does not use it, only questions"),
        ("tagging", {"doc_stride": 5}, "doc_stride=5: the task tagging does not use it"),
        ("codah", {"pack": False}, "pack=False: the task codah does not use it"),
        ("squad", {"data.quoting": "csv"}, "data.quoting=csv: the task squad does not use it"),
        ("tagging", {"data.text_b": "b"}, "data.text_b=b: the task tagging does not use it"),
        ("tagging", {"head_size": 5}, "head_size=5: it is only used with head=bilstm"),
        ("classification", {"data_dir": "d"}, "data_dir=d: the task classification does not know the names"),
        ("mrpc", {"init_ignore": "x"}, "init_ignore=x: there is no init_from"),
        ("mrpc", {"init_ignore": "x", "init_from": "c", "from_scratch": True}, "from_scratch takes no param"),
        ("mrpc", {"warmup_fraction": 0.5, "optimizer.warmup_steps": 3}, "warmup_steps is given too"),
        ("mrpc", {"early_stopping": 3, "data.train": "x.tsv"}, "early_stopping=3: there is nothing"),
        ("mrpc", {"eval.every": 3, "data.train": "x.tsv"}, "eval.every=3: there is nothing to evaluate"),
        ("squad", {"null_score_diff_threshold": 1.0}, "=1.0: every question has an answer unless v2"),
        ("squad2", {"v2": False}, "v2=False: questions of the task squad2 may have no answer"),
        ("mrpc", {"data_dir": "tfds:glue", "data.quoting": "csv"}, "the files are a prepared data set"),
        ("mrpc", {"data.train": "x.jsonl", "data.quoting": "csv"}, "tsv and csv, and the files are jsonl"),
        ("tagging", {"data.train": "x.conll", "data.id": "n"}, "used for jsonl, and the files are conll"),
        ("squad", {"data_dir": "d", "data.text_a": "n"}, "data.text_a=n: it is only used for jsonl"),
        ("mrpc", {"eval.batches": 3}, "eval.batches=3: a fine-tuning has no such field"),
        ("mrpc", {"optimizer.learnig_rate": 3.0}, "did you mean optimizer.learning_rate?"),
        ("mrpc", {"learning_rate": 3.0}, "did you mean optimizer.learning_rate?"),
    ],
)  # fmt: skip
def test_what_would_be_ignored_is_refused(task, given, message):
    config = tasks.default_config(task=task)
    for name, value in given.items():
        fields.assign(config, name, value)
    with pytest.raises(UserError) as refused:
        fields.check(config)
    assert message in str(refused.value)


def test_fields_that_the_run_uses_pass():
    for task, given in (
        ("squad", {"data.train": "x.json", "data.eval": "x.jsonl", "data.text_a": "n"}),
        ("mrpc", {"data.train": "x.tsv", "data.eval": "x.jsonl", "data.quoting": "csv"}),
        ("swag", {"data_dir": "d", "data.quoting": "none"}),
        ("conll", {"data_dir": "d", "early_stopping": 2}),
        ("squad2", {"null_score_diff_threshold": 1.0}),
    ):
        config = tasks.default_config(task=task)
        for name, value in given.items():
            fields.assign(config, name, value)
        fields.check(config)


def test_an_architecture_beside_that_of_the_checkpoint_is_refused(files, vocabulary, pretrained):
    config = configured("classification", files, vocabulary)
    config.init_from, config.vocab = str(pretrained), ""
    finetune.prepare(config, "")  # that of the checkpoint
    config.model.num_hidden_layers = 7
    with pytest.raises(UserError, match="num_hidden_layers is 1 there and 7 here"):
        finetune.prepare(config, "")
    config.model.num_hidden_layers = 12  # the default, which the user may have set
    finetune.prepare(config, "")
    with pytest.raises(UserError, match="num_hidden_layers is 1 there and 12 here"):
        finetune.prepare(config, "", explicit=["num_hidden_layers"])


@pytest.mark.parametrize(
    ("task", "given", "unread"),
    [
        ("squad2", {}, ["classifier_dropout", "qa_dropout"]),
        ("squad2", {"model.model_type": "distilbert"}, ["classifier_dropout"]),
        ("multiplechoice", {"model.model_type": "distilbert"}, ["qa_dropout"]),
        ("tagging", {}, ["qa_dropout"]),
        ("tagging", {"model.model_type": "distilbert"}, ["classifier_dropout", "qa_dropout"]),
        ("tagging", {"frozen": True, "head": "bilstm"}, ["classifier_dropout", "qa_dropout"]),
    ],
)
def test_dropout_of_a_head_that_the_family_computes_otherwise_is_refused(
    files, vocabulary, pretrained, task, given, unread
):
    config = configured(task, files, vocabulary)
    if "frozen" in given:
        config.model = tasks.default_config("base").model
        config.init_from, config.vocab = str(pretrained), ""
    for name, value in given.items():
        fields.assign(config, name, value)
    for name in ("classifier_dropout", "qa_dropout"):
        changed = ml_collections.ConfigDict(config.to_dict())
        changed.model[name] = 0.3
        if name in unread:
            with pytest.raises(
                UserError, match=rf"model\.{name}=0\.3: the task {task} with a model of the fam"
            ):
                finetune.prepare(changed, "")
        else:
            finetune.prepare(changed, "")


@pytest.mark.parametrize("task, read", [("classification", True), ("tagging", False), ("squad2", False)])
def test_the_pooling_of_a_head_without_any_is_refused(files, vocabulary, task, read):
    config = configured(task, files, vocabulary)
    config.model.classifier_pooling = "mean"
    if read:
        assert finetune.prepare(config, "")[1].model_config.classifier_pooling == "mean"
        return
    with pytest.raises(UserError, match=rf"model\.classifier_pooling=mean: the task {task} with a model"):
        finetune.prepare(config, "")


def test_a_checkpoint_may_have_the_dropout_of_other_heads(files):
    config = configured("classification", files, DISTILBERT / "vocab.txt")
    config.model = tasks.default_config("base").model
    config.init_from, config.vocab = str(DISTILBERT), ""
    task = finetune.prepare(config, "")[1]
    assert task.model_config.qa_dropout == 0.1


@pytest.mark.parametrize("task", ["squad", "squad2"])
def test_questions_with_the_config_of_another_task_say_what_they_need(files, vocabulary, task):
    config = configured("classification", files, vocabulary)
    config.task = task
    config.data = tasks.default_config().data
    config.data.train = files["squad2"][0]
    with pytest.raises(UserError, match="finetune/squad"):
        finetune.prepare(config, "")
    config.v2, config.doc_stride, config.max_query_length = task == "squad2", 4, 4
    _, found, examples = finetune.prepare(config, "")
    assert len(examples) == len(SENTENCES) and found.config.n_best == 20


def test_a_configuration_of_an_older_version_gets_the_fields_that_came_later():
    config = tasks.default_config(task="squad")
    del config["n_best"]
    del config.data["quoting"]
    assert fields.complete(config).n_best == 20 and fields.complete(config).data.quoting == "auto"
    assert "n_best" not in config


def test_a_group_of_fields_or_a_task_that_is_none():
    config = tasks.default_config()
    config.optimizer = None
    with pytest.raises(UserError, match=r"^optimizer=None is not a group of fields; leave optimizer as "):
        fields.complete(config)
    config = tasks.default_config()
    config.task = None
    with pytest.raises(UserError, match=r"^task=None: there is no such task; the tasks are classification, "):
        fields.complete(config)


def test_the_pooling_that_pre_training_recorded_is_that_of_the_fine_tuning(files, vocabulary, tmp_path):
    model = write(tmp_path, vocabulary, classifier_pooling="mean")
    config = configured("classification", files, vocabulary)
    config.model = tasks.default_config("base").model
    config.init_from, config.vocab = str(model), ""
    assert finetune.prepare(config, "")[1].model_config.classifier_pooling == "mean"
    config.model.classifier_pooling = "cls"
    assert finetune.prepare(config, "")[1].model_config.classifier_pooling == "cls"
