"""Writes a model as StableHLO, which any program with jax runs without the code of the model."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from bert_jax.convert import Model
from bert_jax.errors import UserError
from bert_jax.export.outputs import INPUTS, function
from bert_jax.io import atomic, files

FILE = "model.stablehlo"
PLATFORMS = ("cpu", "cuda", "tpu")
_MOST_BYTES = 1_900_000_000  # of weights; the format holds at most 2 GiB


def write(model: Model, path: str) -> None:
    """Writes the serialized function of int32 `INPUTS` [batch, sequence].

    The batch may have any size, and the length is from 2 to the number of the model's positions. The function
    refuses longer rows, whose last tokens would all have the last position.

    Raises:
        UserError: the model is too large for the format.
    """
    size = sum(4 * array.size for array in model.params.values())
    if size > _MOST_BYTES:
        raise UserError(
            f"{model.source}: {size / 1e9:.1f} GB of weights; StableHLO holds at most 2, try --to=onnx"
        )
    constraints = ["sequence >= 2", f"sequence <= {model.config.max_seq_length}"]
    shape = export.symbolic_shape("batch, sequence", constraints=constraints)
    rows = [jax.ShapeDtypeStruct(shape, jnp.int32)] * len(INPUTS)
    with jax.default_matmul_precision("highest"):
        exported = export.export(jax.jit(function(model)), platforms=PLATFORMS)(*rows)
    atomic.write_file(path, bytes(exported.serialize()))


class Session:
    """A function that `write` has written; a call returns its outputs by name.

    Args:
        path: the file.
    """

    def __init__(self, path: str):
        self._exported = export.deserialize(bytearray(files.read(path)))

    def __call__(self, *arrays: np.ndarray) -> Mapping[str, np.ndarray]:
        """Returns the outputs for integers `INPUTS` [B, L]."""
        found = self._exported.call(*(jnp.asarray(array, jnp.int32) for array in arrays))
        return {name: np.asarray(x) for name, x in found.items()}
