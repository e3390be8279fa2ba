"""BERT's record: its names against the Flax modules' shapes and against what another forward pass reads."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.numpy_bert import file_outputs

from bert_jax.checkpoint.leaves import flatten
from bert_jax.convert import parity
from bert_jax.convert.families import bert
from bert_jax.convert.param_mapping import HUGGINGFACE, TENSORFLOW
from bert_jax.models import ClassificationModel, PretrainingModel, assembled

FAMILY = bert.FAMILY
KINDS = (HUGGINGFACE, TENSORFLOW)


def flax_shapes(model, inputs):
    ids = jnp.zeros((1, 4), jnp.int32)
    made = jax.eval_shape(lambda: nn.unbox(model.init(jax.random.key(0), *[ids] * inputs)["params"]))
    return {name: leaf.shape for name, leaf in flatten(made).items()}


def test_an_assembled_model_has_the_parameters_of_the_models_that_are_trained(make_model):
    config = make_model().config
    assert flax_shapes(PretrainingModel(config), 6) == assembled.shapes(
        config, ("encoder", "pooler", "mlm", "nsp")
    )
    assert flax_shapes(ClassificationModel(config, 5), 4) == assembled.shapes(
        config, ("encoder", "pooler", "classifier"), 5
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", FAMILY.heads)
def test_there_and_back_is_bit_for_bit(make_model, head, kind):
    model = make_model(head)
    found = FAMILY.from_files(FAMILY.to_files(model.params, model.config, kind), model.config, kind)
    assert found.params.keys() == model.params.keys()
    assert all(np.array_equal(found.params[name], model.params[name]) for name in model.params)
    assert not any((found.missing, found.misshapen, found.unknown, found.others))


_ACTIVATIONS = [(head, "gelu") for head in FAMILY.heads] + [
    ("pretraining", "gelu_tanh"),
    ("pretraining", "relu"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("head", "act"), _ACTIVATIONS)
def test_a_forward_pass_by_the_files_own_names_agrees(make_model, head, kind, act):
    model = make_model(head, hidden_act=act)
    theirs = file_outputs(FAMILY.to_files(model.params, model.config, kind), model.config, kind, head)
    assert parity.compare("it", theirs, parity.flax_outputs(model)) < parity.TOLERANCE
