import math

import pytest

from bert_jax.training import throughput
from bert_jax.training.throughput import StepMetrics, means


def test_a_metric_that_only_some_steps_have_is_their_mean():
    steps = [
        {"loss": 5.0, "clm_loss": 5.0, "skipped": 0.0, "tokens": 3.0},
        {"loss": 4.0, "clm_loss": 4.0, "skipped": 2.0, "tokens": 3.0},
        {"loss": 3.0, "mlm_loss": 2.0, "nsp_loss": 1.0, "skipped": 0.0, "tokens": 3.0},
        {"loss": 5.0, "mlm_loss": 1.75, "nsp_loss": math.nan, "skipped": 0.0, "tokens": 3.0},
        {"loss": 2.0, "mlm_loss": 1.5, "nsp_loss": 0.5, "skipped": 0.0, "tokens": 3.0},
    ]
    assert means(steps) == {
        "loss": 15 / 4, "clm_loss": 5.0, "mlm_loss": 1.75, "nsp_loss": 0.75, "skipped": 1.0,
    }  # fmt: skip


def test_the_rate_of_an_interval_is_that_of_its_last_step():
    line = means([{"loss": 4.0, "learning_rate": 0.1 * n, "skipped": 0.0} for n in (1, 2, 3)])
    assert (line["learning_rate"], line["loss"]) == (0.1 * 3, 4.0)


def test_mfu_is_of_all_devices():
    meter = StepMetrics(lambda step: 4e9)
    meter.start(peak=8e9)
    rates = meter._rates([{"tokens": 10.0, "sequences": 2.0}] * 5, seconds=5.0)
    assert rates == {
        "tokens_per_second": 10.0, "sequences_per_second": 2.0, "steps_per_second": 1.0, "mfu": 0.5,
    }  # fmt: skip


def test_goodput_is_of_all_starts_of_a_run(monkeypatch):
    clock = iter((1000.0, 1100.0, 4700.0, 4800.0))
    monkeypatch.setattr(throughput.time, "time", lambda: next(clock))
    line = StepMetrics(lambda step: 0.0)._times(60.0)
    assert (line["time"], line["run_seconds"], line["goodput"]) == (1100.0, 100.0, 0.6)
    # Killed; what was written after this line is dropped; an hour later it goes on from there.
    line = StepMetrics(lambda step: 0.0, [line])._times(40.0)
    assert line["run_seconds"] == 3800.0 and line["goodput"] == pytest.approx(100 / 3800)
