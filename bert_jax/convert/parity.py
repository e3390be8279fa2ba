"""Verifies a written model: its parameters bit for bit, and its outputs within a tolerance."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.checkpoint.leaves import nest
from bert_jax.convert.model import Model
from bert_jax.errors import UserError
from bert_jax.models.assembled import AssembledModel
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import ClassificationHead

TOLERANCE = 2e-5  # relative to the largest output or to 1, whichever is larger
_ROWS, _LENGTH = 2, 24


def random_inputs(config: EncoderConfig) -> dict[str, np.ndarray]:
    """Returns int32 [2, L] `input_ids`, `token_type_ids` and `mask`; a third of the last row is padding."""
    generator = np.random.default_rng(0)
    length = min(_LENGTH, config.max_seq_length)
    mask = np.ones((_ROWS, length), np.int32)
    mask[-1, length - length // 3 :] = 0
    ids = generator.integers(0, config.vocab_size, (_ROWS, length), np.int32)
    types = np.sort(generator.integers(0, max(1, config.type_vocab_size), (_ROWS, length), np.int32), axis=1)
    return {"input_ids": ids, "token_type_ids": types, "mask": mask}


def flax_outputs(model: Model, classification: ClassificationHead | None = None) -> dict[str, np.ndarray]:
    """Returns the outputs for `random_inputs`, named as in `AssembledModel`, float32, without padding.

    By default, the family and the head determine the structure of the classifier.
    """
    plain = model.config.replace(dtype="float32", attention="xla", remat="none")
    inputs = random_inputs(plain)
    params = nest({name: jnp.asarray(array, jnp.float32) for name, array in model.params.items()})
    positions = np.broadcast_to(np.arange(inputs["mask"].shape[1]), inputs["mask"].shape)
    module = model.module.clone(config=plain)
    if classification is not None:
        module = module.clone(classification=classification)
    arrays = (inputs["input_ids"], inputs["token_type_ids"], positions, inputs["mask"])
    with jax.default_matmul_precision("highest"):
        outputs = _forward(module, params, *arrays)
    return without_padding({name: np.asarray(x) for name, x in outputs.items()}, inputs["mask"])


# Not compiled again for the model that is read back, because its module is equal.
@functools.partial(jax.jit, static_argnums=0)
def _forward(module: AssembledModel, params: dict, *arrays: np.ndarray) -> Any:
    return module.apply({"params": params}, *arrays)


def check_same(what: str, one: Model, other: Model) -> float:
    """Returns the largest relative difference of the outputs of a model and of the one read back.

    UserError if a parameter differs in any bit in float32, or the outputs differ; see `compare`.
    """
    for name in {**one.params, **other.params}:
        arrays = (np.asarray(side.params.get(name, ()), np.float32) for side in (one, other))
        bits = [np.ascontiguousarray(x).view(np.uint32) for x in arrays]
        if not np.array_equal(bits[0], bits[1]):
            raise UserError(f"{what}: the values of {name} differ; nothing is kept")
    if one.generator is not None and other.generator is not None:
        check_same(f"{what}, generator", one.generator, other.generator)
    # Not every format stores the kind of a classifier: a TF1 checkpoint only has its weights.
    return compare(what, flax_outputs(one), flax_outputs(other, one.module.classification))


def compare(
    what: str,
    one: Mapping[str, np.ndarray],
    other: Mapping[str, np.ndarray],
    tolerance: float = TOLERANCE,
) -> float:
    """Returns the largest difference, relative to the largest output or to 1; UserError above `tolerance`."""
    differences = dict.fromkeys([*one, *other], np.inf)
    for name, x in one.items():
        if name in other and x.shape == other[name].shape:
            differences[name] = float(np.max(np.abs(x - other[name])) / max(1.0, np.max(np.abs(x))))
    worst = max(differences, key=lambda name: np.nan_to_num(differences[name], nan=np.inf))
    if not differences[worst] <= tolerance:
        raise UserError(
            f"{what}: the results differ by {differences[worst]:.1e} in {worst}, more than {tolerance:g}; "
            "nothing is kept"
        )
    return differences[worst]


def without_padding(outputs: Mapping[str, np.ndarray], mask: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the outputs, where outputs for every token are reduced to the real tokens: [tokens, ...]."""
    of_tokens = {name for name, x in outputs.items() if x.ndim == 3 or name == "discriminator"}
    return {
        name: x[mask > 0] if name in of_tokens and x.shape[:2] == mask.shape else x
        for name, x in outputs.items()
    }
