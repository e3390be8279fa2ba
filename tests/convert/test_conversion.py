"""`bert-jax convert`, from end to end."""

import os
import shutil

import numpy as np
import pytest
from safetensors import SafetensorError

from bert_jax import cli, convert
from bert_jax.convert import conversion, formats, parity
from bert_jax.convert.formats import huggingface
from bert_jax.errors import StorageError, UserError


@pytest.mark.long
def test_round_trip_of_the_command(export, tmp_path, capsys):
    folder, model = export()
    native_dir, back = tmp_path / "native", tmp_path / "back"
    assert cli.main(["convert", f"--input={folder}", f"--output={native_dir}", "--to=bert_jax"]) == 0
    assert "forward pass differs by" in capsys.readouterr().out
    assert cli.main(["convert", f"--input={native_dir}", f"--output={back}", "--to=huggingface"]) == 0
    assert (back / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    card = (back / "README.md").read_text()
    assert "--input=native" in card and str(tmp_path) not in card
    assert sorted(os.listdir(tmp_path)) == ["back", "huggingface", "native"]  # and nothing half-made
    loaded = convert.load(native_dir)
    assert loaded.head == "pretraining" and loaded.tokenizer.tokens == model.tokenizer.tokens


@pytest.mark.long
def test_a_checkpoint_is_replaced_only_when_asked_and_nothing_else_is(export, tmp_path, capsys):
    folder, _ = export()
    out, other = tmp_path / "out", tmp_path / "other"
    command = ["convert", f"--input={folder}", "--to=bert_jax"]
    out.mkdir()
    assert cli.main([*command, f"--output={out}"]) == 0  # an empty directory is as good as none
    before = (out / "config.json").stat().st_mtime_ns
    assert cli.main([*command, f"--output={out}"]) == 2
    assert "exists already; --overwrite replaces it" in capsys.readouterr().err
    assert (out / "config.json").stat().st_mtime_ns == before
    assert cli.main([*command, f"--output={out}", "--overwrite"]) == 0
    assert (out / "config.json").stat().st_mtime_ns > before
    run = tmp_path / "run"
    shutil.copytree(out, run)
    (run / "config.json").write_text((out / "config.json").read_text().replace('"convert"', '"finetune"'))
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    mixed, inside = tmp_path / "mixed", tmp_path / "mixed2" / "notes"
    for copy in (mixed, inside.parent):
        shutil.copytree(out, copy)
    (mixed / "thesis.tex").write_text("years of work")
    inside.mkdir()
    (inside / "thesis.txt").write_text("years of work")
    for kept in (folder, run, other, mixed, inside):
        files = sorted(kept.rglob("*"))
        assert cli.main([*command, f"--output={kept}", "--overwrite"]) == 2
        assert "--overwrite replaces only" in capsys.readouterr().err and sorted(kept.rglob("*")) == files


@pytest.mark.parametrize("to", ["huggingface", "bert_jax"])
def test_a_wrong_conversion_leaves_nothing(export, tmp_path, monkeypatch, to):
    folder, _ = export()
    write = formats.FORMATS[to].write

    def spoil(model, *args, **options):
        kernel = model.params["encoder/layers/stack/layer/query/kernel"].copy()
        kernel[1, 2, 0, 1] = np.nextafter(kernel[1, 2, 0, 1], 9)  # the last bit of one number
        write(
            model.replace(params={**model.params, "encoder/layers/stack/layer/query/kernel": kernel}),
            *args,
            **options,
        )

    monkeypatch.setattr(formats.FORMATS[to], "write", spoil)
    with pytest.raises(UserError, match=r"layer/query/kernel differ; .*nothing is kept"):
        conversion.convert(str(folder), str(tmp_path / "out"), to)
    assert os.listdir(tmp_path) == ["huggingface"]


def test_not_a_number_is_a_difference(make_model):
    model = make_model()
    right = parity.flax_outputs(model)
    wrong = right | {"pooled": np.full_like(right["pooled"], np.nan)}
    with pytest.raises(UserError, match="in pooled"):
        parity.compare("it", right, wrong)


def test_a_full_disk_ends_a_conversion_in_one_line(export, monkeypatch, tmp_path):
    folder, _ = export()

    def fail(*args, **fields):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(huggingface, "save_file", fail)
    output = tmp_path / "out"
    with pytest.raises(StorageError, match=r"--output=.*cannot be written"):
        conversion.convert(str(folder), str(output), "huggingface", log=lambda line: None)
    assert not output.exists() and not list(tmp_path.glob(".convert-*"))
