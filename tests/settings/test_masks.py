"""The masks of training and of evaluation that a configuration describes."""

import dataclasses
import re

import pytest
from support import pages

from bert_jax.objectives.masking import MaskingOptions
from bert_jax.settings import config_files, defaults, pretrain_config

MASKS_PAGE = pages.REPOSITORY / "docs" / "masks.md"


def options(length=128, **fields):
    config = defaults.pretrain("tiny")
    config.update_from_flattened_dict(fields)
    return pretrain_config.pretraining(config).mask_options(length)


def test_the_defaults_are_those_of_the_paper_at_every_length():
    assert options() == (MaskingOptions(), None)
    assert options(512)[0].max_predictions == 80


def test_fields_of_evaluation_that_are_not_set_are_those_of_training():
    fields = {"masking.strategy": "ngram", "masking.replace": "1,0,0", "masking.copies": 10}
    training, evaluation = options(**fields, **{"eval_masking.prob": 0.3})
    assert training.replace == (1, 0, 0) and training.max_predictions == 20
    assert evaluation == dataclasses.replace(training, prob=0.3, max_predictions=40, copies=0)


def recipes():
    """(config, fields of masking, fields of eval_masking) of the table of recipes on the page of masks."""
    table = MASKS_PAGE.read_text(encoding="utf-8").partition("| config | `masking` |")[2].partition("\n\n")[0]
    rows = [[re.findall("`(.+?)`", cell) for cell in row.split("|")[1:4]] for row in table.splitlines()[2:]]
    return [(name, " ".join(training), " ".join(other)) for names, training, other in rows for name in names]


def changed(config, part):
    """The fields of a part of a config that are not at their default, as the page writes them."""
    default = defaults.pretrain("tiny")[part]
    fields = {name: value for name, value in config[part].items() if value != default[name]}
    return {f"{name}={value}".replace(" ", "").lower() for name, value in fields.items()}


@pytest.mark.parametrize("name, training, evaluation", recipes())
def test_the_table_of_recipes_has_the_fields_of_the_configs(name, training, evaluation):
    config = config_files.load(f"pretrain/{name}")
    assert changed(config, "masking") == set(training.split())
    assert changed(config, "eval_masking") == set(evaluation.split())
