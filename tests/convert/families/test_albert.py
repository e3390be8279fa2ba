"""ALBERT's record: config.json, TF1 checkpoints, what shared layers refuse; see also test_goldens.py."""

import json
import pathlib
import random

import numpy as np
import pytest
from support.conversions import needs_tensorflow, random_model

from bert_jax import cli, convert, tokenization
from bert_jax.convert import parity
from bert_jax.convert.families import albert
from bert_jax.convert.formats import huggingface, tensorflow1
from bert_jax.convert.param_mapping import TENSORFLOW
from bert_jax.errors import UserError
from bert_jax.models import PretrainingModel, parameters

FOLDER = pathlib.Path(__file__).parents[2] / "testdata" / "albert"
FAMILY = albert.FAMILY

# The scopes of google-research/albert (modeling.py and run_pretraining.py), by the paths here.
_INNER = "bert/encoder/transformer/group_0/inner_group_0"
SCOPES = {
    "encoder/embeddings/projection": "bert/encoder/embedding_hidden_mapping_in",
    "encoder/embeddings/layer_norm": "bert/embeddings/LayerNorm",
    "encoder/layers/shared/layer/query": f"{_INNER}/attention_1/self/query",
    "encoder/layers/shared/layer/key": f"{_INNER}/attention_1/self/key",
    "encoder/layers/shared/layer/value": f"{_INNER}/attention_1/self/value",
    "encoder/layers/shared/layer/attention_output": f"{_INNER}/attention_1/output/dense",
    "encoder/layers/shared/layer/attention_norm": f"{_INNER}/LayerNorm",
    "encoder/layers/shared/layer/intermediate": f"{_INNER}/ffn_1/intermediate/dense",
    "encoder/layers/shared/layer/output": f"{_INNER}/ffn_1/intermediate/output/dense",
    "encoder/layers/shared/layer/output_norm": f"{_INNER}/LayerNorm_1",
    "pooler/dense": "bert/pooler/dense",
    "mlm/transform": "cls/predictions/transform/dense",
    "mlm/transform_norm": "cls/predictions/transform/LayerNorm",
}
TF_NAMES = {
    **{
        f"{ours}/{end}": f"{theirs}/{google}"
        for ours, theirs in SCOPES.items()
        for end, google in (("scale", "gamma"), ("bias", "beta")) * ours.endswith("norm")
        or (("kernel", "kernel"), ("bias", "bias"))
    },
    **{
        f"encoder/embeddings/{x}_embeddings": f"bert/embeddings/{x}_embeddings"
        for x in ("word", "token_type", "position")
    },
    "mlm/bias": "cls/predictions/output_bias",
    "nsp/kernel": "cls/seq_relationship/output_weights",
    "nsp/bias": "cls/seq_relationship/output_bias",
}


def test_the_model_that_is_pre_trained_has_the_heads_of_transformers():
    golden = convert.load(FOLDER / "pretraining")
    boxed = parameters.abstract(PretrainingModel(golden.config, FAMILY.masked_lm), 6)
    assert parameters.parameter_shapes(boxed) == {name: x.shape for name, x in golden.params.items()}


def test_gelu_is_the_tanh_version_in_googles_files_and_exact_in_those_of_transformers():
    read = FAMILY.read_config
    assert read({"hidden_act": "gelu"}).hidden_act == "gelu"
    assert read({"hidden_act": "gelu_new"}).hidden_act == "gelu_tanh"
    assert read({"hidden_act": "gelu"}, TENSORFLOW).hidden_act == "gelu_tanh"
    written = FAMILY.write_config(read({"hidden_act": "gelu_new"}), "none")
    assert written["hidden_act"] == "gelu_new"
    assert FAMILY.tensorflow_fields(FAMILY.tensorflow, read({}, TENSORFLOW))["hidden_act"] == "gelu"


