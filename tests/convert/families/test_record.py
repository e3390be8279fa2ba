"""What a record can say that BERT's does not: shared layers, names that depend on the head, offsets."""

import dataclasses

import numpy as np
import pytest

from bert_jax import tokenization
from bert_jax.convert import Model, families
from bert_jax.convert.families import bert, modernbert
from bert_jax.convert.formats import work_directory
from bert_jax.convert.param_mapping import HUGGINGFACE, LAYERS, TENSORFLOW, dense, head, norm
from bert_jax.errors import UserError
from bert_jax.models import assembled
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import CLASSIFIER_DROPOUT, ClassificationHead

SMALL = dict(vocab_size=30, hidden_size=12, num_attention_heads=3, intermediate_size=20)
OUT = "classifier.out_proj"
DENSES = {
    "query": "attention.query",
    "key": "attention.key",
    "value": "attention.value",
    "attention_output": "attention.dense",
    "intermediate": "ffn",
    "output": "ffn_output",
}
NORMS = {"attention_norm": "attention.LayerNorm", "output_norm": "full_layer_layer_norm"}


def random_params(family, config, groups, name, classes):
    generator = np.random.default_rng(0)
    shapes = assembled.parameters(family.module(config, groups, name, classes))
    return {key: generator.normal(size=one.shape).astype(np.float32) for key, one in shapes.items()}


def check(family, config, name, classes=3):
    """Returns the names in the files; what is read from them is what was written."""
    params = random_params(family, config, family.required(name), name, classes)
    tensors = family.to_files(params, config, HUGGINGFACE, name)
    found = family.from_files(tensors, config, HUGGINGFACE)
    assert found.params.keys() == params.keys()
    assert all(np.array_equal(found.params[key], params[key]) for key in params)
    assert not any((found.missing, found.misshapen, found.unknown, found.beside))
    assert sum(x.size for x in tensors.values()) == sum(x.size for x in params.values())
    return set(tensors)


# Layers as ALBERT's.
_GROUP = "bert.encoder.groups.{group}.layers.{member}"
SHARED = dataclasses.replace(
    bert.FAMILY,
    table=(
        *(one for one in bert.FAMILY.table if not one.ours.startswith(LAYERS)),
        *dense("encoder/embeddings/projection", "bert.encoder.mapping_in"),
        *(x for ours, name in DENSES.items() for x in dense(f"{LAYERS}/{ours}", f"{_GROUP}.{name}")),
        *(x for ours, name in NORMS.items() for x in norm(f"{LAYERS}/{ours}", f"{_GROUP}.{name}")),
    ),
    fields={**bert.FAMILY.fields, "num_hidden_groups": "layer_groups", "inner_group_num": "layers_per_group"},
)


@pytest.mark.parametrize("groups, members", [(1, 1), (3, 1), (1, 2), (2, 2)])
def test_layers_that_share_their_parameters(groups, members):
    sizes = dict(embedding_size=8, layer_groups=groups, layers_per_group=members, num_hidden_layers=7)
    names = check(SHARED, EncoderConfig(**SMALL, **sizes), "masked_lm")
    layers = {name.rpartition(".attention.query")[0] for name in names if ".query." in name}
    expected = {(group, member) for group in range(groups) for member in range(members)}
    assert layers == {_GROUP.format(group=group, member=member) for group, member in expected}
    assert "bert.encoder.mapping_in.weight" in names


def test_a_parameter_that_an_architecture_has_not():
    names = check(SHARED, EncoderConfig(**SMALL, layer_groups=1, num_hidden_layers=2), "masked_lm")
    assert "bert.encoder.mapping_in.weight" not in names


def test_layers_of_several_runs():
    fields = dict(position="rotary", local_window=4, global_every=3, num_hidden_layers=8)
    config = EncoderConfig(**SMALL | {"num_attention_heads": 2}, **fields)
    names = check(bert.FAMILY, config, "none")
    assert {name.split(".")[3] for name in names if ".query.weight" in name} == set("01234567")


# Classifiers as RoBERTa's.
_DENSE = ClassificationHead(drop_in=CLASSIFIER_DROPOUT, dense="head")
BY_HEAD = dataclasses.replace(
    bert.FAMILY,
    table=(
        *(one for one in bert.FAMILY.table if not one.ours.startswith("classifier/")),
        *dense("head/dense", "classifier.dense", heads=("sequence_classification",)),
        *head("classifier", OUT, heads=("sequence_classification",)),
        *head("classifier", "classifier", heads=("token_classification", "multiple_choice")),
    ),
    heads={**bert.FAMILY.heads, "sequence_classification": ("encoder", "head", "classifier")},
    classifiers={**bert.FAMILY.classifiers, "sequence_classification": _DENSE},
)


def test_names_that_depend_on_the_head():
    config = EncoderConfig(**SMALL, num_hidden_layers=2, type_vocab_size=1, position_offset=2)
    assert config.max_seq_length == 510
    encoder = check(BY_HEAD, config, "none")
    weights = {f"{OUT}.weight", f"{OUT}.bias", "classifier.dense.weight", "classifier.dense.bias"}
    assert check(BY_HEAD, config, "sequence_classification") == encoder | weights
    assert check(BY_HEAD, config, "token_classification") == encoder | {
        "classifier.weight",
        "classifier.bias",
    }
    pooler = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert check(BY_HEAD, config, "multiple_choice", 1) - pooler == encoder | {
        "classifier.weight",
        "classifier.bias",
    }


@pytest.mark.parametrize(
    "name, expected",
    [
        ("swish", "silu"),
        ("gelu_python", "gelu"),
        ("gelu_fast", "gelu_tanh"),
        ("gelu_accurate", "gelu_tanh"),
        ("gelu_python_tanh", "gelu_tanh"),
    ],
)
def test_other_names_of_activations_in_transformers(name, expected):
    assert bert.FAMILY.read_config({"hidden_act": name}).hidden_act == expected
    assert modernbert.FAMILY.read_config({"hidden_activation": name}).hidden_act == expected
    with pytest.raises(UserError, match="hidden_act"):
        EncoderConfig(hidden_act=name)


def test_an_activation_that_has_another_name_in_tensorflow():
    tensorflow = dataclasses.replace(bert.FAMILY.tensorflow, activations={"gelu": "gelu_tanh"})
    family = dataclasses.replace(bert.FAMILY, tensorflow=tensorflow)
    config = family.read_config({"hidden_act": "gelu"}, TENSORFLOW)
    assert (
        config.hidden_act == "gelu_tanh"
        and family.tensorflow_fields(tensorflow, config)["hidden_act"] == "gelu"
    )
    assert family.read_config({"hidden_act": "gelu"}).hidden_act == "gelu"


def test_a_masked_lm_without_parameters_of_its_own_stays_one_in_a_work_directory(tmp_path):
    """crammed-BERT's head is the word embeddings."""
    config = EncoderConfig(**SMALL, num_hidden_layers=1, model_type="crammed-bert")
    family = families.of(config)
    params = random_params(family, config, ("encoder", "mlm"), "masked_lm", 2)
    assert not any(name.startswith("mlm") for name in params)
    words = tmp_path / "vocab.txt"
    words.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]) + "\n")
    for name in ("masked_lm", "none"):
        model = Model(config, params, name, tokenization.load(words), source="it")
        work_directory.FORMAT.write(model, tmp_path / name)
        assert work_directory.FORMAT.read(tmp_path / name).head == name
