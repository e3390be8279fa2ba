"""Digests of lowered programs: the same for two programs that do the same operations on the same values.

A digest is that of the graph of operations: each result has the digest of its operation, its attributes and
the digests of its operands. Names of functions and modules, locations in the source, the order of independent
operations, unused results, and where a program is divided into functions do not matter. Constants, types,
shardings, donated buffers and the bodies of Pallas kernels do.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import json
from typing import Any

from jax._src.interpreters import mlir
from jax._src.lib import tpu
from jax._src.lib.mlir import ir

# Attributes that only name something; nothing that is computed depends on them.
_NAMES = frozenset({"sym_name", "sym_visibility", "jax.result_info", "kernel_name"})
_CALLS = frozenset({"func.call", "call"})
_RETURNS = frozenset({"func.return", "stablehlo.return", "sdy.return"})
_LENGTH = 16  # hexadecimal digits


def digest(module: ir.Module) -> str:
    """Returns "DIGEST OPERATIONS" of a StableHLO module: 16 hexadecimal digits and the number of its distinct
    operations."""
    with module.context:
        graph = _Graph(module)
        return f"{graph.of_main()[:_LENGTH]} {len(graph.operations)}"


def of_text(text: str) -> str:
    """Returns the digest of a text."""
    return _hash(text)[:_LENGTH]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()


@dataclasses.dataclass
class _Operation:
    name: str
    callee: str  # of a call
    attributes: str
    operands: list[int]
    results: list[int]
    regions: list[list[_Block]]
    has_effect: bool


@dataclasses.dataclass
class _Block:
    arguments: list[int]
    types: str
    operations: list[_Operation]
    returned: list[int]


class _Graph:
    """The digests of everything that a module computes.

    Attributes:
        operations: the digests of the operations.
    """

    def __init__(self, module: ir.Module):
        self.operations: set[str] = set()
        self._values: dict[ir.Value, int] = {}
        self._numbers = itertools.count()
        self._texts: dict[Any, str] = {}
        self._blocks: dict[str, _Block] = {}
        self._calls: dict[tuple[Any, ...], list[str]] = {}
        self._functions, others = {}, []
        for operation in module.body.operations:
            if operation.operation.name == "func.func":
                self._functions[ir.StringAttr(operation.attributes["sym_name"]).value] = operation
            else:
                others.append(str(operation))
        self._header = [*sorted(others), self._attributes(module.operation)]

    def of_main(self) -> str:
        main = self._functions["main"]
        count = len(main.regions[0].blocks[0].arguments)
        results = self._call("main", [f"argument {i}" for i in range(count)], 0)
        interface = [str(main.attributes["function_type"])]
        for which in ("arg_attrs", "res_attrs"):
            interface.append(which)
            if which in main.attributes:
                interface += [self._dictionary(each) for each in ir.ArrayAttr(main.attributes[which])]
        return _hash(*self._header, *interface, *results)

    def _call(self, name: str, arguments: list[str], depth: int) -> list[str]:
        """The digests of what a function returns, as if its body stood in the place of the call."""
        key = (name, depth, *arguments)
        if key not in self._calls:
            if name not in self._blocks:
                self._blocks[name] = self._read_block(self._functions[name].regions[0].blocks[0])
            self._calls[key] = self._evaluate(self._blocks[name], arguments, {}, depth)
        return self._calls[key]

    def _evaluate(self, block: _Block, arguments: list[str], outer: dict[int, str], depth: int) -> list[str]:
        """The digests of what a block returns, and then of its operations that have a side effect."""
        values = outer | dict(zip(block.arguments, arguments, strict=True))
        effects = []
        for operation in block.operations:
            operands = [values[operand] for operand in operation.operands]
            if operation.callee:
                results = self._call(operation.callee, operands, depth)
                values.update(zip(operation.results, results, strict=False))
                effects += results[len(operation.results) :]
                continue
            regions = [self._evaluate_region(blocks, values, depth + 1) for blocks in operation.regions]
            found = _hash(operation.name, operation.attributes, *operands, "regions", *regions)
            self.operations.add(found)
            for number, result in enumerate(operation.results):
                values[result] = f"{found} {number}"
            if operation.has_effect:
                effects.append(found)
        return [values[value] for value in block.returned] + effects

    def _evaluate_region(self, blocks: list[_Block], values: dict[int, str], depth: int) -> str:
        parts = []
        for number, block in enumerate(blocks):
            # The depth tells the arguments from those of the regions around.
            arguments = [f"argument {i} of {number} at {depth}" for i in range(len(block.arguments))]
            parts.append(_hash(block.types, *self._evaluate(block, arguments, values, depth)))
        return _hash(*parts)

    def _read_block(self, block: ir.Block) -> _Block:
        arguments = [self._number(argument) for argument in block.arguments]
        operations, returned = [], []
        for operation in block.operations:
            operation = operation.operation
            operands = [self._values[operand] for operand in operation.operands]
            if operation.name in _RETURNS:
                returned = operands
                break
            types = [self._text(result.type) for result in operation.results]
            call = operation.name in _CALLS
            regions = [[self._read_block(each) for each in region.blocks] for region in operation.regions]
            operations.append(
                _Operation(
                    operation.name,
                    ir.FlatSymbolRefAttr(operation.attributes["callee"]).value if call else "",
                    "" if call else f"{self._attributes(operation)} -> {', '.join(types)}",
                    operands,
                    [self._number(result) for result in operation.results],
                    regions,
                    not types or _has_side_effect(operation),
                )
            )
        types = ", ".join(self._text(argument.type) for argument in block.arguments)
        return _Block(arguments, types, operations, returned)

    def _number(self, value: ir.Value) -> int:
        self._values[value] = next(self._numbers)
        return self._values[value]

    def _attributes(self, operation: ir.Operation) -> str:
        found = []
        for name in sorted(operation.attributes):
            if name in _NAMES:
                continue
            attribute = operation.attributes[name]
            read = _backend_config if name.endswith("backend_config") else self._resolve
            found.append(f"{name} = {read(attribute)}")
        return "; ".join(found)

    def _resolve(self, attribute: ir.Attribute) -> str:
        """An attribute's text, with what a function computes in the place of its name."""
        if isinstance(attribute, ir.FlatSymbolRefAttr) and attribute.value in self._functions:
            count = len(self._functions[attribute.value].regions[0].blocks[0].arguments)
            return _hash(*self._call(attribute.value, [f"argument {i}" for i in range(count)], 0))
        if isinstance(attribute, ir.ArrayAttr):
            return ", ".join(self._resolve(each) for each in attribute)
        return self._text(attribute)

    def _dictionary(self, attribute: ir.Attribute) -> str:
        found = {entry.name: str(entry.attr) for entry in ir.DictAttr(attribute)}
        return json.dumps({name: found[name] for name in sorted(found) if name not in _NAMES})

    def _text(self, thing: ir.Type | ir.Attribute) -> str:
        if thing not in self._texts:
            self._texts[thing] = str(thing)
        return self._texts[thing]


