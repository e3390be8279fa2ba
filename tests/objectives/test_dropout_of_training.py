"""How often each objective applies dropout, read from the program of its loss, which is not compiled."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.interpreters.partial_eval import dce_jaxpr
from support.models import SPECIAL, packed_batch, tiny_config, tiny_task

from bert_jax.kernels.dropout import threshold
from bert_jax.objectives.causal_lm import LEFT_TO_RIGHT, CausalLM, CausalThenMasked
from bert_jax.objectives.classification import Classification, ClassificationAndLM
from bert_jax.objectives.distillation import TEACHER, Distillation
from bert_jax.objectives.embedding.denoising import DenoisingAutoEncoder
from bert_jax.objectives.embedding.late_interaction import LateInteraction
from bert_jax.objectives.embedding.sentence import SentenceEmbedding
from bert_jax.objectives.multiple_choice import MultipleChoice
from bert_jax.objectives.replaced_tokens import ReplacedTokens
from bert_jax.objectives.spans import Spans
from bert_jax.objectives.tagging import Tagging
from bert_jax.parallel import sharding

LEAST_KEPT = {f"{threshold(rate)}:u32": rate for rate in (0.1, 0.2, 0.3, 0.4)}  # in programs
# After the embeddings, the probabilities of attention, and both halves of the layer.
ENCODER = 4
ONE_LAYER = dict(num_hidden_layers=1, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)


def config(**fields):
    return tiny_config(**ONE_LAYER, **fields)


def masked():
    return dataclasses.replace(tiny_task(**ONE_LAYER), next_sentence_head=False)


def rows(*choices):
    """A batch of texts, as the loader of a fine-tuning makes it: [2, choices] rows, or [2]."""
    shape = (2, *choices)
    lengths = np.full(shape, 8, np.int32)
    return {
        "input_ids": np.full((*shape, 8), 7, np.int32),
        "lengths": lengths,
        "first_lengths": lengths,
        "weights": np.ones(shape, np.float32),
    } | {name: np.zeros(shape, np.int32) for name in ("targets", "texts")}


TAGS = {"tags": np.zeros((2, 8), np.int32)}
SPAN = dict.fromkeys(("starts", "ends"), np.zeros(2, np.int32))


def of_records():
    return packed_batch(rows=2)


# {name: (function that makes the objective, function that makes a batch, number of dropouts)}
OBJECTIVES = {
    "masked LM": (masked, of_records, ENCODER),
    "left to right": (lambda: CausalLM(config(causal=True)), of_records, ENCODER),
    "first left to right": (
        lambda: CausalThenMasked(masked()),
        lambda: of_records() | {LEFT_TO_RIGHT: np.ones(2)},
        ENCODER,
    ),
    "replaced tokens": (lambda: ReplacedTokens(config(), masked()), of_records, 2 * ENCODER),
    "distillation": (lambda: Distillation(masked(), masked(), {"logits": 1.0}), of_records, ENCODER),
    "classification": (lambda: Classification(config(), 3), rows, ENCODER + 1),
    "classification and LM": (lambda: ClassificationAndLM(config(causal=True), 3), rows, ENCODER + 1),
    "multiple choice": (lambda: MultipleChoice(config(), 3), lambda: rows(3), ENCODER + 1),
    "tagging": (lambda: Tagging(config(), 3), lambda: rows() | TAGS, ENCODER + 1),
    "tagging of features": (
        lambda: Tagging(config(), 3, layers=(-1,), lstm_layers=1),
        lambda: rows() | TAGS,
        2,
    ),
    "spans": (lambda: Spans(config()), lambda: rows() | SPAN, ENCODER),
    "sentence embedding": (lambda: SentenceEmbedding(config()), lambda: rows(2), ENCODER),
    "late interaction": (lambda: LateInteraction(config(), 8, 4), lambda: rows(2), 2 * ENCODER),
    # The decoder has a cross-attention, whose result is dropped too.
    "denoising": (lambda: DenoisingAutoEncoder(config(), SPECIAL), rows, 2 * ENCODER + 1),
}


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
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in OBJECTIVES]
)
def test_dropout_is_for_training(name):
    make, batch, expected = OBJECTIVES[name]
    objective = make()
    assert dropouts_of(objective, batch(), {"dropout": jax.random.key(1)}) == [0.1] * expected
    assert dropouts_of(objective, batch(), None) == []
