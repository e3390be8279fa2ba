"""The masks of training and of evaluation that a configuration describes."""

import dataclasses
import re

import pytest
from support import pages

from bert_jax.errors import UserError
from bert_jax.objectives.masking import MaskingOptions
from bert_jax.settings import config_files, defaults
from bert_jax.settings.typed import pretrain_config

MASKS_PAGE = pages.REPOSITORY / "docs" / "masks.md"


def options(length=128, **fields):
    config = defaults.pretrain("tiny")
    config.update_from_flattened_dict(fields)
    return pretrain_config.pretraining(config).mask_options(length)


def test_the_defaults_are_those_of_the_paper_at_every_length():
    assert options() == (MaskingOptions(total_steps=1_000_000), None)
    assert options(512)[0].max_predictions == 80


def test_fields_of_evaluation_that_are_not_set_are_those_of_training():
    fields = {"masking.strategy": "ngram", "masking.replace": "1,0,0", "masking.never_chosen": "special"}
    training, evaluation = options(**fields, **{"eval_masking.prob": 0.3})
    assert training.replace == (1, 0, 0) and training.max_predictions == 20
    assert evaluation == dataclasses.replace(training, prob=0.3, max_predictions=40, total_steps=0)
    _, evaluation = options(
        **fields, **{"eval_masking.replace": "0.8,0.1,0.1", "eval_masking.strategy": "token"}
    )
    assert evaluation == MaskingOptions(never_chosen="special")
    _, evaluation = options(**{"masking.smoothing": 0.7, "eval_masking.smoothing": 0.0})
    assert evaluation.smoothing == 0


def test_an_inherited_smoothing_is_refused_with_a_value_that_helps():
    """None, the default of eval_masking.smoothing, is that of training."""
    fields = {"masking.smoothing": 0.7, "eval_masking.strategy": "span"}
    with pytest.raises(UserError, match=r"set eval_masking\.smoothing=0 or eval_masking\.strategy=token"):
        options(**fields)
    _, evaluation = options(**fields, **{"eval_masking.smoothing": 0.0})
    assert (evaluation.strategy, evaluation.smoothing) == ("span", 0)


def test_masks_that_are_used_again_are_those_of_training_alone():
    training, evaluation = options(**{"masking.copies": 10, "eval_masking.prob": 0.2})
    assert training.copies == 10 and evaluation.copies == 0


def test_a_share_that_changes_has_room_for_its_largest_value():
    changing = {"masking.prob": 0.3, "masking.final_prob": 0.15, "masking.schedule": "linear", "steps": 50}
    training, evaluation = options(**changing)
    assert (training.total_steps, training.max_predictions, evaluation) == (50, 40, None)
    _, evaluation = options(**changing, **{"eval_masking.prob": 0.15})
    assert evaluation == MaskingOptions()


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"masking.replace": "1,0"}, "masking.replace='1,0': expected the shares of [MASK]"),
        ({"eval_masking.replace": "1,1,1"}, "eval_masking.replace=1, 1, 1: expected three shares"),
        ({"eval_masking.strategy": "words"}, "eval_masking.strategy='words' is unknown"),
        (
            {"masking.copies": 2, "masking.final_prob": 0.3, "masking.schedule": "linear"},
            "masking.copies=2 with masking.schedule=linear: masks that are used again have a constant share",
        ),
        ({"masking.copies": -1}, "masking.copies=-1 must be at least 0"),
        ({"masking.token_counts": "c.txt"}, "masking.token_counts=c.txt: only masking.smoothing uses the"),
        (
            {"masking.exclude_special": True, "masking.replace": "1,0,0"},
            "masking.exclude_special=True: masking.replace has no random tokens; leave it at False",
        ),
        (
            {"data.eval_split": "", "eval_masking.count": "fairseq"},
            "eval_masking.count=fairseq: data.eval_split is empty; leave it at ''",
        ),
    ],
)
def test_mistakes(fields, message):
    with pytest.raises(UserError) as error:
        options(**fields)
    assert message in str(error.value)


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


def test_the_table_of_recipes_has_every_family():
    named = "base albert roberta distilbert electra modernbert ettin_tiny mosaicbert neobert crammed_bert"
    assert {name.partition(":")[0] for name, *_ in recipes()} == {*named.split()}


@pytest.mark.parametrize("name, training, evaluation", recipes())
def test_the_table_of_recipes_has_the_fields_of_the_configs(name, training, evaluation):
    config = config_files.load(f"pretrain/{name}")
    assert changed(config, "masking") == set(training.split())
    assert changed(config, "eval_masking") == set(evaluation.split())
