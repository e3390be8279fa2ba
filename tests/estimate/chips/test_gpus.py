"""Names of GPUs, what is said of those that do not exist, and what the compiler is told of them."""

import pytest

from bert_jax.errors import UserError
from bert_jax.estimate.chips.gpus import GPUS, Hosts
from bert_jax.estimate.chips.tpus import parse_topology
from bert_jax.training.metrics import peaks


@pytest.mark.parametrize(
    "text, hosts, per_host",
    [("h100:1", 1, 1), ("h200:8", 1, 8), ("a100:4", 1, 4), ("b200:16", 2, 8), ("h100:1024", 128, 8)],
)
def test_hosts(text, hosts, per_host):
    found = parse_topology(text)
    assert isinstance(found, Hosts)
    assert (found.count, found.per_host, found.text) == (hosts, per_host, text)
    assert found.chips == hosts * per_host


@pytest.mark.parametrize(
    "text, slices, words",
    [
        ("h100", 1, "expected h100:N"),
        ("h100:0", 1, "expected h100:N"),
        ("h100:2x4", 1, "expected h100:N"),
        ("h100:12", 1, "a host has 8 GPUs"),
        ("h100:8", 2, "--slices=2 is for TPUs"),
        ("l4:1", 1, "or a100, h100, h200, b200 with a number"),
    ],
)
def test_mistakes(text, slices, words):
    with pytest.raises(UserError) as error:
        parse_topology(text, slices)
    assert words in str(error.value)


@pytest.mark.parametrize("name", GPUS)
def test_what_the_compiler_is_told(name):
    text = GPUS[name].target_config()
    assert text.count("{") == text.count("}") and f'"{GPUS[name].kind}"' in text
    assert f"device_memory_size: {GPUS[name].hbm_bytes}" in text
    assert ("ACCELERATED_FEATURES" in text) == (name != "a100")


@pytest.mark.parametrize("name", GPUS)
def test_the_peak_of_its_products_is_known(name):
    assert peaks.find(GPUS[name].kind) == peaks.PEAKS[name.upper()]
