"""Exports of every head, family and variant of the encoder compute what the model does."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from support.embeddings import tiny_model
from support.pretrained import vocabulary  # noqa: F401

from bert_jax import cli, convert
from bert_jax.convert.families import bert
from bert_jax.convert.formats import work_directory
from bert_jax.convert.sentences import SentenceVectors
from bert_jax.errors import UserError
from bert_jax.export import folder as outputs
from bert_jax.export import onnx as onnx_export
from bert_jax.export.folder import FORMATS
from bert_jax.inference.embedding import Embedder
from bert_jax.models import assembled

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.usefixtures("quick_compilation")

TESTDATA = Path(__file__).parents[1] / "testdata"
VARIANTS = {
    "rotary": dict(position="rotary", feed_forward="glu", hidden_act="gelu_tanh"),
    "local": dict(
        position="rotary", local_window=3, global_every=2, norm_placement="pre", final_norm=True,
        first_attention_norm=False, local_rotary_theta=100.0,
    ),
    "alibi": dict(position="alibi", num_attention_heads=2, hidden_act="silu", type_vocab_size=0),
    "plain": dict(norm_bias=False, type_vocab_size=1, hidden_act="relu", embedding_norm=False),
    "offset": dict(position_offset=2),
    "no biases": dict(attention_bias=False, inner_bias=False, output_bias=False, norm="rmsnorm"),
    "shared": dict(layer_groups=1, embedding_size=8),
}  # fmt: skip


def build(tmp_path, groups=("encoder", "pooler"), head="none", classes=(), **fields):
    """A model with weights so large that each of them shows in the outputs."""
    model = tiny_model(tmp_path, **fields)
    rng = np.random.default_rng(1)
    params = {
        name: rng.normal(float(name.endswith("scale")), 0.4, shape).astype(np.float32)
        for name, shape in assembled.shapes(model.config, groups, *classes).items()
    }
    return model.replace(params=params, head=head)


def compare(model, tmp_path):
    path = str(tmp_path / "model.onnx")
    onnx_export.write(model, path)
    assert outputs.difference(model, onnx_export.Session(path)) < 2e-5
    return path


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_of_the_encoder(name, tmp_path):
    compare(build(tmp_path, **VARIANTS[name]), tmp_path)


@pytest.mark.parametrize(
    "fields",
    [{"causal": True}, {"position": "sinusoid"}, {"position": "disentangled"}, {"output_adapter": 3}],
)
def test_what_has_no_export_is_an_error(fields, tmp_path):
    with pytest.raises(UserError, match=f"--to=onnx does not support {next(iter(fields))}="):
        onnx_export.ModelGraph(build(tmp_path, **fields))


@pytest.mark.parametrize("head", bert.FAMILY.heads)
def test_every_head(head, tmp_path):
    groups = tuple(group.strip("()") for group in bert.FAMILY.heads[head])
    classes = {"multiple_choice": (1,), "sequence_classification": (3,), "token_classification": (3,)}
    model = build(tmp_path, groups, head, classes.get(head, ()))
    path = compare(model, tmp_path)
    assert onnx_export.Session(path)._inputs == list(outputs.INPUTS)


def folders():
    """Every folder of the test data with weights; one head of each family is in the fast suite."""
    for path in sorted(TESTDATA.glob("*/*/model.safetensors")):
        folder = path.parent.relative_to(TESTDATA)
        if folder.parts[0] == "deberta-v2":  # it has no ONNX export
            continue
        marks = () if folder.name in ("masked_lm", "questions") else (pytest.mark.slow,)
        yield pytest.param(str(folder), marks=marks)


@pytest.mark.long
@pytest.mark.parametrize("folder", list(folders()))
def test_every_family(folder, tmp_path):
    compare(convert.load(TESTDATA / folder, log=lambda line: None), tmp_path)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "last"])
def test_vectors_of_texts(pooling, tmp_path):
    model = build(tmp_path).replace(sentence=SentenceVectors(pooling, pooling != "cls"))
    path = compare(model, tmp_path)
    rows = list(Embedder(model).rows(["the cat is big", "a dog"]))
    ids = np.zeros((2, max(len(row.token_ids) for row in rows)), np.int64)
    for row, tokens in zip(rows, ids, strict=True):
        tokens[: len(row.token_ids)] = row.token_ids
    found = onnx_export.Session(path)(ids, ids > 0, 0 * ids)["sentence_embedding"]
    np.testing.assert_allclose(found, Embedder(model).embed(["the cat is big", "a dog"]), atol=2e-5)


@pytest.fixture
def export(tmp_path, capsys):
    model = build(tmp_path)
    work_directory.FORMAT.write(model, tmp_path / "model")

    def call(*flags, code=0):
        capsys.readouterr()
        command = ["convert", f"--input={tmp_path / 'model'}", f"--output={tmp_path / 'out'}", "--to=onnx"]
        command += flags
        assert cli.main(command) == code
        return capsys.readouterr()

    return call, model, tmp_path / "out"


@pytest.mark.long
@pytest.mark.parametrize("to", FORMATS)
def test_the_code_of_the_card_runs_the_export(export, to):
    call, model, folder = export
    call(f"--to={to}")
    card = (folder / "README.md").read_text()
    code = card.partition("```python\n")[2].partition("```")[0].replace("DIR", str(folder))
    assert "from transformers import AutoTokenizer\n" in code and "AutoModel" not in code
    assert card.splitlines()[1] == f"library_name: {'onnx' if to == 'onnx' else 'jax'}"
    lines = [line for line in code.splitlines() if "okenizer" not in line]
    found = {"rows": {name: np.ones((2, 5), np.int64) for name in outputs.INPUTS}}
    exec("\n".join(lines), found)
    expected = outputs.function(model)(*found["rows"].values())
    assert found["outputs"].keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found["outputs"][name], array, atol=1e-4)


@pytest.mark.long
def test_a_folder_of_onnx(export):
    call, _, folder = export
    assert "model.onnx" in call().err
    assert {"config.json", "vocab.txt", "tokenizer.json", "README.md", "onnx"} <= {*os.listdir(folder)}
    assert not (folder / "model.safetensors").exists()
    assert (folder / onnx_export.FILE).stat().st_size > 10_000
    assert json.loads((folder / "config.json").read_text())["model_type"] == "bert"
    assert "exists already" in call(code=2).err
    call("--overwrite", "--to=stablehlo")
    assert not (folder / "onnx").exists()


def test_stablehlo_of_disentangled_attention(tmp_path):
    model = convert.load(TESTDATA / "deberta-v2" / "sequence_classification", log=lambda line: None)
    outputs.write_stablehlo(model, str(tmp_path / "model.stablehlo"))
    assert outputs.difference(model, outputs.load_stablehlo(str(tmp_path / "model.stablehlo"))) < 2e-5


@pytest.mark.long
def test_stablehlo_of_any_shape(export):
    call, model, folder = export
    assert "model.stablehlo" in call("--to=stablehlo").err
    run = outputs.load_stablehlo(str(folder / outputs.STABLEHLO_FILE))
    assert outputs.difference(model, run) < 2e-5
    for shape in ((1, 2), (3, 17)):
        ids = np.full(shape, 5)
        assert run(ids, np.ones(shape), np.zeros(shape))["last_hidden_state"].shape == (*shape, 16)
    longest = model.config.max_seq_length
    ids = np.full((2, longest + 1), 5)
    with pytest.raises(ValueError) as raised:
        run(ids, np.ones_like(ids), np.zeros_like(ids))
    assert f"symbolic shape constraint sequence <= {longest}" in str(raised.value.__cause__)
    assert run(*(x[:, :longest] for x in (ids, ids, 0 * ids)))["last_hidden_state"].shape[1] == longest


def test_an_export_that_differs_is_not_kept(export, monkeypatch):
    call, _, folder = export
    monkeypatch.setattr(onnx_export.Session, "__call__", lambda self, *rows: {
        "last_hidden_state": np.zeros((2, 24, 16), np.float32), "pooler_output": np.zeros((2, 16), np.float32)
    })  # fmt: skip
    assert "nothing is kept" in call(code=2).err and not folder.exists()
