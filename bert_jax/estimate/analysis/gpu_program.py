"""Matrix products and memory traffic of a program that was compiled for a GPU."""

from __future__ import annotations

import dataclasses
import re

from bert_jax.estimate.analysis.costliest import Cost
from bert_jax.estimate.analysis.flop_count import TRITON_CALLS, instruction_flops
from bert_jax.estimate.analysis.hlo import Instruction, Module, Visit, operations, trip_count
from bert_jax.estimate.analysis.timing import FREE, hbm_bytes, is_collective
from bert_jax.kernels import residual

# Kinds of operations, as they are shown to users.
CUBLAS, CUDNN, TRITON_ATTENTION = "cuBLAS products", "cuDNN attention", "Triton attention"
TRITON_NORMS = "Triton residuals and norms"
TRITON_PRODUCTS, TRITON = "Triton products", "Triton kernels"
FUSIONS, SLICES, OTHERS = "loop and reduction kernels", "slices and copies", "other operations"

_COPIES = ("copy", "copy-start", "slice", "slice-start", "dynamic-slice", "dynamic-update-slice", "transpose")


@dataclasses.dataclass
class Work:
    """Work of one GPU in one step.

    Attributes:
        operations: number of kernels and library calls that run.
        flops: FLOPs of matrix products.
        bytes: bytes read and written, as if nothing stayed in the cache between operations.
    """

    operations: int = 0
    flops: float = 0.0
    bytes: float = 0.0


@dataclasses.dataclass(frozen=True)
class Program:
    """Work of one GPU in one step, without collectives."""

    kinds: dict[str, Work]  # total of each kind of operation
    # Each operation in the program's text, with its kind and all iterations of the loop it is in.
    each: list[tuple[Instruction, str, Work]]
    unknown_loops: int  # number of loops whose trip count could not be read; they are counted once

    @property
    def flops(self) -> float:
        """Returns the FLOPs of all operations."""
        return sum(work.flops for work in self.kinds.values())

    @property
    def bytes(self) -> float:
        """Returns the bytes that all operations read and write."""
        return sum(work.bytes for work in self.kinds.values())

    def costs(self, peak_flops: float, bandwidth: float) -> list[Cost]:
        """Returns all operations, the time of each limited by its FLOPs or its bytes."""
        return [
            Cost(
                instruction,
                kind,
                work.operations,
                max(work.flops / peak_flops, work.bytes / bandwidth),
                work.flops,
                work.bytes,
            )
            for instruction, kind, work in self.each
        ]


def read(module: Module) -> Program:
    """Adds up the work of a program without its collectives, see `collectives` for these."""
    kinds: dict[str, Work] = {}
    each: list[tuple[Instruction, str, Work]] = []
    unknown = 0
    for visits in operations(module):
        visit = visits[0]
        if visit.instruction.opcode == "while":
            unknown += trip_count(module, visit.instruction) is None
        if visit.instruction.opcode in FREE or is_collective(visit.instruction):
            continue
        flops = sum(part.times * instruction_flops(part) for part in visits)
        kind = _kind(module, visit.instruction, flops)
        work = Work(visit.times, flops, visit.times * _bytes(module, visit, kind))
        each.append((visit.instruction, kind, work))
        total = kinds.setdefault(kind, Work())
        total.operations += work.operations
        total.flops += work.flops
        total.bytes += work.bytes
    return Program(kinds, each, unknown)


def _bytes(module: Module, visit: Visit, kind: str) -> float:
    total = hbm_bytes(module, visit)
    if kind == CUBLAS:
        # Its last result is a workspace; the program does not say how much of it is used.
        total -= sum(array.bytes for array in visit.instruction.arrays[1:] if array.dtype == "s8")
    return total


def _kind(module: Module, instruction: Instruction, flops: float) -> str:
    if instruction.target in TRITON_CALLS:
        return TRITON_NORMS if f"/{residual.SCOPE}/" in instruction.op_name else TRITON_ATTENTION
    if instruction.target:
        library = instruction.target.partition("$")[0]
        return {"__cublas": CUBLAS, "__cudnn": CUDNN}.get(library, OTHERS)
    if instruction.opcode in _COPIES:
        return SLICES
    if instruction.opcode != "fusion":
        return OTHERS
    inside = module.inside(instruction).values()
    called = {part.target for part in inside if part.target}
    if any(target.startswith("__cublas$") for target in called):
        return CUBLAS
    written = re.search(r'"kind":"(__triton[^"]*)"', instruction.attributes)
    if written:
        return TRITON_PRODUCTS if flops else TRITON
    if '"name":"dynamic_slice_fusion"' in instruction.attributes or all(
        part.opcode in (*_COPIES, *FREE) for part in inside
    ):
        return SLICES
    return FUSIONS
