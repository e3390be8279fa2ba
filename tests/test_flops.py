import jax
import pytest

from bert_jax import config, flops


@pytest.mark.parametrize(
    "size,length,predictions,gigaflops",
    [
        ("base", 128, 20, 69.9),
        ("base", 512, 80, 301.4),
        ("large", 128, 20, 240.6),
        ("large", 512, 80, 1020.5),
    ],
)
def test_flops_of_a_row(size, length, predictions, gigaflops):
    assert round(flops.train_flops_per_row(config.named(size), length, predictions) / 1e9, 1) == gigaflops


def test_the_rate_of_a_cpu_is_measured():
    assert 1e8 < flops.peak_flops(jax.devices("cpu")[0], "float32") < 1e14
