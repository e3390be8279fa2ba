"""Hugging Face folders: whole, half and foreign."""

import json
import os

import jax
import ml_dtypes
import numpy as np
import pytest
from flax.core import meta
from safetensors.numpy import load_file, save_file

from bert_jax import cli
from bert_jax.checkpoint.leaves import nest
from bert_jax.convert import loading
from bert_jax.convert.families import bert
from bert_jax.convert.formats import huggingface
from bert_jax.errors import UserError
from bert_jax.models import config
from bert_jax.runs import benchmark


def edit(folder, change):
    """Applies `change` to the dict of tensors of a folder."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize("head", bert.FAMILY.heads)
def test_a_written_folder_reads_back(export, head):
    folder, model = export(head)
    again = huggingface.FORMAT.read(folder)
    assert again.head == model.head and again.labels == model.labels and again.config == model.config
    assert all(np.array_equal(again.params[name], model.params[name]) for name in model.params)
    assert again.tokenizer.tokens == model.tokenizer.tokens
    assert again.tokenizer.lower_case is model.tokenizer.lower_case


def test_weights_are_split_and_readable_by_all(tmp_path, make_model):
    model = make_model()
    huggingface.FORMAT.write(model, tmp_path, max_shard_bytes=4000)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2 and not (tmp_path / "model.safetensors").exists()
    assert all(sum(x.nbytes for x in load_file(shard).values()) <= 4000 for shard in shards)
    assert {os.stat(shard).st_mode & 0o777 for shard in shards} == {
        os.stat(tmp_path / "config.json").st_mode & 0o777
    }
    again = huggingface.FORMAT.read(tmp_path)
    assert all(np.array_equal(again.params[name], model.params[name]) for name in model.params)
    shards[1].unlink()
    with pytest.raises(UserError, match=f"{shards[1].name}: cannot be read"):
        huggingface.FORMAT.read(tmp_path)


def test_older_names_are_understood(export):
    folder, model = export()

    def rename(tensors):
        for name in list(tensors):
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            )
            tensors[old] = tensors.pop(name)
        tensors["bert.embeddings.position_ids"] = np.arange(16)[None]
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].copy()

    edit(folder, rename)
    again = huggingface.FORMAT.read(folder)
    assert all(np.array_equal(again.params[name], model.params[name]) for name in model.params)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_becomes_float32(export, dtype):
    folder, model = export()
    edit(folder, lambda tensors: tensors.update({name: x.astype(dtype) for name, x in tensors.items()}))
    again = huggingface.FORMAT.read(folder)
    for name, array in model.params.items():
        assert again.params[name].dtype == np.float32
        assert np.array_equal(again.params[name], array.astype(dtype).astype(np.float32))


def _drop(name):
    return lambda folder: edit(folder, lambda tensors: tensors.pop(name))


def _set(name, value):
    return lambda folder: edit(folder, lambda tensors: tensors.update({name: value}))


def _config(**fields):
    def change(folder):
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))

    return change


def _cut(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


MISTAKES = {
    "a layer's tensor": (
        _drop("bert.encoder.layer.1.output.dense.bias"),
        "lacks bert.encoder.layer.1.output.dense.bias",
    ),
    "another shape": (_config(hidden_size=24, intermediate_size=40), "does not match its configuration"),
    "relative positions": (_config(position_embedding_type="relative_key"), "position_embedding_type"),
    "cut short": (_cut, "cannot be read as safetensors"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_is_not_whole_is_refused(export, name):
    folder, _ = export()
    change, message = MISTAKES[name]
    change(folder)
    with pytest.raises(UserError, match=message):
        huggingface.FORMAT.read(folder)


def test_an_untied_decoder_that_the_configuration_names_is_read_and_trained_on(export, tmp_path):
    folder, model = export("masked_lm")
    decoder = np.random.default_rng(1).normal(size=(25, 12)).astype(np.float32)
    _set("cls.predictions.decoder.weight", decoder)(folder)
    _config(tie_word_embeddings=False)(folder)
    assert cli.main(["fill-mask", f"--model={folder}", "the [MASK] sat"]) == 0
    convert = ["convert", f"--input={folder}", "--to=bert_jax", f"--output={tmp_path}/out"]
    assert cli.main(convert) == 0
    for path in (folder, tmp_path / "out"):
        fields, _ = loading.adopt_architecture(path, model.config.to_dict())
        learned = benchmark.make_masked_lm(config.from_dict(fields), 8, next_sentence=False)
        wanted = jax.eval_shape(lambda key, one=learned: meta.unbox(one.init(key)), jax.random.key(0))
        params, _ = loading.load_params(str(path), wanted)
        np.testing.assert_array_equal(params["mlm"]["decoder"]["kernel"], decoder.T)
        np.testing.assert_array_equal(params["mlm"]["decoder"]["bias"], model.params["mlm/bias"])


@pytest.mark.parametrize("head", ["masked_lm", "pretraining"])
def test_an_untied_decoder_stops_only_what_uses_the_masked_lm_head(export, tmp_path, capsys, head):
    folder, model = export(head)
    _set("cls.predictions.decoder.weight", np.zeros((25, 12), np.float32))(folder)
    lines, words = [], "encoder/embeddings/word_embeddings"
    read = loading.load(str(folder), log=lines.append)
    assert read.head == "none" and "mlm" not in read.groups
    assert np.array_equal(read.params[words], model.params[words])
    assert any("cls.predictions.decoder.weight" in line for line in lines)
    out = f"--output={tmp_path}/out"
    for command in (
        ["fill-mask", f"--model={folder}", "the [MASK] sat"],
        ["convert", f"--input={folder}", out, "--to=bert_jax"],
    ):
        assert cli.main(command) == 2
        assert "masked LM head" in capsys.readouterr().err.splitlines()[-1]
    assert cli.main(["convert", f"--input={folder}", out, "--to=bert_jax", "--head=none"]) == 0
    wanted = nest({name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in model.params.items()})
    with pytest.raises(UserError, match="lacks mlm/"):
        loading.load_params(str(folder), wanted, log=lines.append)
    wanted = {"encoder": wanted["encoder"]}
    assert not loading.load_params(str(folder), wanted, log=lines.append)[1].new
