"""Parses a compiled program's HLO text into computations of instructions, with execution counts."""

import dataclasses
import math
import re
from collections.abc import Iterator

_BYTES = {
    "pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "s32": 4, "u32": 4, "s64": 8,
    "u64": 8, "bf16": 2, "f16": 2, "f32": 4, "f64": 8, "c64": 8, "c128": 16,
}  # fmt: skip

# These continue or end an asynchronous operation; only its start counts as a call of the computation.
_ENDS = ("async-done", "async-update")

_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_NAME = re.compile(r"%([\w.\-]+)")
_ASSIGNMENT = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r" ?([a-z][\w\-]*)\(")


@dataclasses.dataclass(frozen=True)
class Array:
    """One array of a shape; `space` is the memory space on TPU: 0 is HBM, 1 the core's VMEM."""

    dtype: str
    dims: tuple[int, ...]
    space: int = 0

    @property
    def size(self) -> int:
        """Returns the number of elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> float:
        """Returns the size in bytes, without the padding of tiles."""
        return self.size * _BYTES.get(self.dtype, 1 if self.dtype.startswith("f8") else 0)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """`name = arrays opcode(operands), attributes`.

    `attributes` is the rest of the line, unchanged. For instructions without operands it ends with the
    opcode and the value in its parentheses, like ` constant(12)`.
    """

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str

    def called(self, attribute: str) -> str | None:
        """Returns the computation that an attribute such as `calls=` or `body=` names, or None."""
        found = re.search(rf"\b{attribute}=%?([\w.\-]+)", self.attributes)
        return found[1] if found else None

    @property
    def target(self) -> str:
        """Returns the target of a custom call, "" for other instructions."""
        found = re.search(r'custom_call_target="([^"]*)"', self.attributes)
        return found[1] if found else ""

    @property
    def estimated_cycles(self) -> int | None:
        """Returns the TPU compiler's estimate of the duration in cycles, or None."""
        found = re.search(r'"estimated_cycles":"(\d+)"', self.attributes)
        return int(found[1]) if found else None


Computation = dict[str, Instruction]


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program: its computations by name, and the name of the entry computation."""

    computations: dict[str, Computation]
    entry: str

    def inside(self, instruction: Instruction, attribute: str = "calls") -> Computation:
        """Returns the computation that an attribute of an instruction names; empty if it names none."""
        return self.computations.get(instruction.called(attribute) or "", {})


@dataclasses.dataclass(frozen=True)
class Visit:
    """An instruction, its computation, and its number of runs in one execution of the program."""

    computation: Computation
    instruction: Instruction
    times: int
    fused: bool  # whether it is inside a fusion or an asynchronous operation, which has a cost as a whole
    offloaded: bool = False  # whether a SparseCore runs it, while the chip computes

    def operand_arrays(self) -> list[Array]:
        """Returns the arrays of all operands."""
        known = (self.computation.get(name) for name in self.instruction.operands)
        return [array for operand in known if operand is not None for array in operand.arrays]


def parse(text: str) -> Module:
    """Returns the module in `compiled.as_text()`."""
    computations: dict[str, Computation] = {}
    current: Computation | None = None
    entry = ""
    for line in _whole_lines(text):
        head = _HEAD.match(line)
        if head:
            current = computations.setdefault(head[2], {})
            entry = head[2] if head[1] else entry
        elif line == "}":
            current = None
        elif current is not None and (instruction := _parse_line(line)) is not None:
            current[instruction.name] = instruction
    return Module(computations, entry)


def _whole_lines(text: str) -> Iterator[str]:
    """Yields logical lines: the metadata of Pallas kernels spans several lines, without indentation."""
    pending: list[str] = []
    for line in text.splitlines():
        if not pending or line == "}" or _HEAD.match(line) or _ASSIGNMENT.match(line):
            yield "".join(pending)
            pending = []
        pending.append(line)
    yield "".join(pending)


def _parse_line(line: str) -> Instruction | None:
    assignment = _ASSIGNMENT.match(line)
    if assignment is None:
        return None
    rest = line[assignment.end() :]
    shape_end = _closing(rest, 0) + 1 if rest.startswith("(") else 0
    opcode = _OPCODE.search(rest, shape_end)
    if opcode is None:
        return None
    end = _closing(rest, opcode.end() - 1)
    inside = rest[opcode.end() : end]
    # Constants and parameters have a value or a number in the parentheses, not names.
    operands = () if opcode[1] in ("constant", "parameter") else tuple(_NAME.findall(inside))
    kept = "" if operands else f" {opcode[1]}({inside})"
    return Instruction(
        assignment[1], opcode[1], _arrays(rest[: opcode.start()]), operands, rest[end + 1 :] + kept
    )


def _closing(text: str, start: int) -> int:
    """Returns the index of the parenthesis that closes the one at `start`."""
    depth = 0
    for index in range(start, len(text)):
        if text[index] == "(":
            depth += 1
        elif text[index] == ")":
            depth -= 1
            if depth == 0:
                return index
    return len(text)


def _arrays(shape: str) -> tuple[Array, ...]:
    arrays = []
    for dtype, dims, layout in _ARRAY.findall(shape):
        space = re.search(r"S\((\d+)\)", layout)
        sizes = tuple(int(size.lstrip("<=")) for size in dims.split(",") if size)
        arrays.append(Array(dtype, sizes, int(space[1]) if space else 0))
    return tuple(arrays)


def trip_count(module: Module, loop: Instruction) -> int | None:
    """Returns the trip count of a while loop, or None if it is not known.

    It is the compiler's annotation if it exists, and otherwise the constant in the loop's condition, because
    loops made by `jax.lax.scan` count from 0 in steps of 1.
    """
    known = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes)
    if known:
        return int(known[1])
    condition = module.inside(loop, "condition")
    bodies = [condition, *map(module.inside, condition.values())]
    constants = [
        int(value[1])
        for body in bodies
        for instruction in body.values()
        if instruction.opcode == "constant"
        and instruction.arrays[0].dims == ()
        and (value := re.search(r" constant\((\d+)\)$", instruction.attributes))
    ]
    return max(constants, default=None)


def walk(module: Module) -> Iterator[Visit]:
    """Yields every instruction that an execution may reach, including those inside fusions.

    All branches of a conditional count; a loop whose trip count is not known counts once.
    """
    yield from _walk(module, module.entry, 1, False)


def _walk(module: Module, name: str, times: int, fused: bool, offloaded: bool = False) -> Iterator[Visit]:
    computation = module.computations.get(name, {})
    for instruction in computation.values():
        yield Visit(computation, instruction, times, fused, offloaded)
        if instruction.opcode == "while":
            trips = trip_count(module, instruction) or 1
            for attribute in ("condition", "body"):
                yield from _walk(module, instruction.called(attribute) or "", times * trips, fused)
        elif instruction.opcode == "conditional":
            for branch in _branches(instruction):
                yield from _walk(module, branch, times, fused)
        elif instruction.opcode == "call":
            yield from _walk(module, instruction.called("to_apply") or "", times, fused)
        elif instruction.opcode == "call-start":
            yield from _walk(module, instruction.called("to_apply") or "", times, True, offloaded=True)
        elif instruction.opcode not in _ENDS and (called := instruction.called("calls")):
            yield from _walk(module, called, times, True)


def _branches(instruction: Instruction) -> list[str]:
    listed = re.search(r"branch_computations=\{([^}]*)\}", instruction.attributes)
    if listed:
        return _NAME.findall(listed[1])
    named = (instruction.called(f"{which}_computation") for which in ("true", "false"))
    return [name for name in named if name]
