"""TF1 checkpoints, with TensorFlow where it is installed."""

import json

import numpy as np
import pytest
from support.conversions import needs_tensorflow

from bert_jax import cli, convert
from bert_jax.convert.families import bert
from bert_jax.convert.formats import tensorflow1
from bert_jax.convert.param_mapping import TENSORFLOW


@needs_tensorflow
@pytest.mark.parametrize("head", ["none", "pretraining", "sequence_classification", "question_answering"])
def test_written_variables_read_back(make_model, tmp_path, head):
    model = make_model(head)
    tensorflow1.FORMAT.write(model, tmp_path)
    again = tensorflow1.FORMAT.read(tmp_path)
    assert (again.head, again.config) == (model.head, model.config)
    assert all(np.array_equal(again.params[name], model.params[name]) for name in model.params)


@needs_tensorflow
def test_around_all_formats_bit_for_bit(export, tmp_path):
    """Hugging Face -> bert_jax -> TF1 -> bert_jax -> Hugging Face."""
    folder, _ = export()
    path = folder
    for number, to in enumerate(["bert_jax", "tensorflow", "bert_jax", "huggingface"]):
        out = tmp_path / str(number)
        assert cli.main(["convert", f"--input={path}", f"--output={out}", f"--to={to}"]) == 0
        path = out
    for name in ("model.safetensors", "config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        assert (path / name).read_bytes() == (folder / name).read_bytes(), name


@needs_tensorflow
def test_a_checkpoint_made_elsewhere_loads_whole(shared_data, tmp_path):
    source = shared_data / "checkpoints" / "tf1-toy"
    model = tensorflow1.FORMAT.read(source / "bert_model.ckpt")
    tensors = bert.FAMILY.to_files(model.params, model.config, TENSORFLOW)
    assert model.head == "pretraining" and len(tensors) == 46
    toy = tmp_path / "toy"
    assert cli.main(["convert", f"--input={source}", f"--output={toy}", "--to=huggingface"]) == 0
    assert convert.load(toy).params.keys() == model.params.keys()


@needs_tensorflow
def test_every_variable_of_a_released_checkpoint_maps(shared_data):
    import tensorflow as tf

    folder = shared_data / "checkpoints"
    config = bert.FAMILY.read_config(json.loads((folder / "chinese_bert_config.json").read_text()))
    reader = tf.train.load_checkpoint(str(folder / "chinese_L-12_H-768_A-12.ckpt"))
    shapes = reader.get_variable_to_shape_map()
    zeros = {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}
    found = bert.FAMILY.from_files(zeros, config, TENSORFLOW)
    assert len(shapes) == 206 and found[1:] == ([], [], [])
    assert len(bert.FAMILY.to_files(found.params, config, TENSORFLOW)) == 206
