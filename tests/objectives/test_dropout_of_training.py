"""How often each objective applies dropout, read from the program of its loss, which is not compiled."""

import jax
import pytest
from jax.interpreters.partial_eval import dce_jaxpr
from support.objectives import OBJECTIVES, RATE

from bert_jax.kernels.dropout import threshold
from bert_jax.objectives.distillation import TEACHER, Distillation
from bert_jax.parallel import sharding

LEAST_KEPT = {f"{threshold(rate)}:u32": rate for rate in (0.1, 0.2, 0.3, 0.4)}  # in programs
# After the embeddings, the probabilities of attention, and both halves of the layer.
ENCODER = 4
# The decoder of denoising has a cross-attention, whose result is dropped too.
DROPOUTS = {
    "masked LM": ENCODER, "left to right": ENCODER, "first left to right": ENCODER,
    "replaced tokens": 2 * ENCODER, "distillation": ENCODER, "classification": ENCODER + 1,
    "classification and LM": ENCODER + 1, "multiple choice": ENCODER + 1, "tagging": ENCODER + 1,
    "tagging of features": 2, "spans": ENCODER, "contrastive": ENCODER, "late interaction": 2 * ENCODER,
    "denoising": 2 * ENCODER + 1,
}  # fmt: skip


def dropouts(jaxpr):
    """The rates of the dropouts in a program and in its loops, which are counted once."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "custom_vjp_call":
            text = str(equation.params["call_jaxpr"])
            found += [rate for least, rate in LEAST_KEPT.items() if f" {least}" in text]
            continue
        for part in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(part, "jaxpr", part)
            found += dropouts(inner) if hasattr(inner, "eqns") else []
    return found


def dropouts_of(objective, batch, rngs):
    key = jax.random.key(0)
    params = sharding.unbox(objective.init_shapes)
    if isinstance(objective, Distillation):
        params = {"student": params, TEACHER: sharding.unbox(objective.teacher_shapes)}

    def loss(params, batch):
        return objective.loss(params, objective.prepare(batch, key, True), rngs)[0]

    program = jax.make_jaxpr(loss)(params, batch).jaxpr
    # Without what Flax computes for shapes.
    return dropouts(dce_jaxpr(program, [True] * len(program.outvars))[0])


QUICK = ("masked LM", "classification", "tagging")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in DROPOUTS]
)
def test_dropout_is_for_training(name):
    make, batch = OBJECTIVES[name]
    objective = make()
    assert dropouts_of(objective, batch(0), {"dropout": jax.random.key(1)}) == [RATE] * DROPOUTS[name]
    assert dropouts_of(objective, batch(0), None) == []
