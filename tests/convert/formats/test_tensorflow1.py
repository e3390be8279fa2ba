"""TF1 checkpoints, with TensorFlow where it is installed."""

import json
import subprocess
import sys

import numpy as np
import pytest
from support.conversions import needs_tensorflow
from support.numpy_bert import file_outputs

from bert_jax import cli, convert
from bert_jax.convert import parity
from bert_jax.convert.families import bert
from bert_jax.convert.formats import tensorflow1
from bert_jax.convert.pair_scores import PairScores
from bert_jax.convert.param_mapping import TENSORFLOW
from bert_jax.convert.sentences import SentenceVectors
from bert_jax.errors import UserError


@pytest.mark.long
def test_without_tensorflow_it_says_what_to_install(tmp_path):
    (tmp_path / "bert_model.ckpt.index").write_bytes(b"")
    (tmp_path / "bert_config.json").write_text("{}")
    code = (
        "import sys; sys.modules['tensorflow'] = None; from bert_jax import cli; "
        f"sys.exit(cli.main(['convert', '--input={tmp_path}', '--output={tmp_path}/out', '--to=bert_jax']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and "pip install '.[tensorflow]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_prefixes_are_found(tmp_path):
    assert tensorflow1.find_prefix(tmp_path) is None
    for name in ("model.ckpt-10", "model.ckpt-20"):
        (tmp_path / f"{name}.index").write_bytes(b"")
    prefix = str(tmp_path / "model.ckpt-10")
    assert tensorflow1.find_prefix(prefix) == tensorflow1.find_prefix(prefix + ".index") == prefix
    with pytest.raises(UserError, match="several checkpoints"):
        tensorflow1.find_prefix(tmp_path)
    (tmp_path / "bert_model.ckpt.index").write_bytes(b"")
    assert tensorflow1.find_prefix(tmp_path) == str(tmp_path / "bert_model.ckpt")


@needs_tensorflow
@pytest.mark.parametrize("head", ["none", "pretraining", "sequence_classification", "question_answering"])
def test_written_variables_read_back(make_model, tmp_path, head):
    model = make_model(head)
    tensorflow1.FORMAT.write(model, tmp_path)
    again = tensorflow1.FORMAT.read(tmp_path)
    assert (again.head, again.config) == (model.head, model.config)
    assert all(np.array_equal(again.params[name], model.params[name]) for name in model.params)
    tensors = tensorflow1._Variables(str(tmp_path / "bert_model.ckpt"))
    arrays = {name: np.asarray(variable) for name, variable in tensors.items()}
    parity.compare("it", file_outputs(arrays, model.config, TENSORFLOW, head), parity.flax_outputs(model))


def test_what_a_checkpoint_does_not_keep_is_named(make_model):
    warning = tensorflow1.FORMAT.warning
    assert warning(make_model()) == ""
    assert warning(make_model().replace(sentence=SentenceVectors())) == ""
    sentence = SentenceVectors("cls", True, 8, {"query": "is ", "document": ""})
    expected = "does not keep pooling=cls, normalize=True, max_seq_length=8, the prompts query: give them to"
    assert expected in warning(make_model().replace(sentence=sentence))
    classifier = make_model("sequence_classification")
    assert "does not keep the labels a, b, c: give" in warning(classifier)
    numbered = classifier.replace(labels=("LABEL_0", "LABEL_1", "LABEL_2"))
    assert warning(numbered) == ""
    for kind in ("multi_label_classification", "regression"):
        assert f"does not keep problem_type={kind}: give" in warning(numbered.replace(problem_type=kind))
    scores = PairScores("torch.nn.modules.linear.Identity", 8)
    expected = "does not keep activation_fn=torch.nn.modules.linear.Identity, max_seq_length=8: give"
    assert expected in warning(numbered.replace(scores=scores))


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
    assert len(shapes) == 206 and found[1:] == ([], [], [], [])
    assert len(bert.FAMILY.to_files(found.params, config, TENSORFLOW)) == 206


@needs_tensorflow
def test_damage_and_strangers_are_told(make_model, tmp_path):
    model = make_model()
    tensorflow1.FORMAT.write(model, tmp_path)
    config = tmp_path / "bert_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_hidden_layers": 3}))
    with pytest.raises(UserError, match="lacks bert/encoder/layer_2"):
        tensorflow1.FORMAT.read(tmp_path)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_hidden_layers": 1}))
    with pytest.raises(UserError, match="which no BERT has"):
        tensorflow1.FORMAT.read(tmp_path)
    (tmp_path / "bert_model.ckpt.index").write_bytes(b"nothing")
    with pytest.raises(UserError, match="TensorFlow cannot read it"):
        tensorflow1.FORMAT.read(tmp_path)


@needs_tensorflow
def test_optimizer_state_stays_behind(make_model, tmp_path):
    import tensorflow as tf

    model = make_model()
    tensors = bert.FAMILY.to_files(model.params, model.config, TENSORFLOW)
    moments = {f"{name}/adam_{m}": x for name, x in tensors.items() for m in "mv"}
    everything = tensors | moments | {"global_step": np.int64(7)}
    tensorflow1.FORMAT.write(model, tmp_path)
    prefix = str(tmp_path / "model.ckpt-7")
    ordered = sorted(everything)
    tf.raw_ops.SaveV2(
        prefix=prefix + "-part",
        tensor_names=ordered,
        shape_and_slices=[""] * len(ordered),
        tensors=[tf.constant(everything[name]) for name in ordered],
    )
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=[prefix + "-part"], destination_prefix=prefix)
    again = convert.load(prefix)
    assert again.params.keys() == model.params.keys()


def test_another_architecture_is_not_written_as_berts(make_model, tmp_path):
    """Its parameters have the shapes of BERT's, and its function is another."""
    with pytest.raises(UserError, match="has no norm_placement='pre'"):
        tensorflow1.FORMAT.write(make_model(norm_placement="pre"), tmp_path / "written")


def test_a_pooling_that_no_classifier_reads_does_not_matter(make_model, tmp_path, monkeypatch):
    def reached():
        raise UserError("it is written")

    monkeypatch.setattr(tensorflow1, "tensorflow", reached)
    with pytest.raises(UserError, match="it is written"):
        tensorflow1.FORMAT.write(make_model("masked_lm", classifier_pooling="mean"), tmp_path)
    with pytest.raises(UserError, match="has no classifier_pooling='mean'"):
        tensorflow1.FORMAT.write(make_model("sequence_classification", classifier_pooling="mean"), tmp_path)
