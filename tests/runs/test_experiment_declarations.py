"""Experiments as they are declared: what is refused when they are made, and the parts of a budget."""

import re

import pytest

from bert_jax.errors import UserError
from bert_jax.settings import defaults, experiments
from bert_jax.settings.experiments import (
    Arm,
    Budget,
    Comparison,
    Experiment,
    Finetuning,
    HeldOut,
    Pretraining,
)


def tiny(run):
    return defaults.pretrain("tiny")


@pytest.mark.parametrize(
    "arms, message",
    [
        ([Arm("one"), Arm("one")], "arms called one, one: expected different names"),
        ([Arm("a b"), Arm("a/b")], "arms called a b, a/b: expected different names, .*also where their"),
        ([Arm("timing")], "arms called timing: expected different names, none of them timing"),
        ([Arm("one", start="two"), Arm("two")], "arm 'one': start 'two' is unknown"),
        ([Arm("one", measures=["speed"])], "arm 'one': measure 'speed' is unknown"),
        ([Arm("one", tune={"cola": {}})], "arm 'one': measure 'cola' is unknown"),
        ([Arm("..")], r"arms called \.\.: expected different names"),
        ([Arm("one", Pretraining(tiny, "rows"))], "arm 'one': records 'rows' is unknown"),
    ],
)
def test_an_experiment_is_checked_when_it_is_made(arms, message):
    with pytest.raises(UserError, match=message):
        Experiment("Mistakes", arms, [])
    with pytest.raises(UserError, match=r"called pretraining: expected .*, none of them pretraining"):
        Experiment("Mistakes", [Arm("one")], [HeldOut("pretraining", "rows")], records={"rows": ()})
    with pytest.raises(UserError, match="measure 'loss': records 'rowz' is unknown; did you mean rows"):
        Experiment("Mistakes", [Arm("one")], [HeldOut("loss", "rowz")], records={"rows": ()})


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Pretraining(tiny, "rows", share=1.5), "share=1.5: expected more than 0 and at most 1"),
        (lambda: Pretraining(tiny, "rows", share=0), "share=0: expected more than 0"),
        (
            lambda: HeldOut("loss", "rows", prob=15),
            r"measure 'loss': HeldOut.prob=15 must be between 0 and 1",
        ),
        (lambda: HeldOut("loss", "rows", replace="1,2"), "measure 'loss': HeldOut.replace='1,2': expected"),
        (lambda: HeldOut("loss", "rows", rows=-1), "measure 'loss': rows=-1: expected a number"),
        (
            lambda: Finetuning("mnli", "finetune/glue:mnli", "glue", ()),
            "measure 'mnli': metrics=.*expected a",
        ),
        (
            lambda: Finetuning("mnli", "finetune/glue:mnli", "glue", "accuracy"),
            "metrics='accuracy': expected",
        ),
        (lambda: experiments.finetuning("MNLI", 1e-4), "finetuning: task 'MNLI' is unknown; expected one of"),
        (lambda: experiments.finetuning_small("CoLa"), "task 'CoLa' is unknown; did you mean CoLA?"),
        (lambda: Experiment("Seeds", [Arm("one")], [], seeds=0), "seeds=0 and train_rows=0: expected 1 seed"),
        (lambda: Experiment("Rows", [Arm("one")], [], train_rows=-1), "train_rows=-1: .*a number of rows"),
        (
            lambda: Experiment(
                "Tuned",
                [Arm("one", tune={"loss": {"epochs": 1.0}})],
                [HeldOut("loss", "rows")],
                records={"rows": ()},
            ),
            "arm 'one': tune changes fields of fine-tunings, and the measure 'loss' is none",
        ),
    ],
)
def test_a_part_of_an_experiment_is_checked_when_it_is_made(make, message):
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.parametrize(
    "comparison, message",
    [
        (Comparison("F1", {"two": 1.0}, ["speed"]), "comparison 'F1': arm 'two' is unknown"),
        (Comparison("F1", {"one": 1.0}, ["sped"]), "measure 'sped' is unknown; did you mean speed?"),
        (
            Comparison("F1", {"one": 1.0}, ["speed"], "f2"),
            "comparison 'F1': metric of speed 'f2' is unknown; expected one of f1",
        ),
    ],
)
def test_what_is_compared_with_a_paper_exists(comparison, message):
    measures = [Finetuning("speed", "finetune/conll", "conll", ("f1",))]
    with pytest.raises(UserError, match=re.escape(message)):
        Experiment("Mistakes", [Arm("one")], measures, comparisons=[comparison])


def test_a_part_of_a_budget_is_never_nothing():
    assert Budget(steps=3).part(1 / 8) == Budget(steps=1)
    assert Budget(tokens=1000).part(0.25) == Budget(tokens=250)
    assert Budget(seconds=10).part(0.5) == Budget(seconds=5)
