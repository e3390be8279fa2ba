"""The masks of training and of evaluation that a configuration describes."""

import dataclasses

import pytest

from bert_jax.objectives.masking import MaskingOptions
from bert_jax.settings import config_files, defaults, pretrain_config

# The masking of the original code: (config, fields of masking, fields of eval_masking).
RECIPES = [
    ("base", "", ""),
    ("albert", "strategy=ngram max_predictions=20", ""),
    ("roberta", "count=fairseq never_chosen=none exclude_special=true", ""),
    ("distilbert", "smoothing=0.7 never_chosen=special", ""),
    ("electra:small", "count=electra replace=0.85,0,0.15", ""),
    ("electra:base", "count=electra replace=0.85,0,0.15", ""),
    ("electra:large", "prob=0.25 count=electra replace=0.85,0,0.15", ""),
    (
        "modernbert:modernbert-base",
        "prob=0.3 count=bernoulli never_chosen=none",
        "prob=0.15 never_chosen=special",
    ),
    (
        "modernbert:ettin-17m",
        "prob=0.3 count=bernoulli never_chosen=special",
        "prob=0.15 never_chosen=special",
    ),
    ("mosaicbert", "prob=0.3 count=bernoulli never_chosen=special", "prob=0.15"),
    ("neobert", "prob=0.2 count=bernoulli never_chosen=special replace=1,0,0", ""),
    ("crammed_bert", "prob=0.25 never_chosen=none", ""),
]


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


def changed(config, part):
    """The fields of a part of a config that are not at their default, as `RECIPES` writes them."""
    default = defaults.pretrain("tiny")[part]
    fields = {name: value for name, value in config[part].items() if value != default[name]}
    return {f"{name}={value}".replace(" ", "").lower() for name, value in fields.items()}


@pytest.mark.parametrize("name, training, evaluation", RECIPES)
def test_configs_have_the_masking_of_the_original_code(name, training, evaluation):
    config = config_files.load(f"pretrain/{name}")
    assert changed(config, "masking") == set(training.split())
    assert changed(config, "eval_masking") == set(evaluation.split())
