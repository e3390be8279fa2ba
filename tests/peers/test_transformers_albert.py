"""ALBERT here and in transformers: hidden states, gradients and exported folders, in float32 on the CPU."""

import pathlib
import shutil

import jax
import numpy as np
import pytest
from support.transformers_models import VOCAB, here, random_batch, task, torch, torch_inputs, transformers

from bert_jax import convert
from bert_jax.checkpoint.leaves import flatten
from bert_jax.convert import HEADS, conversion
from bert_jax.convert.families import albert
from bert_jax.convert.param_mapping import HUGGINGFACE
from bert_jax.models import Encoder
from bert_jax.models.row_inputs import INPUTS

pytestmark = pytest.mark.peer

FAMILY = albert.FAMILY
WORDS = pathlib.Path(__file__).parents[1] / "testdata" / "albert" / "none" / "spiece.model"
SMALL = {"hidden_size": 128, "embedding_size": 48, "num_attention_heads": 2, "intermediate_size": 512}
BASE = {"hidden_size": 768, "embedding_size": 128, "num_attention_heads": 12, "intermediate_size": 3072}
SHAPES = {
    "base": BASE | {"num_hidden_layers": 12},
    "one group": SMALL | {"num_hidden_layers": 4},
    "uneven groups": SMALL | {"num_hidden_layers": 7, "num_hidden_groups": 3},
    "two layers a group": SMALL | {"num_hidden_layers": 2, "inner_group_num": 2},
    "wide embeddings": SMALL | {"num_hidden_layers": 3, "embedding_size": 128},
}


def random_albert(shape, cls="AlbertForPreTraining"):
    """An ALBERT of transformers with weights such that no output is degenerate."""
    torch.manual_seed(0)
    fields = {"vocab_size": VOCAB, "classifier_dropout_prob": 0.0, "attn_implementation": "eager"}
    model = getattr(transformers, cls)(transformers.AlbertConfig(**fields, **SHAPES[shape])).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name.lower() and name.endswith("weight"):
                parameter.normal_(1, 0.1)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.1)
            else:
                parameter.normal_(0, 0.05 if "embeddings" in name else parameter.shape[1] ** -0.5)
    return model


def torch_batch(batch, labels=False):
    inputs = torch_inputs(batch, labels)
    if labels:
        inputs["sentence_order_label"] = inputs.pop("next_sentence_label")
    return inputs


@pytest.mark.parametrize("shape", SHAPES)
def test_hidden_states_and_logits(shape, tmp_path):
    theirs = random_albert(shape)
    batch = random_batch(rows=2, length=48, predictions=8)
    with torch.no_grad():
        expected = theirs(**torch_batch(batch), output_hidden_states=True)
    config, params = here(theirs, tmp_path)
    prepared = task(config).prepare(batch, None, False)
    arrays = [prepared[name] for name in INPUTS]
    encoder = Encoder(config)
    states = jax.jit(
        lambda params: encoder.apply({"params": params}, *arrays, lambda x: x, method="every_layer")
    )(params["encoder"])
    real = np.asarray(prepared["sequence_ids"]) > 0
    assert len(states) == len(expected.hidden_states)
    worst = 0.0
    for ours, state in zip(np.asarray(states), expected.hidden_states, strict=True):
        worst = max(worst, np.max(np.abs(ours - state.numpy())[real]) / np.max(np.abs(state.numpy()[real])))
    outputs = convert.load(tmp_path).module.clone(config=config).apply({"params": params}, *arrays)
    for ours, logits in (
        (np.asarray(outputs["mlm"])[real], expected.prediction_logits.numpy()[real]),
        (np.asarray(outputs["nsp"]), expected.sop_logits.numpy()),
    ):
        worst = max(worst, np.max(np.abs(ours - logits)) / np.max(np.abs(logits)))
    print(f"| {shape} | {worst:.1e} |")
    assert worst <= 2e-5


def gradient_there(model, batch):
    model.zero_grad()
    model(**torch_batch(batch, labels=True)).loss.backward()
    return {name: p.grad.numpy().copy() for name, p in model.named_parameters()}


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients(shape, tmp_path):
    """The gradient of a shared tensor is the sum of those of its layers."""
    theirs = random_albert(shape)
    batch = random_batch(rows=4, length=48, predictions=12)
    expected = gradient_there(theirs, batch)
    config, params = here(theirs, tmp_path)
    pretraining = task(config)

    @jax.jit
    def gradient(params):
        prepared = pretraining.prepare(batch, None, True)
        weights = pretraining.weights(prepared)

        def objective(params):
            pairs, _ = pretraining.loss(params, prepared, None)
            return sum(total / weights[name] for name, (total, _) in pairs.items())

        return jax.grad(objective)(params)

    ours = FAMILY.to_files(flatten(gradient(params)), config, HUGGINGFACE)
    assert ours.keys() == expected.keys()
    exact = gradient_there(theirs.double(), batch)
    beyond, worst = {}, 0.0
    for name, grad in expected.items():
        if name.endswith("key.bias"):  # it is 0 but for rounding, which is held against that of the queries
            scale = np.linalg.norm(expected[name.replace("key", "query")])
            assert max(np.linalg.norm(grad), np.linalg.norm(ours[name])) <= 1e-3 * scale
            continue
        difference = np.linalg.norm(ours[name] - grad) / np.linalg.norm(grad)
        rounding = np.linalg.norm(grad - exact[name]) / np.linalg.norm(exact[name])
        worst = max(worst, difference)
        if difference > max(1e-4, 2 * rounding):
            beyond[name] = difference
    print(f"| {shape} | {worst:.1e} |")
    assert not beyond


@pytest.mark.parametrize("head", FAMILY.heads)
def test_an_exported_folder_is_loaded_whole(head, tmp_path):
    theirs = random_albert("uneven groups", FAMILY.class_name(head))
    theirs.save_pretrained(tmp_path / "in")
    shutil.copy(WORDS, tmp_path / "in")
    conversion.convert(str(tmp_path / "in"), str(tmp_path / "run"), "bert_jax", log=lambda line: None)
    conversion.convert(str(tmp_path / "run"), str(tmp_path / "out"), "huggingface", log=lambda line: None)
    cls = getattr(transformers, HEADS[head].auto_class)
    model, info = cls.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert type(model).__name__ == FAMILY.class_name(head)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    before, after = dict(theirs.named_parameters()), dict(model.named_parameters())
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert model.config.hidden_act == "gelu_new"
