"""Compile-only TPU devices on a machine without a TPU, from libtpu and jax's topologies."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from typing import Any

from etils import epy

from bert_jax.errors import UserError, install_hint
from bert_jax.estimate.chips.tpus import Slices
from bert_jax.io.wording import first_line

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
