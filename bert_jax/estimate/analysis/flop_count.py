"""FLOPs of the matrix products that a chip executes, counted in the compiled program."""

from __future__ import annotations

import math
import re

import numpy as np

from bert_jax.estimate.analysis.hlo import Array, Instruction, Module, Visit, walk
from bert_jax.kernels.gpu.attention import FLOPS_SCOPE

# Targets of calls of Pallas kernels that Triton compiles, in jax up to 0.10.2 and later.
TRITON_CALLS = ("__gpu$xla.gpu.triton", "triton_kernel_call_ffi")
# Number of [length, length] products in an attention kernel: two forward, and five backward, where the scores
# are computed again (Dao et al. 2022).
ATTENTION_FORWARD, ATTENTION_BACKWARD = 2, 5


def matrix_flops(module: Module) -> float:
    """Returns the multiplications and additions of all products that one chip executes.

    This includes products that the partitioner repeats on several chips, products of rematerialization, and
    calls of cuBLAS and of cuDNN or Triton attention. The contents of other custom calls are not counted.
    """
    return sum(visit.times * instruction_flops(visit) for visit in walk(module))


def instruction_flops(visit: Visit) -> float:
    """Returns the FLOPs of one dot, convolution, or call of cuBLAS or attention on a GPU; 0 for the rest."""
    instruction = visit.instruction
    if instruction.opcode == "custom-call":
        return _library_flops(visit, instruction.target)
    if instruction.opcode not in ("dot", "convolution"):
        return 0.0
    left, right = (visit.computation[name].arrays[0] for name in instruction.operands[:2])
    output = instruction.arrays[0]
    if instruction.opcode == "dot":
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
        sizes = [left.dims[int(axis)] for axis in contracted[1].split(",") if axis] if contracted else []
        return 2.0 * output.size * math.prod(sizes)
    return _convolution_flops(left, right, output, instruction.attributes)


def _library_flops(visit: Visit, target: str) -> float:
    instruction, output = visit.instruction, visit.instruction.arrays[0]
    if target.startswith("__cublas$"):
        left = visit.computation[instruction.operands[0]].arrays[0]
        contracted = _backend_integers(instruction, "lhs_contracting_dimensions")
        return 2.0 * output.size * math.prod(left.dims[axis] for axis in contracted)
    if target.startswith("__cudnn$fmha"):
        products = ATTENTION_BACKWARD if target.endswith("Backward") else ATTENTION_FORWARD
        scores = math.prod(_backend_integers(instruction, "dimensions"))
        return 2.0 * products * scores * output.dims[-1]
    if target in TRITON_CALLS:
        named = re.search(rf"/{FLOPS_SCOPE}(\d+)/", instruction.op_name)
        return float(named[1]) if named else 0.0
    return 0.0


def _backend_integers(instruction: Instruction, name: str) -> list[int]:
    """Returns the first list with this name in the backend settings of an instruction."""
    found = re.search(rf'"{name}": ?\[([^\]]*)\]', instruction.attributes)
    return [int(number) for number in re.findall(r"\d+", found[1])] if found else []


def _convolution_flops(left: Array, right: Array, output: Array, attributes: str) -> float:
    """Returns the FLOPs of a convolution.

    The TPU compiler writes every product as a convolution, and the batch of a batched product as a spatial
    dimension whose window lies almost entirely in padding: only pairs that meet an element are counted.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", attributes)
    assert labels is not None, attributes
    inputs, kernel, outputs = labels.groups()
    window = re.search(r"window=\{([^}]*)\}", attributes)
    settings = dict(part.split("=") for part in window[1].split()) if window else {}
    pairs = 1
    for axis in (label for label in inputs if label.isdigit()):
        index = int(axis)

        def setting(name: str, default: str, index: int = index) -> str:
            return settings[name].split("x")[index] if name in settings else default

        low, _, _ = setting("pad", "0_0").partition("_")
        pairs *= _meeting(
            left.dims[inputs.index(axis)],
            right.dims[kernel.index(axis)],
            output.dims[outputs.index(axis)],
            stride=int(setting("stride", "1")),
            low=int(low),
            input_dilation=int(setting("lhs_dilate", "1")),
            kernel_dilation=int(setting("rhs_dilate", "1")),
        )
    batch = output.dims[outputs.index("b")]
    features = output.dims[outputs.index("f")]
    per_group = right.dims[kernel.index("i")]
    groups = re.search(r"batch_group_count=(\d+)", attributes)
    return 2.0 * batch * features * per_group * pairs / (int(groups[1]) if groups else 1)


def _meeting(
    size: int, kernel: int, output: int, *, stride: int, low: int, input_dilation: int, kernel_dilation: int
) -> int:
    """Returns the number of pairs (output position, kernel position) of one dimension that meet an element.

    Pairs that meet padding, or the gaps of a dilated input, are not counted.
    """
    positions = np.arange(output)[:, None] * stride - low + np.arange(kernel) * kernel_dilation
    inside = (positions >= 0) & (positions < (size - 1) * input_dilation + 1)
    return int(np.count_nonzero(inside & (positions % input_dilation == 0)))