def small(**fields):
    return FAMILY.read_config(
        {
            "vocab_size": 30,
            "embedding_size": 8,
            "hidden_size": 12,
            "num_attention_heads": 3,
            "intermediate_size": 20,
            "num_hidden_layers": 4,
            "max_position_embeddings": 16,
            "hidden_act": "gelu_new",
            **fields,
        }
    )


def test_transformers_alone_projects_embeddings_of_the_width_of_the_layers():
    googles, theirs = small(embedding_size=12), small(embedding_size=12, model_type="albert")
    assert theirs.projects_embeddings and not googles.projects_embeddings
    assert FAMILY.read_config(FAMILY.write_config(theirs, "none")) == theirs
    with pytest.raises(UserError, match="projection_placement"):
        FAMILY.write_config(googles, "none")


def test_variables_of_a_tf1_checkpoint_have_the_names_of_googles_scopes():
    model = random_model(small())
    tensors = FAMILY.to_files(model.params, model.config, TENSORFLOW)
    assert tensors.keys() == {*TF_NAMES.values()} and model.params.keys() == TF_NAMES.keys()
    for ours, theirs in TF_NAMES.items():
        array = model.params[ours].T if ours == "nsp/kernel" else model.params[ours]
        assert np.array_equal(tensors[theirs].reshape(-1), array.reshape(-1)), ours
    config = FAMILY.read_config(FAMILY.tensorflow_fields(FAMILY.tensorflow, model.config), TENSORFLOW)
    assert config.spelled_out() == model.config.replace(classifier_dropout=None)
    found = FAMILY.from_files(tensors, config, TENSORFLOW)
    assert all(np.array_equal(found.params[name], array) for name, array in model.params.items())
    assert not any((found.missing, found.misshapen, found.unknown))


@pytest.mark.parametrize("fields", [{}, {"num_hidden_groups": 3}])
@needs_tensorflow
def test_a_tf1_checkpoint_is_read_back(tmp_path, fields):
    model = random_model(small(**fields))
    tensorflow1.FORMAT.write(model, tmp_path)
    assert json.loads((tmp_path / "albert_config.json").read_text())["hidden_act"] == "gelu"
    again = tensorflow1.FORMAT.read(tmp_path)
    assert parity.check_same("it", model, again) == 0


def test_transformers_gets_a_tokenizer_of_the_same_ids(tmp_path):
    """Symbols that are pieces by themselves, digits before a comma, accents, spaces, and special tokens."""
    draw = random.Random(0)
    words = "the old wife said (a. b.) of a caf\u00e9 note - for \u00a35 in town".split()
    numbers = ["9,", "42,", "1999,", "7,"]
    lines = [" ".join(draw.choices([*words, *numbers, "ex-wife"], k=9)) for _ in range(600)]
    (tmp_path / "text.txt").write_text("\n".join(lines), "utf-8")
    flags = ["--kind=sentencepiece", "--normalizer=albert", "--size=110"]
    vocabulary = tmp_path / "vocab.model"
    assert cli.main(["vocab", f"--input={tmp_path}/text.txt", f"--output={vocabulary}", *flags]) == 0
    tokenizer = tokenization.load(vocabulary, normalizer="albert")
    assert any(token in ("\u25819,", "9,", "42,", "\u258142,") for token in tokenizer.tokens)
    others = ["", "  a-b . c -- d", "``9, 42,''", "Caf\u00e9.", "1999,(42,)\t9", "\u00a3 words\n- note"]
    texts = [*lines, *others]
    rust = huggingface.albert_rust(tokenizer)
    theirs = [one.ids for one in rust.encode_batch(texts, add_special_tokens=False)]
    assert theirs == tokenizer.encode_batch(texts)
    ids = tokenizer.special_ids
    a, b = tokenizer.encode_batch(["the wife", "words"])
    pair = rust.encode("the wife", "words")
    assert pair.ids == [ids["cls"], *a, ids["sep"], *b, ids["sep"]] and sum(pair.type_ids) == len(b) + 1
    assert rust.encode("the [MASK].", add_special_tokens=False).ids.count(ids["mask"]) == 1
