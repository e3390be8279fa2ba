"""RoBERTa's and XLM-R's records: positions, rows and classes; see also test_goldens.py."""

import json
import pathlib
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax import convert
from bert_jax.convert import families, parity
from bert_jax.convert.families import roberta
from bert_jax.convert.param_mapping import HUGGINGFACE

FOLDER = pathlib.Path(__file__).parents[2] / "testdata" / "roberta"
FAMILY = roberta.ROBERTA


def test_rows_have_the_template_and_positions_of_the_family():
    model = convert.load(FOLDER / "none")
    assert model.tokenizer.layout.row([10], [11]).tolist() == [0, 10, 2, 2, 11, 2]
    assert model.tokenizer.layout.types == (0, 0)
    assert model.config.max_position_embeddings == 16 and model.config.max_seq_length == 14
    mask = np.load(FOLDER / "outputs.npz")["mask"]
    assert mask[0].sum() == model.config.max_seq_length  # the last position is used


def test_the_masked_lm_head_has_the_exact_gelu_whatever_the_layers_have():
    assert convert.load(FOLDER / "masked_lm").config.hidden_act == "relu"
    assert FAMILY.masked_lm.activation == "gelu"


@pytest.mark.parametrize(
    "head", ["masked_lm", "sequence_classification", "token_classification", "question_answering"]
)
@pytest.mark.parametrize("family", [roberta.ROBERTA, roberta.XLM_ROBERTA], ids=lambda x: x.name)
def test_a_pooler_that_the_head_does_not_use_is_left_out(tmp_path, family, head):
    """As in xlm-roberta-base and in fine-tuned models of older versions of transformers."""
    folder = shutil.copytree(FOLDER / head, tmp_path / head)
    fields = {"model_type": family.model_type, "architectures": [family.class_name(head)]}
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | fields))
    weights = folder / "model.safetensors"
    lines: list[str] = []
    expected = convert.load(folder, log=lines.append)
    shapes = {"weight": (12, 12), "bias": (12,)}
    pooler = {f"roberta.pooler.dense.{name}": np.ones(shape, np.float32) for name, shape in shapes.items()}
    save_file(load_file(weights) | pooler, weights)
    found = convert.load(folder, log=lines.append)
    assert lines == [f"{folder}: pooler dropped, which a {family.name} with head {head} does not have"]
    assert parity.check_same("it", expected, found) == 0


def test_xlm_r_has_the_tensors_of_roberta_and_its_own_classes():
    model, family = convert.load(FOLDER / "masked_lm"), roberta.XLM_ROBERTA
    assert family.class_name("masked_lm") == "XLMRobertaForMaskedLM"
    config = model.config.replace(model_type="xlm-roberta")
    fields = family.write_config(config, "masked_lm")
    assert (fields["model_type"], family.read_config(fields)) == ("xlm-roberta", config)
    assert families.of(config) is family
    tensors = family.to_files(model.params, config, HUGGINGFACE, "masked_lm")
    theirs = load_file(FOLDER / "masked_lm" / "model.safetensors")
    assert tensors.keys() == theirs.keys()
    assert all(np.array_equal(tensors[name], x) for name, x in theirs.items())
