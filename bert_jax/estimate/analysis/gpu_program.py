"""What a program compiled for a GPU does: products, and bytes between its memory and its multiprocessors."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from bert_jax.estimate.analysis.flop_count import instruction_flops
from bert_jax.estimate.analysis.hlo import Instruction, Module, Visit, trip_count, walk
from bert_jax.estimate.analysis.timing import FREE, hbm_bytes, is_collective

# The kinds of operations, for people.
CUBLAS, CUDNN = "cuBLAS products", "cuDNN attention"
TRITON_PRODUCTS, TRITON = "Triton products", "Triton kernels"
FUSIONS, SLICES, OTHERS = "loop and reduction kernels", "slices and copies", "other operations"

_COPIES = ("copy", "copy-start", "slice", "slice-start", "dynamic-slice", "dynamic-update-slice", "transpose")


@dataclasses.dataclass
class Work:
    """Of one GPU in one step.

    Attributes:
        operations: how many kernels and calls run.
        flops: of products.
        bytes: read and written, as if nothing stayed in the cache from one operation to the next.
    """

    operations: int = 0
    flops: float = 0.0
    bytes: float = 0.0


@dataclasses.dataclass(frozen=True)
class Program:
    """What one GPU does in one step, without collectives."""

    kinds: dict[str, Work]  # the operations of each kind together
    each: list[Work]  # of the program's text; those in a loop with all their turns
    unknown_loops: int  # whose count could not be read; counted once

    @property
    def flops(self) -> float:
        return sum(work.flops for work in self.kinds.values())

    @property
    def bytes(self) -> float:
        return sum(work.bytes for work in self.kinds.values())

    def seconds_by_operation(self, peak_flops: float, bandwidth: float) -> float:
        """Of all operations one after the other, each as long as its products or its bytes take."""
        return sum(max(work.flops / peak_flops, work.bytes / bandwidth) for work in self.each)


def read(module: Module) -> Program:
    """Adds up a program. Collectives are left out, see `collectives`."""
    kinds: dict[str, Work] = {}
    each: list[Work] = []
    unknown = 0
    for visits in _operations(module):
        visit = visits[0]
        if visit.instruction.opcode == "while":
            unknown += trip_count(module, visit.instruction) is None
        if visit.instruction.opcode in FREE or is_collective(visit.instruction):
            continue
        flops = sum(part.times * instruction_flops(part) for part in visits)
        kind = _kind(module, visit.instruction, flops)
        work = Work(visit.times, flops, visit.times * _bytes(module, visit, kind))
        each.append(work)
        total = kinds.setdefault(kind, Work())
        total.operations += work.operations
        total.flops += work.flops
        total.bytes += work.bytes
    return Program(kinds, each, unknown)


def _operations(module: Module) -> Iterator[list[Visit]]:
    """Each operation with what is fused into it."""
    together: list[Visit] = []
    for visit in walk(module):
        if not visit.fused and together:
            yield together
            together = []
        together.append(visit)
    yield together


def _bytes(module: Module, visit: Visit, kind: str) -> float:
    total = hbm_bytes(module, visit)
    if kind == CUBLAS:
        # Its last result is room for partial sums, of which the program does not say how much it takes.
        total -= sum(array.bytes for array in visit.instruction.arrays[1:] if array.dtype == "s8")
    return total


def _kind(module: Module, instruction: Instruction, flops: float) -> str:
    if instruction.target:
        library = instruction.target.partition("$")[0]
        return {"__cublas": CUBLAS, "__cudnn": CUDNN}.get(library, OTHERS)
    if instruction.opcode in _COPIES:
        return SLICES
    if instruction.opcode != "fusion":
        return OTHERS
    inside = module.computations.get(instruction.called("calls") or "", {}).values()
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
