"""Fields of a fine-tuning configuration that a run would ignore are refused, and others pass."""

from pathlib import Path

import pytest

from bert_jax import tasks
from bert_jax.errors import UserError
from bert_jax.tasks import fields

DISTILBERT = Path(__file__).parents[1] / "testdata" / "distilbert" / "masked_lm"


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
        ("classification", {"data.train": "x.jsonl", "data.header": False}, "data.header=False: it is only "
         "used for tsv and csv, and the input is jsonl"),
        ("regression", {"data.train": "x.parquet", "data.quoting": "csv"}, "and the input is columnar"),
        ("regression", {"data.train": "x.parquet", "data.format": "columnar"}, "for tsv and csv and jsonl"),
        ("mrpc", {"data_dir": "tfds:glue", "data.quoting": "csv"}, "the input is a prepared data set"),
        ("squad", {"data_dir": "d", "data.text_a": "n"}, "only used for jsonl, and the input is json"),
        ("conll", {"data_dir": "d", "data.id": "n"}, "only used for jsonl, and the input is conll"),
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


def test_a_configuration_of_an_older_version_gets_the_fields_that_came_later():
    config = tasks.default_config(task="squad")
    del config["n_best"]
    del config.data["quoting"]
    assert fields.complete(config).n_best == 20 and fields.complete(config).data.quoting == "auto"
    assert "n_best" not in config
