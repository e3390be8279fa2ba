"""Hugging Face folders whose JSON is of other types, or claims other sizes than the weights have."""

import json
import pathlib
import shutil

import pytest
from safetensors import SafetensorError

from bert_jax import cli
from bert_jax.convert import conversion
from bert_jax.convert.formats import huggingface, huggingface_export
from bert_jax.errors import StorageError, UserError

PEFT = pathlib.Path(__file__).parents[1] / "testdata" / "peft" / "bert"


def change(path, **fields):
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | fields))


@pytest.mark.parametrize(
    "file, fields, message",
    [
        ("config.json", {"hidden_size": "12"}, r"config\.json: hidden_size='12' must be a whole number"),
        ("tokenizer.json", {"model": "WordPiece"}, 'model is "WordPiece", expected an object'),
        ("model.safetensors.index.json", {"weight_map": {"a": "../b"}}, "missing in the folder"),
    ],
)
def test_fields_of_another_type(export, file, fields, message):
    folder, _ = export("sequence_classification")
    hidden_by = {"tokenizer.json": "vocab.txt", "model.safetensors.index.json": "model.safetensors"}
    if file in hidden_by:
        (folder / hidden_by[file]).unlink()
    change(folder / file, **fields)
    with pytest.raises(UserError, match=message) as caught:
        huggingface.FORMAT.read(folder)
    assert "\n" not in str(caught.value)


def test_a_full_disk_ends_a_conversion_in_one_line(export, monkeypatch, tmp_path):
    folder, _ = export()

    def fail(*args, **fields):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(huggingface_export, "save_file", fail)
    output = tmp_path / "out"
    with pytest.raises(StorageError, match=r"--output=.*cannot be written.*it is as it was before"):
        conversion.convert(str(folder), str(output), "huggingface", log=lambda line: None)
    assert not output.exists() and not list(tmp_path.glob(".convert-*"))


@pytest.mark.parametrize("name", ["model.safetensors", "adapter_model.safetensors"])
def test_weights_that_cannot_be_read_are_an_error_that_names_the_file(tmp_path, capsys, name):
    shutil.copytree(PEFT, tmp_path / "bert")
    folder = tmp_path / "bert" / ("adapter" if name.startswith("adapter") else "base")
    (folder / name).write_bytes((folder / name).read_bytes()[:100])
    assert cli.main(["convert", f"--input={folder}", f"--output={tmp_path}/out", "--to=bert_jax"]) == 2
    error = capsys.readouterr().err
    assert str(folder / name) in error and error.count("\n") == 1
