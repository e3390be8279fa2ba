"""Every field of a configuration: refused by name, or valid, whatever its value is."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax import tasks
from bert_jax.errors import UserError
from bert_jax.models import config as bert_config
from bert_jax.objectives.masking import MaskingOptions
from bert_jax.parallel import sharding
from bert_jax.settings import config_fields, config_files, defaults
from bert_jax.tasks import fields as task_fields
from bert_jax.tasks import setup
from bert_jax.training.optimization.optimizers import make_optimizer
from bert_jax.workdir import run_directory


def configs():
    return {
        "pretrain": defaults.pretrain("tiny"),
        "finetune": tasks.default_config("tiny"),
        "squad": tasks.default_config(task="squad"),
    }


def of_tasks():
    return {name: field.limits for name, field in task_fields.fields().items()}


def test_the_table_has_every_field_and_no_other():
    every = {name for config in configs().values() for name, _ in config_files.fields(config)}
    assert not set(of_tasks()) & set(config_fields.FIELDS)
    assert every == set(config_fields.FIELDS) | set(of_tasks())
    for config in configs().values():
        config_fields.check_values(config)


def use(config):
    """What a run makes of its configuration before it reads a file or compiles a program."""
    config_fields.check_values(config, config_fields.FIELDS | of_tasks())
    fields = config.model.to_dict()
    bert_config.from_dict(fields | {"vocab_size": fields["vocab_size"] or 100})
    if "masking" in config:
        MaskingOptions(**config.masking.to_dict() | {"max_predictions": config.masking.max_predictions or 20})
    if "epochs" in config:
        setup.resolve_schedule(config, 1000)
    schedule = make_optimizer(config.optimizer, config.steps, None)[1]
    assert np.isfinite(schedule(np.int32(config.steps - 1)))
    mesh = sharding.make_mesh(**config.mesh.to_dict())
    sharding.check_batch_size(config.batch_size, mesh, config.accumulate_steps)
    assert np.uint32(config.seed) == config.seed
    assert all(math.isfinite(value) for _, value in config_files.fields(config) if isinstance(value, float))


def set_field(config, name, value):
    *parents, last = name.split(".")
    for parent in parents:
        config = config[parent]
    with config.ignore_type():
        config[last] = value


NUMERIC = [
    (command, name)
    for command, config in configs().items()
    for name, _ in config_files.fields(config)
    if (config_fields.FIELDS | of_tasks())[name].type in ("int", "float")
]
VALUES = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, -1, -5, 0, 1, 2**31 - 1, 2**31, 2**32, 2**40, 10**20]),
    st.sampled_from([10**300, -(10**20), 1e300, -1e300, 5e-324, 0.5, -0.0, "", "3", None, True, [1]]),
    st.integers(),
    st.floats(),
)


@settings(max_examples=600, deadline=None)
@given(field=st.sampled_from(NUMERIC), value=VALUES)
def test_any_value_of_a_number_is_refused_by_name_or_valid(field, value):
    command, name = field
    config = configs()[command]
    set_field(config, name, value)
    try:
        use(config)
    except UserError as error:
        told = str(error)
        # A mesh is named by its sizes, and the steps of a fine-tuning follow from other fields.
        names = {"mesh": name.rpartition(".")[2], "epoc": "steps", "step": "steps"}
        assert name.removeprefix("model.") in told or names.get(name[:4], name) in told, told
        assert "\n" not in told and len(told) < 400


@pytest.mark.parametrize("name", ["model.num_attention_heads", "model.hidden_size", "model.vocab_size"])
def test_the_shapes_are_fixed(name):
    assert f"config.{name}" in run_directory._FIXED and f"config.{name}" not in run_directory.FREE_FIELDS


@pytest.mark.parametrize("name", ["model.residual", "model.attention", "accumulate_steps", "mesh.fsdp"])
def test_how_it_is_computed_is_free(name):
    assert f"config.{name}" in run_directory.FREE_FIELDS


@pytest.mark.parametrize(
    "given, found",
    [
        ("optimizer.lr", "optimizer.learning_rate"),
        ("learning_rate", "optimizer.learning_rate"),
        ("batchsize", "batch_size"),
        ("eval_every", "eval.every"),
        ("model.heads", "model.num_attention_heads"),
        ("optimizer.momentum", None),
    ],
)
def test_the_field_that_is_meant(given, found):
    known = [name for name, _ in config_files.fields(defaults.pretrain())]
    assert config_fields.closest(given, known) == found


def test_a_rule_for_spikes_that_is_off_has_no_settings():
    config = defaults.pretrain("tiny")
    config.spikes.window = 50
    with pytest.raises(UserError, match=r"spikes.window=50: spikes.factor=0 is no rule; leave it at 128"):
        config_fields.check_pretraining(config)
    config.spikes.factor = 3.0
    config_fields.check_pretraining(config)
