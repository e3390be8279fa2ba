"""`bert-jax convert`, from end to end."""

import os

import numpy as np
import pytest

from bert_jax import cli, convert
from bert_jax.convert import check, converting, huggingface_export, names, native
from bert_jax.errors import UserError


def test_round_trip_of_the_command(export, tmp_path, capsys):
    folder, model = export()
    native_dir, back = tmp_path / "native", tmp_path / "back"
    assert cli.main(["convert", f"--input={folder}", f"--output={native_dir}", "--to=bert_jax"]) == 0
    assert "forward pass differs by" in capsys.readouterr().out
    assert cli.main(["convert", f"--input={native_dir}", f"--output={back}", "--to=huggingface"]) == 0
    assert (back / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert f"--input={native_dir}" in (back / "README.md").read_text()
    assert sorted(os.listdir(tmp_path)) == ["back", "huggingface", "native"]  # and nothing half-made
    loaded = convert.load(native_dir)
    assert loaded.head == "pretraining" and loaded.tokenizer.tokens == model.tokenizer.tokens


@pytest.mark.parametrize("head", convert.HEADS)
def test_head_and_labels_outlive_a_work_directory(make_model, tmp_path, head):
    model = make_model(head)
    native.write(model, tmp_path)
    again = convert.load(tmp_path)
    assert (again.head, again.labels, again.config) == (model.head, model.labels, model.config)


@pytest.mark.parametrize("to", ["huggingface", "bert_jax"])
def test_a_wrong_conversion_leaves_nothing(export, tmp_path, monkeypatch, to):
    folder, _ = export()
    module = huggingface_export if to == "huggingface" else native
    write = module.write

    def spoil(model, *args, **options):
        kernel = model.params["encoder/layers/stack/layer/query/kernel"]
        swapped = {"encoder/layers/stack/layer/query/kernel": np.ascontiguousarray(kernel[::-1])}
        write(model.replace(params=dict(model.params) | swapped), *args, **options)

    monkeypatch.setattr(module, "write", spoil)
    with pytest.raises(UserError, match="differ by .*nothing is kept"):
        converting.convert(str(folder), str(tmp_path / "out"), to)
    assert os.listdir(tmp_path) == ["huggingface"]


def test_a_wrong_table_is_seen_when_a_source_is_read(export, tmp_path, monkeypatch):
    folder, _ = export()
    swap = {"self.query": "self.key", "self.key": "self.query"}

    def exchanged(entry):
        for old, new in swap.items():
            if old in entry.huggingface:
                return entry._replace(huggingface=entry.huggingface.replace(old, new))
        return entry

    monkeypatch.setattr(names, "TABLE", tuple(map(exchanged, names.TABLE)))
    with pytest.raises(UserError, match="differ by"):
        converting.convert(str(folder), str(tmp_path / "out"), "bert_jax")


def test_not_a_number_is_a_difference(make_model):
    model = make_model()
    right = check.flax_outputs(model)
    wrong = right | {"pooled": np.full_like(right["pooled"], np.nan)}
    with pytest.raises(UserError, match="in pooled"):
        check.compare("it", right, wrong)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--output=o", "--to=bert_jax"], "needs --input"),
        (["--input=nowhere", "--output=o", "--to=bert_jax"], "nowhere: no such directory"),
        (["--input={folder}", "--output={folder}", "--to=bert_jax"], "is there already"),
        (
            ["--input={folder}", "--output=o", "--to=bert_jax", "--push_to=me/it"],
            "takes a Hugging Face folder",
        ),
        (["--input={folder}", "--output=o", "--to=huggingface", "--max_shard_size=much"], "such as 500MB"),
        (["--input={folder}", "--output=/proc/no/o", "--to=huggingface"], "cannot be written"),
    ],
    ids=["input", "nowhere", "there", "push", "size", "unwritable"],
)
def test_mistakes_get_one_line(export, tmp_path, capsys, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    folder, _ = export()
    assert cli.main(["convert", *(flag.format(folder=folder) for flag in flags)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not (tmp_path / "o").exists()
