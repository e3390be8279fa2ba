"""A format that is registered works wherever a checkpoint is taken, with nothing else changed."""

import json
import os

import numpy as np
import pytest

from bert_jax import cli, convert, tokenization
from bert_jax.convert import formats
from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.models import config as bert_config


class Npz(formats.Format):
    """A directory with model.npz, model.json and vocab.txt."""

    name = "npz"
    title = "NumPy folder"
    example = "a folder with model.npz"

    def detect(self, path):
        return files.exists(os.path.join(path, "model.npz"))

    def read_config(self, path):
        with open(os.path.join(path, "model.json")) as file:
            fields = json.load(file)["config"]
        return bert_config.from_dict(fields), tokenization.load(os.path.join(path, "vocab.txt"))

    def read(self, path, *, ignore="", log=print):
        config, tokenizer = self.read_config(path)
        with open(os.path.join(path, "model.json")) as file:
            head = json.load(file)["head"]
        with np.load(os.path.join(path, "model.npz")) as arrays:
            return convert.Model(config, dict(arrays), head, tokenizer, source=str(path))

    def write(self, model, folder, **options):
        np.savez(os.path.join(folder, "model.npz"), **model.params)
        with open(os.path.join(folder, "model.json"), "w") as file:
            json.dump({"config": model.config.to_dict(), "head": model.head}, file)
        with open(os.path.join(folder, "vocab.txt"), "w") as file:
            file.writelines(f"{token}\n" for token in model.tokenizer.tokens)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(formats, "_FORMATS", dict(formats._FORMATS))
    return formats.register(Npz())


@pytest.mark.long
def test_a_registered_format_is_converted_loaded_inspected_and_used(registered, export, tmp_path, capsys):
    folder, model = export("pretraining")
    npz, back = tmp_path / "npz", tmp_path / "back"
    assert cli.main(["convert", f"--input={folder}", f"--output={npz}", "--to=npz"]) == 0
    assert sorted(os.listdir(npz)) == ["model.json", "model.npz", "vocab.txt"]
    loaded = convert.load(npz)
    assert all(np.array_equal(loaded.params[name], model.params[name]) for name in model.params)
    assert convert.load_architecture(npz)[0] == model.config
    assert cli.main(["convert", f"--input={npz}", f"--output={back}", "--to=huggingface"]) == 0
    assert (back / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    capsys.readouterr()
    assert cli.main(["inspect", str(npz)]) == 0
    assert "NumPy folder" in capsys.readouterr().out
    filled = []
    for path in (npz, folder):
        assert cli.main(["fill-mask", f"--model={path}", "the [MASK] of france"]) == 0
        filled.append(capsys.readouterr().out)
    assert filled[0] == filled[1] and filled[0]


def test_messages_list_every_format(registered, tmp_path):
    with pytest.raises(UserError, match=r"a Hugging Face folder, or a folder with model\.npz"):
        convert.load(tmp_path)
    with pytest.raises(UserError, match="choose one of bert_jax, peft, tensorflow, huggingface, npz"):
        formats.get("onnx")
    with pytest.raises(ValueError, match="registered already"):
        formats.register(Npz())


def test_a_format_that_is_not_registered_is_not_found(export, tmp_path, capsys):
    folder, _ = export()
    assert cli.main(["convert", f"--input={folder}", f"--output={tmp_path / 'npz'}", "--to=npz"]) == 2
    assert "--to=npz: no such format; choose one of" in capsys.readouterr().err


def test_an_option_that_a_format_does_not_have_is_refused(export, tmp_path, capsys):
    folder, _ = export()
    command = ["convert", f"--input={folder}", f"--output={tmp_path / 'out'}", "--max_shard_size=5MB"]
    assert cli.main([*command, "--to=bert_jax"]) == 2
    assert "the format bert_jax has no shards" in capsys.readouterr().err


def test_the_help_of_convert_names_every_format(capsys):
    assert cli.main(["convert", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    listed = shown.split("Format to write:")[1].split(".")[0]
    assert all(name in listed for name in formats._FORMATS)
