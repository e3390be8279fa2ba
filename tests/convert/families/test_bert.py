"""BERT's family record: parameter names agree with the Flax modules and with both kinds of files."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.checkpoint.leaves import flatten
from bert_jax.convert.families import bert
from bert_jax.convert.param_mapping import HUGGINGFACE, TENSORFLOW
from bert_jax.models import ClassificationModel, PretrainingModel, assembled

FAMILY = bert.FAMILY


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


# Substitutions that turn names of transformers into names of google-research/bert.
GOOGLE = (
    (r"\.layer\.(\d+)\.", r".layer_\1."),
    (r"LayerNorm\.weight$", "LayerNorm.gamma"),
    (r"LayerNorm\.bias$", "LayerNorm.beta"),
    (r"_embeddings\.weight$", "_embeddings"),
    (r"^cls\.predictions\.bias$", "cls.predictions.output_bias"),
    (r"^qa_outputs\.", "cls.squad.output_"),
    (r"^cls\.seq_relationship\.", "cls.seq_relationship.output_"),
    (r"^classifier\.", "output_"),
    (r"output_weight$", "output_weights"),
    (r"\.weight$", ".kernel"),
)


@pytest.mark.parametrize("head", FAMILY.heads)
def test_variables_of_tensorflow_have_the_names_of_the_authors_code(make_model, head):
    """The variables are also read back. The goldens cover the names in transformers."""
    model = make_model(head)
    theirs, ours = (FAMILY.to_files(model.params, model.config, kind) for kind in (HUGGINGFACE, TENSORFLOW))
    expected = {}
    for name, array in theirs.items():
        for pattern, replacement in GOOGLE:
            name = re.sub(pattern, replacement, name)
        expected[name.replace(".", "/")] = array.T if name.endswith(".kernel") else array
    assert expected.keys() == ours.keys()
    assert all(np.array_equal(ours[name], array) for name, array in expected.items())
    found = FAMILY.from_files(ours, model.config, TENSORFLOW)
    assert found.params.keys() == model.params.keys() and not any(found[1:])
    assert all(np.array_equal(found.params[name], model.params[name]) for name in model.params)
