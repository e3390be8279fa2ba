"""Cycles of the Pallas kernels of a compiled program, by the TPU compiler's own schedule of each.

The compiler's estimates of a program have none for Pallas kernels. It writes the schedule of a program into
files, bundle by bundle, if options say so when it is loaded. A process therefore compiles each kernel of a
program once more, alone, and counts the bundles of one step of its grid.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from etils import epy

from bert_jax.estimate import tpus
from bert_jax.estimate.hlo import Module, walk
from bert_jax.estimate.timing import KERNEL, kernel_code
from bert_jax.io import files, scratch

with epy.lazy_imports():
    import jax
    import jax.numpy as jnp
    from jax.experimental.mosaic import dialects
    from jaxlib.mlir import ir

# The bundles after registers are allocated. Later the compiler folds empty ones, in which all units wait for
# a result, into the bundle before. Within 10% of its analysis of cycles on v6e, the only chip that has one.
_SCHEDULE = "schedule-analysis_packed-bundles-post-ra.txt"
_BUNDLES = re.compile(r"total scheduled bundles:\s+(\d+)")
_OPTIONS = "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=post-ra"
_SECONDS = 600
_CONFIG = "custom_call_config"
_MEMORY = "scoped_memory_configs"  # how much vector memory the kernel may use
_CALL = "ffi_call"  # the name of the operation in a program of `_compile`

_GRID = re.compile(r"iteration_bounds = array<i64: ([\d, ]+)>")
_PARALLEL = re.compile(r"dimension_semantics = \[([^\]]*)\]")
_DTYPES = {
    "s32": "int32",
    "u32": "uint32",
    "f32": "float32",
    "bf16": "bfloat16",
    "s8": "int8",
    "pred": "bool",
}


def cycles(
    module: Module, slices: tpus.Slices, log: Callable[[str], None] = lambda line: None
) -> dict[str, float]:
    """Returns the cycles that one execution of each Pallas kernel of a program takes, by its code.

    They contain neither the transfers between HBM and vector memory, which overlap with the computation, nor
    the first and the last of them. Blocks that a kernel skips at run time count as if they were computed, and
    all of a step with a loop as if it were inside the loop. Kernels with loops of unknown length are missing
    in the result, and so are all kernels if the compiler gives no schedule.

    Args:
        module: the compiled program.
        slices: the hardware it was compiled for.
        log: called with one line if the compiler gives no schedule.
    """
    kernels: dict[str, dict[str, Any]] = {}
    for visit in walk(module):
        code, settings = kernel_code(visit.instruction), visit.instruction.settings
        if code and code not in kernels:
            kernels[code] = {
                "settings": {name: settings[name] for name in (_CONFIG, _MEMORY) if name in settings},
                "operands": [(array.dtype, array.dims) for array in visit.operand_arrays()],
                "results": [(array.dtype, array.dims) for array in visit.instruction.arrays],
            }
    if not kernels:
        return {}
    with scratch.directory() as folder:
        environment = os.environ | {"LIBTPU_INIT_ARGS": _OPTIONS.format(folder)}
        command = [sys.executable, "-m", __name__, slices.text, folder]
        try:
            done = subprocess.run(
                command, input=json.dumps(list(kernels.values())), capture_output=True, text=True,
                env=environment, timeout=_SECONDS, check=True,
            )  # fmt: skip
        except subprocess.SubprocessError as error:
            reason = (str(getattr(error, "stderr", "") or error).strip().splitlines() or [""])[-1]
            log(f"the compiler gives no schedule of Pallas kernels: {reason}")
            return {}
    numbers = json.loads(done.stdout.splitlines()[-1])
    return {code: value for code, value in zip(kernels, numbers, strict=True) if value is not None}


def executions(code: str, cores: int) -> tuple[str, float]:
    """Returns the text of a kernel from `kernel_code`, and how often its innermost block is executed.

    It is counted on the busiest of a chip's cores; infinite if the length of a loop is unknown.
    """
    context = ir.Context()
    context.allow_unregistered_dialects = True
    dialects.tpu.register_dialect(context)
    with context, ir.Location.unknown():
        operation = ir.Module.parse(base64.b64decode(code)).operation
        text, turns = str(operation.get_asm()), _turns(operation)
    bounds, semantics = _GRID.search(text), _PARALLEL.search(text)
    grid = [int(size) for size in bounds[1].split(",")] if bounds else []
    parallel = ["parallel" in part for part in semantics[1].split(",")] if semantics else []
    if any(parallel):
        first = parallel.index(True)
        grid[first] = math.ceil(grid[first] / cores)
    return text, turns * math.prod(grid)


def _turns(operation: Any) -> float:
    """Returns how often the innermost loop inside an operation is executed."""
    inside = (child.operation for region in operation.regions for block in region for child in block)
    turns = max(map(_turns, inside), default=1)
    if operation.name.endswith("scf.for"):
        first, end, step = (_constant(operand) for operand in list(operation.operands)[:3])
        length = (end - first) / step
        turns *= math.ceil(length) if math.isfinite(length) else math.inf
    return math.inf if operation.name.endswith("scf.while") else turns


def _constant(value: Any) -> float:
    """Returns the value of an integer that is a constant or a sum of constants; NaN of any other."""
    if isinstance(value.owner, ir.Block):
        return math.nan
    owner = value.owner.operation
    if owner.name.endswith("arith.constant"):
        return float(ir.IntegerAttr(owner.attributes["value"]).value)
    if owner.name.endswith("arith.addi"):
        return sum(map(_constant, owner.operands))
    return math.nan


def bundles(folder: str, operation: str) -> int:
    """Returns the bundles in the compiler's schedule of an operation; 0 if there is none.

    Args:
        folder: the folder with the compiler's files.
        operation: the start of the operation's name.
    """
    for name in os.listdir(folder):
        if f"-{operation}" in name and name.endswith(_SCHEDULE):
            return int(_BUNDLES.findall(files.read_text(os.path.join(folder, name)))[0])
    return 0


def _main(topology: str, folder: str) -> None:
    """Reads the kernels of a program from standard input, and writes a list of their cycles."""
    tpus.prepare()
    slices = tpus.parse_topology(topology)
    assert isinstance(slices, tpus.Slices), topology
    place = jax.sharding.SingleDeviceSharding(tpus.devices(slices)[0])
    known: dict[str, float | None] = {}
    numbers = []
    for kernel in json.load(sys.stdin):
        text, count = executions(kernel["settings"][_CONFIG]["body"], slices.chip.cores)
        if text not in known:
            known[text] = None
            if math.isfinite(count):
                for name in os.listdir(folder):
                    os.unlink(os.path.join(folder, name))
                _compile(kernel, place)
                known[text] = bundles(folder, _CALL) * count or None
        numbers.append(known[text])
    print(json.dumps(numbers))


def _compile(kernel: dict[str, Any], place: Any) -> None:
    operands, results = (
        [jax.ShapeDtypeStruct(dims, jnp.dtype(_DTYPES[name]), sharding=place) for name, dims in kernel[side]]
        for side in ("operands", "results")
    )
    call = jax.ffi.ffi_call(
        KERNEL, results, custom_call_api_version=1, legacy_backend_config=json.dumps(kernel["settings"])
    )
    jax.jit(call).lower(*operands).compile()


if __name__ == "__main__":
    _main(*sys.argv[1:])
