from bert_jax.meter import Meter
from bert_jax.metrics_writer import MetricsWriter


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
    meter, writer = Meter(0, 0, 3), MetricsWriter(tmp_path, terminal=False)
    for step in range(1, 9):
        meter.add(step, {"loss": _Scalar(step, read)})
        meter.write(writer, before=step)
        seen.append(sorted(set(read)))
        if step % 3 == 0:
            meter.close_interval()
    assert seen == [[], [], [], [1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]]


def test_mfu_is_of_all_devices(tmp_path):
    meter = Meter(peak=8e9, flops_per_step=4e9, max_skipped=3)
    rates = meter._rates([{"tokens": 10.0, "sequences": 2.0}] * 5, seconds=5.0)
    assert rates == {
        "tokens_per_second": 10.0, "sequences_per_second": 2.0, "steps_per_second": 1.0, "mfu": 0.5,
    }  # fmt: skip
