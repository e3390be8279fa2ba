"""The table of names, against the Flax modules' shapes and against what two other forward passes read."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.checkpoint.leaves import flatten
from bert_jax.convert import HEADS, param_mapping, parity
from bert_jax.models import PretrainingModel, SequenceClassifier
from bert_jax.models import config as bert_config

KINDS = (param_mapping.HUGGINGFACE, param_mapping.TENSORFLOW)


def flax_shapes(model, inputs):
    ids = jnp.zeros((1, 4), jnp.int32)
    made = jax.eval_shape(lambda: nn.unbox(model.init(jax.random.key(0), *[ids] * inputs)["params"]))
    return {name: leaf.shape for name, leaf in flatten(made).items()}


def test_the_table_has_the_parameters_of_the_modules(make_model):
    config = make_model().config
    assert flax_shapes(PretrainingModel(config), 6) == param_mapping.shapes(
        config, ("encoder", "pooler", "mlm", "nsp")
    )
    assert flax_shapes(SequenceClassifier(config, 5), 4) == param_mapping.shapes(
        config, ("encoder", "pooler", "classifier"), 5
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", HEADS)
def test_there_and_back_is_bit_for_bit(make_model, head, kind):
    model = make_model(head)
    found = param_mapping.from_files(
        param_mapping.to_files(model.params, model.config, kind), model.config, kind
    )
    assert found.params.keys() == model.params.keys()
    assert all(np.array_equal(found.params[name], model.params[name]) for name in model.params)
    assert not any((found.missing, found.misshapen, found.unknown, found.beside))


_ACTIVATIONS = [(head, "gelu") for head in HEADS] + [("pretraining", "gelu_tanh"), ("pretraining", "relu")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("head", "act"), _ACTIVATIONS)
def test_a_forward_pass_by_the_files_own_names_agrees(make_model, head, kind, act):
    model = make_model(head, hidden_act=act)
    theirs = parity.file_outputs(param_mapping.to_files(model.params, model.config, kind), model.config, kind)
    assert parity.compare("it", theirs, parity.flax_outputs(model)) < parity.TOLERANCE


def test_the_released_checkpoints_have_206_variables():
    base = bert_config.named("base_chinese")
    shapes = param_mapping.shapes(base, ("encoder", "pooler", "mlm", "nsp"))
    params = {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}
    tensors = param_mapping.to_files(params, base, param_mapping.TENSORFLOW)
    assert len(tensors) == 206
    assert tensors["bert/encoder/layer_11/output/dense/kernel"].shape == (3072, 768)
    assert tensors["cls/seq_relationship/output_weights"].shape == (2, 768)
    assert tensors["cls/predictions/output_bias"].shape == (21128,)


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_shows_in_the_outputs(make_model, kind):
    """Else the check would not see that it is wrong."""
    model = make_model()
    tensors = param_mapping.to_files(model.params, model.config, kind)
    right = parity.file_outputs(tensors, model.config, kind)
    for name in tensors:
        if name.endswith(("self.key.bias", "self/key/bias")):
            continue  # it shifts all scores of a token alike, which the softmax takes out
        wrong = tensors | {
            name: tensors[name]
            + np.linspace(0.1, 0.4, tensors[name].size).reshape(tensors[name].shape).astype(np.float32)
        }
        with pytest.raises(Exception, match="differ"):
            parity.compare(name, right, parity.file_outputs(wrong, model.config, kind))


def test_what_is_no_parameter_is_set_apart(make_model):
    model = make_model()
    tensors = param_mapping.to_files(model.params, model.config, param_mapping.TENSORFLOW)
    one = np.zeros((), np.float32)
    beside = {"global_step": one, "bert/pooler/dense/bias/adam_m": one, "output_bias/adam_v": one}
    found = param_mapping.from_files(
        tensors | beside | {"bert/pooler/dense/extra": one}, model.config, param_mapping.TENSORFLOW
    )
    assert sorted(found.beside) == sorted(beside) and found.unknown == ["bert/pooler/dense/extra"]


def test_a_layer_that_lacks_a_tensor_and_a_wrong_shape_are_named(make_model):
    model = make_model()
    tensors = param_mapping.to_files(model.params, model.config, param_mapping.HUGGINGFACE)
    del tensors["bert.encoder.layer.1.output.dense.bias"]
    tensors["bert.pooler.dense.weight"] = np.zeros((12, 11), np.float32)
    found = param_mapping.from_files(tensors, model.config, param_mapping.HUGGINGFACE)
    assert found.missing == ["bert.encoder.layer.1.output.dense.bias"]
    assert found.misshapen == ["bert.pooler.dense.weight is [12, 11], expected [12, 12]"]
