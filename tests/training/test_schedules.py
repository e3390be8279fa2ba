"""The schedules of successors of BERT: their known answers, and the fields that each of them uses."""

import contextlib
import inspect

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.settings import defaults, pretrain_config
from bert_jax.settings.run_config import (
    SCHEDULE_FIELDS,
    WITHOUT_END,
    PretrainOptimizerConfig,
)
from bert_jax.training import schedules


def rates(at, total_steps=100, **fields):
    fields = {"learning_rate": 1.0, "warmup_steps": 10} | fields
    schedule = schedules.make_schedule(PretrainOptimizerConfig(**fields), total_steps)
    return [float(schedule(np.int32(step))) for step in at]


def test_wsd():
    at = [0, 5, 10, 50, 80, 85, 90, 99, 100, 110]
    root = [0, 0.5, 1, 1, 1, 0.5, 1 - np.sqrt(0.5), 1 - np.sqrt(0.95), 0, 0]
    np.testing.assert_allclose(rates(at, schedule="wsd", cooldown_steps=20, cooldown="sqrt"), root, rtol=1e-6)
    assert np.round(root, 4).tolist()[5:9] == [0.5, 0.2929, 0.0253, 0]
    linear = [0, 0.5, 1, 1, 1, 0.755, 0.51, 0.02 + 0.98 * 0.05, 0.02, 0.02]
    options = dict(schedule="wsd", cooldown_steps=20, warmup_steps=0, warmup_fraction=0.1)
    np.testing.assert_allclose(rates(at, final_rate=0.02, **options), linear, rtol=1e-6)


def test_the_triangle_of_crammed_bert():
    at = [0, 30, 75, 80, 100, 101]
    fields = dict(schedule="triangle", initial_rate=0.25, warmup_steps=75)
    np.testing.assert_allclose(rates(at, **fields), [0.25, 0.55, 1, 0.8, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(
        rates(at, final_rate=0.1, **fields), [0.25, 0.55, 1, 0.82, 0.1, 0.1], rtol=1e-6
    )


def test_floors():
    at = [5, 10, 55, 100, 120]
    linear = rates(at, schedule="warmup_then_decay", final_rate=0.02)
    np.testing.assert_allclose(linear, [0.5, 1, 0.51, 0.02, 0.02], rtol=1e-6)
    cosine = rates(at, schedule="cosine", final_rate=0.1)
    np.testing.assert_allclose(cosine, [0.5, 1, 0.55, 0.1, 0.1], rtol=1e-6)


def test_the_fields_of_a_schedule_are_its_arguments():
    common = {"step", "learning_rate", "warmup_steps", "total_steps"}
    for name, function in schedules.SCHEDULES.items():
        config = defaults.pretrain("tiny")
        cooldown = {"cooldown_steps": 9} if name == "wsd" else {}
        config.optimizer.update({"schedule": name, "decay_steps": 90, "warmup_steps": 0, **cooldown})
        refuses = pytest.raises(UserError, match=f"optimizer.decay_steps=90: the schedule {name} has no end")
        with refuses if name in WITHOUT_END else contextlib.nullcontext():
            pretrain_config.pretraining(config)
        assert float(function(np.float32(0), 1.0, 0, 100, **cooldown)) == 1, name  # without a warm-up
        values = [float(function(np.float32(85), 1.0, 10, total, **cooldown)) for total in (90, 180)]
        assert (values[0] == values[1]) == (name in WITHOUT_END)
        taken = set(inspect.signature(function).parameters) - common
        assert taken == set(SCHEDULE_FIELDS.get(name, ())), name
