"""Runs in numpy what Triton is given to compile: the operations of the project's kernels, program by program.

It stands in for a GPU. Pallas's own interpreter runs a kernel before it is translated to these operations.
"""

import dataclasses
import itertools

import numpy as np
from jax._src.lib.mlir import ir
from support import program_digests


def kernels(module):
    """Yields (kernel, grid) of each call of a kernel in a lowered program, in the order of its text."""
    for operation in _walk(module.operation):
        if operation.name == "stablehlo.custom_call" and "triton" in str(
            operation.attributes["call_target_name"]
        ):
            config = ir.DictAttr(operation.attributes["mhlo.backend_config"])
            grid = [ir.IntegerAttr(config[f"grid_{axis}"]).value for axis in "xyz"]
            yield program_digests.triton_kernel(config), grid


def _walk(operation):
    for region in operation.regions:
        for block in region.blocks:
            for each in block.operations:
                yield each.operation
                yield from _walk(each.operation)


def run(kernel, grid, arrays):
    """Runs a kernel on numpy arrays, the last of which are its results and are written."""
    flat = [x.reshape(-1) for x in arrays]
    (function,) = kernel.body.operations
    (block,) = function.operation.regions[0].blocks
    with np.errstate(over="ignore"):
        for place in itertools.product(*map(range, grid)):
            values = {arg: _Pointer(x, np.int64(0)) for arg, x in zip(block.arguments, flat, strict=True)}
            _Program(place).block(block, values)


@dataclasses.dataclass
class _Pointer:
    array: np.ndarray
    offset: np.ndarray


_BINARY = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.divui": np.floor_divide,
    "arith.remui": np.remainder,
    "arith.xori": np.bitwise_xor,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.maxnumf": np.fmax,
    "arith.shli": lambda x, y: x << y,
    "arith.shrui": lambda x, y: (x.view(np.uint32) >> y.view(np.uint32)).view(np.int32),
}
# By the number of the predicate.
_COMPARED = (
    np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal,
    *(lambda x, y, f=f: f(x.view(np.uint32), y.view(np.uint32))
      for f in (np.less, np.less_equal, np.greater, np.greater_equal)),
)  # fmt: skip
_FUNCTIONS = {
    "__nv_exp2f": np.exp2,
    "__nv_logf": np.log,
    "__nv_log2f": np.log2,
    "__nv_abs": np.abs,
    "__nv_rsqrtf": lambda x: 1 / np.sqrt(x),
}
_DTYPES = {"i1": bool, "i32": np.int32, "f32": np.float32}


class _Program:
    """One program of the grid."""

    def __init__(self, place):
        self.place = place

    def block(self, block, values):
        """Runs the operations of a block; returns what its last one gives back."""
        for each in block.operations:
            operation = each.operation
            operands = [values[operand] for operand in operation.operands]
            if operation.name in ("scf.yield", "tt.return"):
                return operands
            results = self.results(operation, operands, values)
            values.update(zip(operation.results, results, strict=True))
        raise AssertionError("a block without an end")

    def results(self, operation, operands, values):
        """Returns the results of an operation."""
        name, attributes = operation.name, operation.attributes
        if name == "scf.for":
            (block,) = operation.regions[0].blocks
            first, after, step, *carried = operands
            for number in range(first, after, step):
                arguments = dict(zip(block.arguments, (np.int32(number), *carried), strict=True))
                carried = self.block(block, values | arguments)
            return carried
        if name == "tt.store":
            pointer, value = operands
            pointer.array[pointer.offset] = value
            return []
        return [self.value(name, attributes, operation, *operands)]

    def value(self, name, attributes, operation, *operands):
        """Returns the one result of any other operation."""
        if name in _BINARY:
            return _BINARY[name](*operands)
        dtype, shape = _type(operation.results[0].type)
        first = operands[0] if operands else None
        match name:
            case "arith.constant":
                value = attributes["value"]
                if isinstance(value, ir.DenseElementsAttr):
                    value = value.get_splat_value()
                return np.full(shape, value.value, dtype)[()]
            case "arith.cmpi":
                return _COMPARED[ir.IntegerAttr(attributes["predicate"]).value](*operands)
            case "arith.select":
                return np.where(*operands)
            case "tt.get_program_id":
                return np.int32(self.place[ir.IntegerAttr(attributes["axis"]).value])
            case "tt.make_range":
                return np.arange(
                    *(ir.IntegerAttr(attributes[end]).value for end in ("start", "end")), dtype=dtype
                )
            case "arith.sitofp":
                return first.astype(dtype)
            case "tt.splat" | "tt.broadcast":
                if isinstance(first, _Pointer):
                    return _Pointer(first.array, np.broadcast_to(first.offset, shape))
                return np.array(np.broadcast_to(first, shape))
            case "tt.expand_dims":
                return np.expand_dims(first, ir.IntegerAttr(attributes["axis"]).value)
            case "tt.trans":
                return first.T
            case "tt.addptr":
                return _Pointer(first.array, first.offset + operands[1])
            case "tt.load":
                return first.array[first.offset]
            case "tt.dot":
                return first @ operands[1] + operands[2]
            case "tt.reduce":
                (block,) = operation.regions[0].blocks
                reduce = _BINARY[block.operations[0].operation.name].reduce
                return reduce(first, axis=ir.IntegerAttr(attributes["axis"]).value)
            case "tt.extern_elementwise":
                return _FUNCTIONS[ir.StringAttr(attributes["symbol"]).value](first)
        raise NotImplementedError(str(operation))


def _type(kind):
    """Returns (dtype, shape) of a type; None for the dtype of pointers."""
    shape = ()
    if isinstance(kind, ir.RankedTensorType):
        kind = ir.RankedTensorType(kind)
        shape, kind = tuple(kind.shape), kind.element_type
    return _DTYPES.get(str(kind)), shape
