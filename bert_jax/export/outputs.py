"""The outputs of an exported model by name: those that transformers' exports have, and sentence vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.checkpoint.leaves import nest
from bert_jax.convert import Model, parity
from bert_jax.inference.embedding import pool
from bert_jax.objectives.embedding.groups import normalize

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TOLERANCE = 1e-4  # of an export, relative to the largest output or to 1, whichever is larger

_OF_ENCODERS = {"last_hidden_state": "hidden", "pooler_output": "pooled"}
_LOGITS = {"masked_lm": "mlm", "pretraining": "mlm", "replaced_tokens": "discriminator"}


def function(model: Model) -> Callable[..., dict[str, jax.Array]]:
    """Returns the function of int32 `INPUTS` [B, L] that computes all outputs in float32."""
    config = model.config.replace(dtype="float32", attention="xla", remat="none")
    module = model.module.clone(config=config)
    params = nest({name: np.asarray(array, np.float32) for name, array in model.params.items()})

    def compute(input_ids, attention_mask, token_type_ids):
        places = jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape)
        found = module.apply({"params": params}, input_ids, token_type_ids, places, attention_mask)
        return named(model, found, attention_mask)

    return compute


def named(model: Model, found: Mapping[str, jax.Array], mask: jax.Array) -> dict[str, jax.Array]:
    """Returns the outputs of an export, from those of `AssembledModel`."""
    if model.head == "question_answering":
        return {"start_logits": found["qa"][..., 0], "end_logits": found["qa"][..., 1]}
    if model.head != "none":
        outputs = {"logits": found[_LOGITS.get(model.head, "classifier")]}
        return outputs | ({"seq_relationship_logits": found["nsp"]} if "nsp" in found else {})
    outputs = {name: found[own] for name, own in _OF_ENCODERS.items() if own in found}
    if model.sentence is not None:
        vectors = pool(found["hidden"], mask, model.sentence.pooling)
        if model.sentence.normalize:
            vectors = normalize(vectors)
        outputs["sentence_embedding"] = vectors
    return outputs


def difference(model: Model, run: Callable[..., Mapping[str, np.ndarray]]) -> float:
    """Returns how far the outputs of an export are from those of the model, for random rows with padding.

    Args:
        model: the model.
        run: the export, a function of integers `INPUTS` [B, L] that returns its outputs by name.

    Returns:
        The largest difference, relative to the largest output or to 1.
    """
    rows = parity.random_inputs(model.config)
    arrays = rows["input_ids"], rows["mask"], rows["token_type_ids"]
    with jax.default_matmul_precision("highest"):
        expected = jax.jit(function(model))(*arrays)
    found = run(*arrays)
    if expected.keys() != found.keys():
        raise ValueError(f"the outputs are {', '.join(found)}, expected {', '.join(expected)}")
    real, worst = rows["mask"] > 0, 0.0
    for name in expected:
        one, other = np.asarray(expected[name]), np.asarray(found[name])
        if one.shape[:2] == real.shape:
            one, other = one[real], other[real]
        worst = max(worst, float(np.max(np.abs(one - other)) / max(1.0, np.max(np.abs(one)))))
    return worst
