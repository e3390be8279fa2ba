"""BERT's record: its names against the Flax modules' shapes and against what another forward pass reads."""

import dataclasses

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
from bert_jax.errors import UserError
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
    assert not any((found.missing, found.misshapen, found.unknown, found.beside))


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


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_shows_in_the_outputs(make_model, kind):
    """Else the check would not see that it is wrong."""
    model = make_model()
    tensors = FAMILY.to_files(model.params, model.config, kind)
    right = file_outputs(tensors, model.config, kind)
    for name in tensors:
        if name.endswith(("self.key.bias", "self/key/bias")):
            continue  # it shifts all scores of a token alike, which the softmax takes out
        wrong = tensors | {
            name: tensors[name]
            + np.linspace(0.1, 0.4, tensors[name].size).reshape(tensors[name].shape).astype(np.float32)
        }
        with pytest.raises(Exception, match="differ"):
            parity.compare(name, right, file_outputs(wrong, model.config, kind))


def test_a_wrong_name_is_seen_by_the_other_forward_pass(make_model):
    model = make_model()
    swap = {"self.query": "self.key", "self.key": "self.query"}

    def exchanged(entry):
        for old, new in swap.items():
            if old in entry.names[HUGGINGFACE]:
                return entry._replace(names={HUGGINGFACE: entry.names[HUGGINGFACE].replace(old, new)})
        return entry

    wrong = dataclasses.replace(FAMILY, table=tuple(map(exchanged, FAMILY.table)))
    tensors = wrong.to_files(model.params, model.config, HUGGINGFACE)
    with pytest.raises(UserError, match="differ by"):
        parity.compare("it", file_outputs(tensors, model.config, HUGGINGFACE), parity.flax_outputs(model))
