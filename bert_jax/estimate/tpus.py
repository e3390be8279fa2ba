"""TPUs that a step can be estimated for: data sheets, and devices to compile for on a machine without one."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import math
import os
import re
from typing import Any

from etils import epy

from bert_jax.errors import UserError, install_hint
from bert_jax.estimate import gpus
from bert_jax.io.wording import first_line
from bert_jax.training import flops

with epy.lazy_imports():
    from jax.experimental import topologies

# Without these variables libtpu looks for the chips of a Cloud TPU machine and queries its metadata server.
# They are read when jax is imported and when libtpu is loaded.
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


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
    return flops.PEAKS[f"TPU {name}"].bfloat16


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", 3, 4096, 32 * _GIB, _peak("v4"), 1228e9, 50e9, 6.25e9, 1.05e9, 128, 4, 2, ()),
        Chip("v5e", 2, 256, 16 * _GIB, _peak("v5e"), 819e9, 50e9, 3.125e9, 1.5e9, 128, 16, 1, ("1x1",)),
        Chip("v5p", 3, 6144, 95 * _GIB, _peak("v5p"), 2765e9, 100e9, 6.25e9, 1.75e9, 128, 4, 2, ()),
        Chip("v6e", 2, 256, 32 * _GIB, _peak("v6e"), 1638e9, 100e9, 12.5e9, 1.75e9, 256, 16, 1, ("1x1",)),
    )
}

EXAMPLES = "v4:8x8x8, v5e:4x4, v5p:4x4x4, v6e:16x16, v5e:1x1"


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
    if name in gpus.GPUS and slices == 1:
        return gpus.parse(text)
    chip = CHIPS.get(name)
    shape = tuple(map(int, sides.split("x"))) if re.fullmatch(r"\d+(x\d+)*", sides) else ()
    valid = chip is not None and len(shape) == chip.dimensions and 0 < math.prod(shape) <= chip.largest
    # The first two sides are even, because a host has 2x2 chips.
    if chip is None or not valid or (sides not in chip.one_host and any(side % 2 for side in shape[:2])):
        raise UserError(
            f"--topology={text}: expected a TPU and the sides of a slice in chips, the first two even "
            f"(such as {EXAMPLES}), or, without --slices, {', '.join(gpus.GPUS)} with a number (such as "
            f"{gpus.EXAMPLES})"
        )
    if slices < 1:
        raise UserError(f"--slices={slices} must be at least 1")
    return Slices(chip, shape, slices)


def prepare() -> None:
    """Sets the environment of this process; has to run before anything imports jax.

    Raises:
        UserError: libtpu is not installed.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            f"estimate needs the compiler for TPUs, libtpu, which is not installed: pip install "
            f"'{required()}' (or {install_hint('estimate')}); no TPU is needed"
        )
    os.environ.update(_ENVIRONMENT)


def required() -> str:
    """Returns the installed jax's requirement on libtpu."""
    for requirement in importlib.metadata.requires("jax") or ():
        if found := re.match(r"(libtpu[^;\s]*)", requirement):
            return found[1]
    return "libtpu"


def versions() -> dict[str, str]:
    """Returns the versions that an estimate depends on: another compiler makes another program."""
    return {name: importlib.metadata.version(name) for name in ("jax", "libtpu")}


def devices(slices: Slices) -> list[Any]:
    """Returns devices to compile for; they cannot run programs.

    Raises:
        UserError: libtpu does not know the slice shape.
    """
    options: dict[str, Any] = {}
    if slices.chip.cores > 1:  # one device, which is jax's default on such machines
        options["chip_config_name"] = "megacore"
    if slices.count > 1:
        options["num_slices"] = slices.count
    if "x".join(map(str, slices.shape)) in slices.chip.one_host:
        options["chips_per_host_bounds"] = (*slices.shape, 1)
    try:
        described = topologies.get_topology_desc(platform="tpu", topology_name=slices.text, **options)
    except Exception as error:  # jax passes on any error of libtpu
        reason = first_line(error)
        raise UserError(f"--topology={slices.text}: libtpu does not support this slice ({reason})") from error
    if len(described.devices) != slices.chips:
        raise UserError(
            f"--topology={slices.text}: libtpu describes {len(described.devices)} devices instead of "
            f"{slices.chips}; install {required()}"
        )
    return described.devices
