"""ELECTRA's family record: activations, config.json and TF1 names; see also test_goldens.py."""

import pathlib
import re

import numpy as np
import pytest
from support.conversions import check_equal, random_model

from bert_jax import convert
from bert_jax.convert import parity
from bert_jax.convert.families import electra
from bert_jax.convert.formats import tensorflow1, work_directory
from bert_jax.convert.param_mapping import GENERATOR, HUGGINGFACE, TENSORFLOW
from bert_jax.objectives.replaced_tokens import generator_config

FOLDER = pathlib.Path(__file__).parents[2] / "testdata" / "electra"
FAMILY = electra.FAMILY


# Substitutions that turn names of transformers into names of google-research/electra.
GOOGLE = (
    (r"\.layer\.(\d+)\.", r".layer_\1."),
    (r"LayerNorm\.weight$", "LayerNorm.gamma"),
    (r"LayerNorm\.bias$", "LayerNorm.beta"),
    (r"_embeddings\.weight$", "_embeddings"),
    (r"\.dense_prediction\.", ".dense_1."),
    (r"^generator_lm_head\.bias$", "generator_predictions.output_bias"),
    (r"\.weight$", ".kernel"),
)


@pytest.mark.parametrize("head", ["replaced_tokens", "masked_lm"])
def test_names_of_google_research(head):
    """TF1 names equal those in google-research/electra, whose checkpoints hold both networks."""
    model = convert.load(FOLDER / head)
    kind, scope = (GENERATOR, "generator") if head == "masked_lm" else (TENSORFLOW, "electra")
    tensors = FAMILY.to_files(model.params, model.config, kind, head)
    expected = set()
    for name in FAMILY.to_files(model.params, model.config, HUGGINGFACE, head):
        for pattern, replacement in GOOGLE:
            name = re.sub(pattern, replacement, name)
        if not name.startswith("electra.embeddings."):
            name = re.sub(r"^electra\.", f"{scope}.", name)
        expected.add(name.replace(".", "/"))
    assert tensors.keys() == expected
    other = convert.load(FOLDER / ("masked_lm" if head == "replaced_tokens" else "replaced_tokens"))
    both = FAMILY.to_files(
        other.params, other.config, TENSORFLOW if kind == GENERATOR else GENERATOR, other.head
    )
    steps = {"global_step": np.zeros(()), f"{scope}/encoder/layer_0/output/dense/kernel/adam_m": np.zeros(1)}
    found = FAMILY.from_files({**both, **steps, **tensors}, model.config, kind)
    assert not any((found.missing, found.misshapen, found.unknown))
    assert found.params.keys() == model.params.keys()
    assert all(np.array_equal(found.params[name], x) for name, x in model.params.items())


@pytest.fixture
def both():
    """A discriminator and a generator that shares its tables, as in a run and in a TF1 checkpoint."""
    model = convert.load(FOLDER / "replaced_tokens")
    generator = random_model(generator_config(model.config, 4), "masked_lm")
    shared = {name: x for name, x in model.params.items() if name.startswith("encoder/embeddings/")}
    del shared["encoder/embeddings/projection/kernel"], shared["encoder/embeddings/projection/bias"]
    return model.replace(generator=generator.replace(params={**generator.params, **shared}))


@pytest.mark.long
def test_a_tf1_checkpoint_holds_both_networks(both):
    variables = tensorflow1.to_variables(both)
    assert {name.split("/")[0] for name in variables} == {
        *("electra", "generator", "generator_predictions", "discriminator_predictions"),
    }
    others = {
        "generator/encoder/layer_0/output/dense/kernel/adam_m": np.zeros(1),
        "global_step": np.zeros(()),
    }
    fields = FAMILY.tensorflow_fields(FAMILY.tensorflow, both.config)
    config = FAMILY.read_config(fields, TENSORFLOW)
    again = tensorflow1.from_variables(variables | others, config, None, "it")
    check_equal(both, again)
    assert parity.check_same("it", both, again) == 0


def test_a_tf1_checkpoint_may_hold_one_network(both):
    for alone in (both.replace(generator=None), both.generator):
        variables = tensorflow1.to_variables(alone)
        check_equal(alone, tensorflow1.from_variables(variables, alone.config, None, "it"))


def test_a_work_directory_holds_both_networks(both, tmp_path):
    work_directory.FORMAT.write(both, tmp_path)
    again = work_directory.FORMAT.read(tmp_path)
    check_equal(both, again)
    # Code that changes a model does not change its generator, so the generator is dropped.
    assert again.replace(params=dict(again.params)).generator is None
