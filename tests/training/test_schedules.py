"""The known answers of schedules."""

import numpy as np
import pytest

from bert_jax.settings.run_config import PretrainOptimizerConfig
from bert_jax.training import schedules


def rates(at, total_steps=100, **fields):
    fields = {"learning_rate": 1.0, "warmup_steps": 10} | fields
    schedule = schedules.make_schedule(PretrainOptimizerConfig(**fields), total_steps)
    return [float(schedule(np.int32(step))) for step in at]


@pytest.mark.parametrize(
    "name,rates",
    [
        ("reference", {0: 0, 1: 0.01, 50: 0.5, 99: 0.99, 100: 0.9, 550: 0.45, 1000: 0}),
        ("warmup_then_decay", {0: 0, 1: 0.01, 50: 0.5, 99: 0.99, 100: 1.0, 550: 0.5, 1000: 0}),
        ("constant", {0: 0, 1: 0.01, 50: 0.5, 99: 0.99, 100: 1, 550: 1, 1000: 1}),
        ("cosine", {0: 0, 50: 0.5, 100: 1, 400: 0.75, 550: 0.5, 1000: 0}),
        ("inverse_square_root", {0: 0, 50: 0.5, 100: 1, 400: 0.5, 550: 0.426401, 1000: 0.316228}),
        ("product", {0: 0, 50: 0.475, 100: 0.9, 400: 0.6, 550: 0.45, 1000: 0}),
    ],
)
def test_schedules(name, rates):
    found = [schedules.SCHEDULES[name](step, 1.0, 100, 1000) for step in rates]
    np.testing.assert_allclose(found, list(rates.values()), atol=1e-6)


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
