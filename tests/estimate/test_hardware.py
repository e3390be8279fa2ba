"""Names of slices and GPUs, and the data sheets."""

import pytest

from bert_jax.errors import UserError
from bert_jax.estimate.hardware import CHIPS, GPUS, parse_topology
from bert_jax.training import flops


@pytest.mark.parametrize(
    "text, slices, chips",
    [("v5e:4x4", 1, 16), ("v5e:1x1", 1, 1), ("v5e:16x16", 4, 1024), ("v5p:16x16x24", 1, 6144),
     ("tpu7x:2x2x1", 2, 8), ("tpu7x:16x24x24", 1, 9216),
     ("h100:1", 1, 1), ("a100:4", 1, 4), ("h200:16", 1, 16)],
)  # fmt: skip
def test_topologies(text, slices, chips):
    found = parse_topology(text, slices)
    assert (found.chips, found.text, found.count) == (
        chips,
        text,
        max(slices, chips // 8 * (text[0] in "ah")) or 1,
    )


@pytest.mark.parametrize(
    "text, shape",
    [("v5litepod-1", "v5e:1x1"), ("v5e-4", "v5e:2x2"), ("v5litepod-8", "v5e:2x4"), ("v6e-256", "v6e:16x16"),
     ("v5litepod-128", "v5e:8x16"), ("v4-8", "v4:2x2x1"), ("v4-16", "v4:2x2x2"), ("v5p-64", "v5p:2x4x4"),
     ("v5p-256", "v5p:4x4x8"), ("v4-4096", "v4:8x16x16"), ("v5p-384", "v5p:4x4x12"),
     ("v5p-3456", "v5p:12x12x12"), ("v5p-12288", "v5p:16x16x24"), ("tpu7x-8", "tpu7x:2x2x1"),
     ("tpu7x-128", "tpu7x:4x4x4"), ("tpu7x-1280", "tpu7x:4x8x20")],
)  # fmt: skip
def test_accelerator_types_have_the_shapes_of_clouds_tables(text, shape):
    assert parse_topology(text).text == shape


@pytest.mark.parametrize(
    "text, slices",
    [("v9:2x2", 1), ("v5e", 1), ("v4:4x4", 1), ("v5e:3x4", 1), ("v4:1x1x1", 1), ("v5e:32x16", 1),
     ("h100:12", 1), ("h100:8", 2), ("v5e-3", 1), ("v5e-", 1), ("v4-48", 1)],
)  # fmt: skip
def test_mistakes(text, slices):
    with pytest.raises(UserError, match="--topology"):
        parse_topology(text, slices)


def test_data_sheets_agree():
    for name, gpu in GPUS.items():
        assert flops.find_peak(gpu.kind) == flops.PEAKS[name.upper()]
        assert f"device_memory_size: {gpu.hbm_bytes}" in gpu.target_config()
    for name, chip in CHIPS.items():
        kind = {"tpu7x": "TPU7x"}.get(name, f"TPU {name}")
        assert chip.peak_flops == flops.find_peak(kind).bfloat16
        # The matrix units do a power of two of multiplications a cycle.
        a_cycle = chip.peak_flops / chip.clock / 2
        assert min(abs(a_cycle / 2**n - 1) for n in range(10, 24)) < 0.01
