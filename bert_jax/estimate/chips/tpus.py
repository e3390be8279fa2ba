"""The TPU chips that a step can be estimated for, by their public data sheets."""

from __future__ import annotations

import dataclasses
import math
import re

from bert_jax.errors import UserError
from bert_jax.estimate.chips import gpus
from bert_jax.training import peaks


@dataclasses.dataclass(frozen=True)
class Chip:
    """One TPU chip as jax sees it: v4 and v5p have two cores that work as one device.

    Memory, peak, bandwidths and torus are those of the specification tables at
    https://docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e}, read in November 2026. A link's rate, one way, is
    the ICI bandwidth a chip, which the tables count both ways, divided by twice its ports (v4: Jouppi et al.
    2023, arXiv 2304.01433, has 50 GB/s). The DCN rate is a pod's divided by its chips; v4's page has none and
    v5p's is taken. Clocks are those at which the matrix units reach the peak; v4's is in Jouppi et al. too.
    """

    name: str
    dimensions: int  # of the torus
    largest: int  # chips in a slice
    hbm_bytes: float
    peak_flops: float  # bfloat16, a second; of float32 by default precision too
    hbm_bandwidth: float  # bytes a second
    link_bandwidth: float  # bytes a second along one ICI link, one way; two links a dimension
    dcn_bandwidth: float  # bytes a second to other slices
    clock: float  # cycles a second
    matrix_side: int  # of the matrix units: a product over fewer numbers takes as long as over so many
    wraps_at: int  # shortest side of a slice along which the torus is closed
    one_host: tuple[str, ...]  # shapes that a single host has, smaller than the usual 2x2


_GIB = 2.0**30


def _peak(name: str) -> float:
    return peaks.PEAKS[f"TPU {name}"].bfloat16


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", 3, 4096, 32 * _GIB, _peak("v4"), 1228e9, 50e9, 6.25e9, 1.05e9, 128, 4, ()),
        Chip(
            "v5e",
            2,
            256,
            16 * _GIB,
            _peak("v5e"),
            819e9,
            50e9,
            3.125e9,
            1.5e9,
            128,
            16,
            ("1x1",),
        ),
        Chip(
            "v5p",
            3,
            6144,
            95 * _GIB,
            _peak("v5p"),
            2765e9,
            100e9,
            6.25e9,
            1.75e9,
            128,
            4,
            (),
        ),
        Chip(
            "v6e",
            2,
            256,
            32 * _GIB,
            _peak("v6e"),
            1638e9,
            100e9,
            12.5e9,
            1.75e9,
            256,
            16,
            ("1x1",),
        ),
    )
}

EXAMPLES = "v4:8x8x8, v5e:4x4, v5p:4x4x4, v6e:16x16"


@dataclasses.dataclass(frozen=True)
class Slices:
    """Some slices of the same shape."""

    chip: Chip
    shape: tuple[int, ...]
    count: int = 1

    @property
    def chips(self) -> int:
        return math.prod(self.shape) * self.count

    @property
    def text(self) -> str:
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def description(self) -> dict[str, object]:
        return {"name": self.text, "slices": self.count, "chips": self.chips}


def parse_topology(text: str, slices: int = 1) -> Slices | gpus.Hosts:
    """`v5e:16x16`, `h100:8` -> the slices or hosts it names. UserError, with what there is, for any other."""
    name, _, sides = text.partition(":")
    if name in gpus.GPUS:
        if slices != 1:
            raise UserError(f"--slices={slices} is for TPUs; for GPUs give their number, {name}:16")
        return gpus.parse(text)
    if name not in CHIPS:
        raise UserError(
            f"--topology={text}: no chip {name!r}; there are {', '.join(CHIPS)}, with a shape: {EXAMPLES}; "
            f"and {', '.join(gpus.GPUS)}, with a number: {gpus.EXAMPLES}"
        )
    chip = CHIPS[name]
    plane = "x".join("ABC"[: chip.dimensions])
    if not re.fullmatch(r"\d+(x\d+)*", sides) or len(sides.split("x")) != chip.dimensions:
        raise UserError(
            f"--topology={text}: expected {name}:{plane}, the sides of the slice in chips, like {EXAMPLES}"
        )
    shape = tuple(int(side) for side in sides.split("x"))
    if sides not in chip.one_host and any(side % 2 or not side for side in shape[:2]):
        alone = f", or {' '.join(chip.one_host)}" if chip.one_host else ""
        raise UserError(
            f"--topology={text}: the first two sides of a slice of {name} are even, hosts having 2x2 chips"
            f"{alone}; like {EXAMPLES}"
        )
    if not 0 < math.prod(shape) <= chip.largest:
        raise UserError(
            f"--topology={text}: {math.prod(shape):,} chips, and a slice of {name} has at most "
            f"{chip.largest:,}; take more --slices"
        )
    if slices < 1:
        raise UserError(f"--slices={slices} must be at least 1")
    return Slices(chip, shape, slices)
