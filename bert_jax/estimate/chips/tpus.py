"""TPU chips that a step can be estimated for, from their public data sheets."""

from __future__ import annotations

import dataclasses
import math
import re

from bert_jax.errors import UserError
from bert_jax.estimate.chips import gpus
from bert_jax.training.metrics import peaks


@dataclasses.dataclass(frozen=True)
class Chip:
    """One TPU chip as jax sees it.

    Memory, peak, bandwidths and torus are from the specification tables at
    https://docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e}, read in November 2026. The one-way rate of a link
    is the ICI bandwidth per chip, which the tables count in both directions, divided by twice the number of
    ports (v4: 50 GB/s in Jouppi et al. 2023, arXiv 2304.01433). The DCN rate is that of a pod divided by its
    chips; v4's page gives none, so v5p's is used. Clock rates are those at which the matrix units reach the
    peak; Jouppi et al. give v4's, too.
    """

    name: str
    dimensions: int  # of the torus
    largest: int  # chips in a slice
    hbm_bytes: float
    peak_flops: float  # bfloat16 FLOP/s, and float32 at default precision
    hbm_bandwidth: float  # bytes per second
    link_bandwidth: float  # bytes per second along one ICI link, one way; there are two links per dimension
    dcn_bandwidth: float  # bytes per second to other slices
    clock: float  # cycles per second
    matrix_side: int  # side of the matrix units: a shorter contraction takes as long as one of this length
    wraps_at: int  # shortest side of a slice along which the torus is closed
    cores: int  # that work as one device
    one_host: tuple[str, ...]  # shapes that fit a single host and are smaller than the usual 2x2


_GIB = 2.0**30


def _peak(name: str) -> float:
    return peaks.PEAKS[f"TPU {name}"].bfloat16


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", 3, 4096, 32 * _GIB, _peak("v4"), 1228e9, 50e9, 6.25e9, 1.05e9, 128, 4, 2, ()),
        Chip("v5e", 2, 256, 16 * _GIB, _peak("v5e"), 819e9, 50e9, 3.125e9, 1.5e9, 128, 16, 1, ("1x1",)),
        Chip("v5p", 3, 6144, 95 * _GIB, _peak("v5p"), 2765e9, 100e9, 6.25e9, 1.75e9, 128, 4, 2, ()),
        Chip("v6e", 2, 256, 32 * _GIB, _peak("v6e"), 1638e9, 100e9, 12.5e9, 1.75e9, 256, 16, 1, ("1x1",)),
    )
}

EXAMPLES = "v4:8x8x8, v5e:4x4, v5p:4x4x4, v6e:16x16"


@dataclasses.dataclass(frozen=True)
class Slices:
    """One or more slices of the same shape."""

    chip: Chip
    shape: tuple[int, ...]
    count: int = 1

    @property
    def chips(self) -> int:
        """Returns the number of chips in all slices."""
        return math.prod(self.shape) * self.count

    @property
    def text(self) -> str:
        """Returns the shape of a slice as --topology names it, such as `v5e:4x4`."""
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def description(self) -> dict[str, object]:
        """Returns the slices as they are described in an estimate."""
        return {"name": self.text, "slices": self.count, "chips": self.chips}


def parse_topology(text: str, slices: int = 1) -> Slices | gpus.Hosts:
    """Returns the slices or hosts that a text such as `v5e:16x16` or `h100:8` names.

    Raises:
        UserError: the text is invalid; the message lists what is available.
    """
    name, _, sides = text.partition(":")
    if name in gpus.GPUS:
        if slices != 1:
            raise UserError(f"--slices={slices} is for TPUs; for GPUs give their number, such as {name}:16")
        return gpus.parse(text)
    if name not in CHIPS:
        raise UserError(
            f"--topology={text}: unknown chip {name!r}; expected {', '.join(CHIPS)} with a shape (such as "
            f"{EXAMPLES}), or {', '.join(gpus.GPUS)} with a number (such as {gpus.EXAMPLES})"
        )
    chip = CHIPS[name]
    plane = "x".join("ABC"[: chip.dimensions])
    if not re.fullmatch(r"\d+(x\d+)*", sides) or len(sides.split("x")) != chip.dimensions:
        raise UserError(
            f"--topology={text}: expected {name}:{plane}, the sides of the slice in chips, such as {EXAMPLES}"
        )
    shape = tuple(int(side) for side in sides.split("x"))
    if sides not in chip.one_host and any(side % 2 or not side for side in shape[:2]):
        alone = f" (or {' '.join(chip.one_host)} alone)" if chip.one_host else ""
        raise UserError(
            f"--topology={text}: the first two sides of a slice of {name} must be even, since a host has 2x2 "
            f"chips{alone}; examples: {EXAMPLES}"
        )
    if not 0 < math.prod(shape) <= chip.largest:
        raise UserError(
            f"--topology={text}: {math.prod(shape):,} chips, but a slice of {name} has at most "
            f"{chip.largest:,}; use several --slices"
        )
    if slices < 1:
        raise UserError(f"--slices={slices} must be at least 1")
    return Slices(chip, shape, slices)
