"""Names of slices, and what is said of those that do not exist."""

import pytest

from bert_jax.errors import UserError
from bert_jax.estimate.chips.tpus import CHIPS, parse_topology
from bert_jax.training.metrics import peaks


@pytest.mark.parametrize(
    "text, slices, chips",
    [("v5e:4x4", 1, 16), ("v5e:2x4", 1, 8),
     ("v5e:1x1", 1, 1), ("v5e:16x16", 4, 1024), ("v4:8x8x8", 1, 512), ("v5p:16x16x24", 1, 6144)],
)  # fmt: skip
def test_slices(text, slices, chips):
    found = parse_topology(text, slices)
    assert (found.chips, found.text, found.count) == (chips, text, slices)


@pytest.mark.parametrize(
    "text, slices, words",
    [
        ("v9:2x2", 1, "expected v4, v5e, v5p, v6e"),
        ("4x4", 1, "unknown chip '4x4'"),
        ("v5e", 1, "expected v5e:AxB"),
        ("v5e:4x4x4", 1, "expected v5e:AxB"),
        ("v4:4x4", 1, "expected v4:AxBxC"),
        ("v5e:3x4", 1, "must be even"),
        ("v4:1x1x1", 1, "must be even"),
        ("v5e:0x4", 1, "must be even"),
        ("v4:2x2x0", 1, "at most 4,096"),
        ("v5e:32x16", 1, "512 chips, but a slice of v5e has at most 256; use several --slices"),
        ("v5e:4x4", 0, "--slices=0 must be at least 1"),
    ],
)
def test_mistakes(text, slices, words):
    with pytest.raises(UserError, match=r"--topology|--slices") as error:
        parse_topology(text, slices)
    assert words in str(error.value)


@pytest.mark.parametrize("name", CHIPS)
def test_clock_and_peak_agree(name):
    """The matrix units do a whole power of two of multiplications a cycle."""
    chip = CHIPS[name]
    a_cycle = chip.peak_flops / chip.clock / 2
    nearest = min((2**n for n in range(10, 24)), key=lambda power: abs(power - a_cycle))
    assert abs(a_cycle / nearest - 1) < 0.01


@pytest.mark.parametrize("name", CHIPS)
def test_the_peak_is_that_of_measured_mfu(name):
    assert CHIPS[name].peak_flops == peaks.find(f"TPU {name}").bfloat16
