"""Every field of a configuration: refused by name, or valid, whatever its value is."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax import tasks
from bert_jax.errors import UserError
from bert_jax.parallel import sharding
from bert_jax.settings import config_fields, defaults, pretrain_config
from bert_jax.settings.pretrain_config import PretrainConfig
from bert_jax.tasks import fields as task_fields
from bert_jax.tasks import setup
from bert_jax.training.optimizers import make_optimizer


def configs():
    return {
        "pretrain": defaults.pretrain("tiny"),
        "finetune": tasks.default_config("tiny"),
        "squad": tasks.default_config(task="squad"),
    }


def declared(command):
    return dict(config_fields.fields(PretrainConfig())) if command == "pretrain" else task_fields.declared()


@pytest.mark.parametrize("command", configs())
def test_every_field_is_declared_and_its_default_is_valid(command):
    config = configs()[command]
    assert {name for name, _ in config_fields.flatten(config)} == set(declared(command))
    config_fields.check_values(config, declared(command))


def use(config, command):
    """What a run makes of its configuration before it reads a file or compiles a program."""
    config_fields.check_values(config, declared(command))
    assert all(math.isfinite(value) for _, value in config_fields.flatten(config) if isinstance(value, float))
    if command == "pretrain":
        config = pretrain_config.pretraining(config)
        config.mask_options(length=128)
    else:
        config = setup.resolve_schedule(task_fields.of_run(config), 1000)
    dataclasses.replace(config.model, vocab_size=config.model.vocab_size or 100).encoder()
    schedule = make_optimizer(config.optimizer, config.steps, None)[1]
    assert np.isfinite(schedule(np.int32(config.steps - 1)))
    mesh = sharding.mesh_of(config.mesh)
    sharding.check_batch_size(config.batch_size, mesh, config.accumulate_steps)
    assert np.uint32(config.seed) == config.seed


def set_field(config, name, value):
    *parents, last = name.split(".")
    for parent in parents:
        config = config[parent]
    with config.ignore_type():
        config[last] = value


NUMERIC = [
    (command, name)
    for command, config in configs().items()
    for name, _ in config_fields.flatten(config)
    if declared(command)[name].type in ("int", "float")
]
VALUES = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, -1, -5, 0, 1, 2**31 - 1, 2**31, 2**32, 2**40, 10**20]),
    st.sampled_from([10**300, -(10**20), 1e300, -1e300, 5e-324, 0.5, -0.0, "", "3", None, True, [1]]),
    st.integers(),
    st.floats(),
)


@pytest.mark.long
@settings(max_examples=600, deadline=None)
@given(field=st.sampled_from(NUMERIC), value=VALUES)
def test_any_value_of_a_number_is_refused_by_name_or_valid(field, value):
    command, name = field
    config = configs()[command]
    set_field(config, name, value)
    try:
        use(config, command)
    except UserError as error:
        told = str(error)
        # A mesh is named by its sizes, and the steps of a fine-tuning follow from other fields.
        names = {"mesh": name.rpartition(".")[2], "epoc": "steps", "step": "steps", "opti": "optimizer."}
        assert name.removeprefix("model.") in told or names.get(name[:4], name) in told, told
        assert "\n" not in told and len(told) < 400


@pytest.mark.parametrize(
    "name, rule",
    [
        *((f"model.{name}", "fixed") for name in ("num_attention_heads", "hidden_size", "vocab_size")),
        *((name, "free") for name in ("model.attention", "accumulate_steps", "mesh.fsdp")),
        *((name, "same") for name in ("model.dtype", "seed", "optimizer.b1")),
    ],
)
@pytest.mark.parametrize("command", ["pretrain", "finetune"])
def test_what_may_change_on_resume(command, name, rule):
    assert declared(command)[name].resume == rule
