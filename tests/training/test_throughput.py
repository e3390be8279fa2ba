import math

import pytest

from bert_jax.training.metrics import MetricsWriter
from bert_jax.training.throughput import Goodput, StepMetrics, means


class _Scalar:
    """A metric of a step, which tells when it is read."""

    def __init__(self, step, read):
        self._step, self._read = step, read

    def block_until_ready(self):
        return self

    def copy_to_host_async(self):
        pass

    def __float__(self):
        self._read.append(self._step)
        return 0.0


def test_device_values_are_read_only_at_log_steps_and_one_step_late(tmp_path):
    read, seen = [], []
    meter, writer = StepMetrics(0, 0), MetricsWriter(tmp_path, terminal=False)
    for step in range(1, 9):
        meter.add(step, {"loss": _Scalar(step, read)})
        meter.write(writer, before=step)
        seen.append(sorted(set(read)))
        if step % 3 == 0:
            meter.close_interval()
    assert seen == [[], [], [], [1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]]


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


def test_the_rate_and_the_budget_of_an_interval_are_those_of_its_last_step():
    steps = [{"loss": 4.0, "learning_rate": 0.1 * n, "budget": 0.2 * n, "skipped": 0.0} for n in (1, 2, 3)]
    line = means(steps)
    assert (line["learning_rate"], line["budget"], line["loss"]) == (0.1 * 3, 0.2 * 3, 4.0)


def test_mfu_is_of_all_devices():
    meter = StepMetrics(peak=8e9, flops_per_step=4e9)
    rates = meter._rates([{"tokens": 10.0, "sequences": 2.0}] * 5, seconds=5.0)
    assert rates == {
        "tokens_per_second": 10.0, "sequences_per_second": 2.0, "steps_per_second": 1.0, "mfu": 0.5,
    }  # fmt: skip


def test_mfu_is_left_out_where_the_peak_was_measured_too_low():
    meter = StepMetrics(peak=8e9, flops_per_step=4e9)
    values = [{"loss": 0.0}] * 5
    assert "mfu" not in meter._rates(values, seconds=2.0)  # 125%
    assert "mfu" not in meter._rates(values, seconds=5.0)
    growing = StepMetrics(peak=8e9, flops_per_step=lambda step: 1e9 * step)
    assert growing._rates(values, seconds=5.0, first=3)["mfu"] == pytest.approx(
        sum(1e9 * step for step in range(3, 3 + len(values))) / 5 / 8e9
    )
    assert "mfu" not in StepMetrics(peak=0, flops_per_step=4e9)._rates(values, seconds=5.0)


def test_goodput_is_of_all_starts_of_a_run():
    first = Goodput(now=1000.0)
    line = first.add(60.0, now=1100.0)
    assert line == {"time": 1100.0, "run_seconds": 100.0, "goodput": 0.6}
    # Killed; what was written after this line is dropped; an hour later it goes on from there.
    again = Goodput([line], now=4700.0)
    line = again.add(40.0, now=4800.0)
    assert line["run_seconds"] == 3800.0 and line["goodput"] == pytest.approx(100 / 3800)
