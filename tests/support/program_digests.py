"""Digests of lowered programs, equal for programs that apply the same operations to the same values.

The digest covers the graph of operations: the digest of a result is computed from its operation, its
attributes and the digests of its operands. It ignores names of functions and modules, source locations, the
order of independent operations, unused results, and the division into functions. It depends on constants,
types, shardings, donated buffers and the bodies of Pallas kernels.
"""

import base64
import functools
import hashlib
import json

from jax._src.interpreters import mlir
from jax._src.lib import tpu
from jax._src.lib.mlir import ir

# Attributes that are only names; they do not affect the computation.
_NAMES = frozenset({"sym_name", "sym_visibility", "jax.result_info", "kernel_name"})
_RETURNS = frozenset({"func.return", "stablehlo.return", "sdy.return"})
_LENGTH = 16  # hexadecimal digits


def digest(module):
    """Returns "DIGEST OPERATIONS" of a StableHLO module: 16 hexadecimal digits and the number of distinct
    operations."""
    with module.context:
        graph = _Graph(module)
        return f"{graph.of_main()[:_LENGTH]} {len(graph.operations)}"


def of_text(text):
    """Returns the digest of a text."""
    return _hash(text)[:_LENGTH]


def _hash(*parts):
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()


class _Graph:
    """The digests of all results of a module, and of its `operations`."""

    def __init__(self, module):
        self.operations = set()
        self._functions, others = {}, []
        for operation in module.body.operations:
            if operation.operation.name == "func.func":
                self._functions[ir.StringAttr(operation.attributes["sym_name"]).value] = operation
            else:
                others.append(str(operation))
        # Functions are called many times, and reading from the module is slow.
        self._call, self._text, self._describe = map(functools.cache, (self._call, str, self._describe))
        self._header = [*sorted(others), self._attributes(module.operation)]

    def of_main(self):
        main = self._functions["main"]
        arguments = tuple(f"argument {i}" for i in range(len(main.regions[0].blocks[0].arguments)))
        results = self._call("main", arguments, 0)
        interface = [str(main.attributes["function_type"])]
        for which in ("arg_attrs", "res_attrs"):
            interface.append(which)
            if which in main.attributes:
                interface += [self._dictionary(each) for each in ir.ArrayAttr(main.attributes[which])]
        return _hash(*self._header, *interface, *results)

    def _call(self, name, arguments, depth):
        """Returns the digests of a function's results, as if its body replaced the call."""
        return self._evaluate(self._functions[name].regions[0].blocks[0], arguments, {}, depth)

    def _evaluate(self, block, arguments, outer, depth):
        """Returns the digests of a block's results, and then of its operations with side effects."""
        values = outer | dict(zip(block.arguments, arguments, strict=True))
        effects = []
        for operation in block.operations:
            operation = operation.operation
            operands = [values[operand] for operand in operation.operands]
            if operation.name in _RETURNS:
                return operands + effects
            results = list(operation.results)
            if operation.name in ("func.call", "call"):
                callee = ir.FlatSymbolRefAttr(operation.attributes["callee"]).value
                digests = self._call(callee, tuple(operands), depth)
                effects += digests[len(results) :]
            else:
                regions = [self._region(region, values, depth + 1) for region in operation.regions]
                described, has_effect = self._describe(operation)
                found = _hash(operation.name, described, *operands, "regions", *regions)
                self.operations.add(found)
                digests = [f"{found} {number}" for number in range(len(results))]
                effects += [found] if has_effect else []
            values.update(zip(results, digests, strict=False))
        return effects

    def _region(self, region, values, depth):
        parts = []
        for number, block in enumerate(region.blocks):
            # The depth distinguishes the arguments from arguments of enclosing regions.
            arguments = [f"argument {i} of {number} at {depth}" for i in range(len(block.arguments))]
            types = ", ".join(self._text(argument.type) for argument in block.arguments)
            parts.append(_hash(types, *self._evaluate(block, arguments, values, depth)))
        return _hash(*parts)

    def _describe(self, operation):
        types = [self._text(result.type) for result in operation.results]
        effect = "has_side_effect" in operation.attributes and operation.attributes["has_side_effect"]
        has_effect = not types or bool(effect and ir.BoolAttr(effect).value)
        return f"{self._attributes(operation)} -> {', '.join(types)}", has_effect

    def _attributes(self, operation):
        found = []
        for name in sorted(operation.attributes):
            if name not in _NAMES:
                read = _backend_config if name.endswith("backend_config") else self._resolve
                found.append(f"{name} = {read(operation.attributes[name])}")
        return "; ".join(found)

    def _resolve(self, attribute):
        """Returns an attribute's text, with names of functions replaced by digests."""
        if isinstance(attribute, ir.FlatSymbolRefAttr) and attribute.value in self._functions:
            count = len(self._functions[attribute.value].regions[0].blocks[0].arguments)
            return _hash(*self._call(attribute.value, tuple(f"argument {i}" for i in range(count)), 0))
        if isinstance(attribute, ir.ArrayAttr):
            return ", ".join(self._resolve(each) for each in attribute)
        return self._text(attribute)

    def _dictionary(self, attribute):
        found = {entry.name: str(entry.attr) for entry in ir.DictAttr(attribute)}
        return json.dumps({name: found[name] for name in sorted(found) if name not in _NAMES})


def _backend_config(attribute):
    """Returns the text of a custom call's settings, without names and locations for a Pallas kernel."""
    if not isinstance(attribute, ir.StringAttr):
        return str(attribute)
    try:
        fields = json.loads(attribute.value)
        body = base64.b64decode(fields["custom_call_config"]["body"])
    except (ValueError, KeyError, TypeError):  # another custom call
        return attribute.value
    context = mlir.make_ir_context()
    tpu.register_dialect(context)
    context.allow_unregistered_dialects = True
    with context, ir.Location.unknown():
        kernel = ir.Module.parse(body)
        for operation in (kernel.operation, *(each.operation for each in kernel.body.operations)):
            if "sym_name" in operation.attributes:
                operation.attributes["sym_name"] = ir.StringAttr.get("kernel")
        text = kernel.operation.get_asm(enable_debug_info=False, print_generic_op_form=True)
    fields["custom_call_config"]["body"] = text
    return json.dumps(fields, sort_keys=True)
