"""`bert_jax.load` and `encode`, against the embedding command's own parts and transformers' numbers."""

import ast
import dataclasses
import importlib
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
import pytest
from support.embeddings import TEXTS, tiny_model

import bert_jax
from bert_jax import convert
from bert_jax.convert.formats import huggingface
from bert_jax.convert.sentences import SentenceVectors
from bert_jax.errors import UserError
from bert_jax.inference.embedding import Embedder
from bert_jax.library import LoadedModel

PAIRS = [*TEXTS[:4], ("the cat", "is big . one two")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    folder = directory / "huggingface"
    folder.mkdir()
    huggingface.FORMAT.write(tiny_model(directory), folder)
    return folder


@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler"])
def test_encode_gives_what_embed_gives(folder, pooling):
    model = bert_jax.load(folder)
    out = model.encode(PAIRS, pooling)
    assert np.allclose(out.pooled, Embedder(convert.load(folder), pooling=pooling).embed(PAIRS), atol=1e-5)
    for i, states in enumerate(Embedder(convert.load(folder), pooling="none").embed(PAIRS)):
        assert np.array_equal(out.states[i, : out.lengths[i]], states[:, 0])
        assert not out.states[i, out.lengths[i] :].any()
    assert out.tokens.dtype == np.int32 and out.tokens.shape == out.states.shape[:2]
    ends = out.tokens[0, [0, out.lengths[0] - 1]].tolist()
    assert ends == [model.tokenizer.cls_id, model.tokenizer.sep_id]


@pytest.mark.long
def test_texts_are_as_long_as_the_model_of_sentences_takes_them(tmp_path):
    sentence = SentenceVectors(normalize=True, max_seq_length=8)
    model = tiny_model(tmp_path).replace(sentence=sentence)
    long = ["the cat is big . one two three the cat is big"]
    model_of_sentences = LoadedModel(model)
    out = model_of_sentences.encode(long)
    assert out.lengths.tolist() == [8]
    assert np.allclose(out.pooled, Embedder(model).embed(long), atol=1e-5)
    with pytest.raises(UserError, match="Dense"):
        other = dataclasses.replace(sentence, unsupported="the module Dense")
        LoadedModel(model.replace(sentence=other)).encode(long)
    out = model_of_sentences.encode(long, pooling="cls")
    assert out.lengths.tolist() == [8] and np.linalg.norm(out.pooled) == pytest.approx(1)
    assert np.allclose(out.pooled, Embedder(model, pooling="cls").embed(long), atol=1e-5)


def test_module_and_params_compute_the_same(folder):
    model = bert_jax.load(folder, dtype="float32")
    out = model.encode(PAIRS, "pooler")
    inputs = model.inputs(PAIRS)
    assert inputs["input_ids"].shape == out.tokens.shape and np.array_equal(inputs["input_ids"], out.tokens)
    assert inputs["token_type_ids"][-1].sum() > 0 and inputs["token_type_ids"][:-1].sum() == 0
    outputs = model.module.apply({"params": model.params}, **inputs)
    real = inputs["sequence_ids"] > 0
    assert np.allclose(np.asarray(outputs["hidden"])[real], out.states[real], atol=1e-5)
    assert np.allclose(outputs["pooled"], out.pooled, atol=1e-5)


def test_parameters_cannot_be_changed_in_place(folder):
    model = bert_jax.load(folder)
    before = model.encode(PAIRS).pooled
    for array in jax.tree.leaves(model.params):
        with pytest.raises(ValueError, match="read-only"):
            array *= 2
    assert np.array_equal(model.encode(PAIRS).pooled, before)
    doubled = jax.tree.map(lambda array: 2 * array, model.params)  # what is computed from them can be
    doubled["encoder"]["embeddings"]["word_embeddings"] *= 2


def test_mistakes_are_told(folder):
    model = bert_jax.load(folder)
    for wrong in ("a", None, {"text": "a cat"}, np.array("a cat"), pa.table({"text": ["a"]})):
        with pytest.raises(UserError, match=r"texts is \w+: expected a list"):
            model.encode(wrong)
    for item in (None, 1, b"x", ("a", "b", "c"), ("a", None), {"a": "b"}):
        with pytest.raises(UserError, match=r"text 2 is .*: expected a str, or a pair"):
            model.inputs(["a", ("b", "c"), item])
    with pytest.raises(UserError, match="sum"):
        model.encode(["a"], "sum")
    pairs = [["a", "b"], np.array(["a", "b"]), np.array(["a", "b"], object)]
    assert np.unique(model.inputs(pairs)["input_ids"], axis=0).shape[0] == 1
    assert model.encode([]).states.shape == (0, 0, model.config.hidden_size)


def test_programs_that_check_types_see_what_the_package_imports_lazily():
    package = Path(bert_jax.__file__).parent
    assert (package / "py.typed").exists()
    declared = ast.parse((package / "__init__.pyi").read_text()).body
    imports = [
        (part.module, name) for part in declared if isinstance(part, ast.ImportFrom) for name in part.names
    ]
    # Without "as", a stub does not export a name.
    assert sorted(name.asname for _, name in imports) == sorted(bert_jax.__all__)
    for module, name in imports:
        assert getattr(importlib.import_module(module), name.name) is getattr(bert_jax, name.asname)
    assert ast.literal_eval(declared[-1].value) == bert_jax.__all__


def test_the_package_imports_nothing_heavy():
    code = "import sys, bert_jax; bert_jax.__version__; print({'jax', 'flax', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