def _has_side_effect(operation: ir.Operation) -> bool:
    attributes = operation.attributes
    return "has_side_effect" in attributes and ir.BoolAttr(attributes["has_side_effect"]).value


def _backend_config(attribute: ir.Attribute) -> str:
    """The text of a custom call's settings, without the locations that the body of a Pallas kernel has."""
    if not isinstance(attribute, ir.StringAttr):
        return str(attribute)
    text = attribute.value
    try:
        fields = json.loads(text)
        body = fields["custom_call_config"]["body"]
    except (ValueError, KeyError, TypeError):  # another custom call
        return text
    fields["custom_call_config"]["body"] = _kernel_text(_parse(base64.b64decode(body), tpu))
    return json.dumps(fields, sort_keys=True)


def _kernel_text(kernel: ir.Module) -> str:
    """The text of a Pallas kernel, without its name and its locations in the source."""
    with kernel.context:
        for operation in (kernel.operation, *(each.operation for each in kernel.body.operations)):
            if "sym_name" in operation.attributes:
                operation.attributes["sym_name"] = ir.StringAttr.get("kernel")
        return kernel.operation.get_asm(enable_debug_info=False, print_generic_op_form=True)


def _parse(bytecode: bytes, dialect: Any) -> ir.Module:
    context = mlir.make_ir_context()
    dialect.register_dialect(context)
    context.allow_unregistered_dialects = True
    with context, ir.Location.unknown():
        return ir.Module.parse(bytecode)
