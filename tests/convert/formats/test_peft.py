"""PEFT folders give PEFT's logits and are written back; errors name unsupported adapters."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from support.conversions import random_model
from support.models import small_of

from bert_jax import convert
from bert_jax.checkpoint.leaves import nest
from bert_jax.convert import conversion, families, formats, parity, sentences
from bert_jax.convert.model import LowRankAdapter, Update
from bert_jax.convert.sentences import SentenceVectors
from bert_jax.errors import UserError

FOLDER = pathlib.Path(__file__).parents[2] / "testdata" / "peft"
CASES = ("bert", "distilbert", "tags", "modernbert")
QUIET = {"log": lambda line: None}


def read(name, folder="adapter"):
    return convert.load(FOLDER / name / folder)


def logits(model, arrays):
    ids, mask = arrays["input_ids"], arrays["mask"]
    positions = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
    module = model.module.clone(config=model.config.replace(dtype="float32"))
    apply = jax.jit(lambda params, *arrays: module.apply({"params": params}, *arrays))
    outputs = apply(nest(model.params), ids, np.zeros_like(ids), positions, mask)
    return np.asarray(outputs["classifier"])


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_logits_and_merged_weights_are_those_of_peft(name):
    model = read(name)
    assert model.head == ("token_classification" if name == "tags" else "sequence_classification")
    with np.load(FOLDER / name / "outputs.npz") as arrays:
        expected = dict(arrays)
    found = logits(model, expected)
    real = expected["mask"] > 0 if name == "tags" else slice(None)
    assert np.max(np.abs(found[real] - expected["logits"][real])) < 2e-5
    merged = model.family.to_files(model.params, model.config, "huggingface", model.head)
    compared = expected.keys() - {"input_ids", "mask", "logits"}
    assert len(compared) >= 6
    for tensor in compared:
        np.testing.assert_allclose(merged[tensor], expected[tensor], rtol=1e-5, atol=1e-6)
    base = read(name, "base")
    assert any(np.any(model.params[kernel] != base.params[kernel]) for kernel in model.adapter.updates)


@pytest.mark.parametrize("name", ["bert", "distilbert", "modernbert"])
def test_a_folder_is_written_again_with_the_same_tensors(tmp_path, name):
    conversion.convert(str(FOLDER / name / "adapter"), str(tmp_path / "out"), "peft", **QUIET)
    before, after = (
        load_file(folder / "adapter_model.safetensors")
        for folder in (FOLDER / name / "adapter", tmp_path / "out")
    )
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[tensor], after[tensor]) for tensor in before)
    theirs, ours = (
        json.loads((folder / "adapter_config.json").read_text())
        for folder in (FOLDER / name / "adapter", tmp_path / "out")
    )
    assert list(ours) == sorted(ours) and ours.keys() <= theirs.keys()
    for field in ("r", "lora_alpha", "peft_type", "task_type", "bias"):
        assert ours[field] == theirs[field], field
    assert pathlib.Path(ours["base_model_name_or_path"]).samefile(FOLDER / name / "base")
    assert sorted(ours["target_modules"]) == sorted(theirs["target_modules"])
    saved = {"distilbert": ["classifier", "pre_classifier"]}.get(name, ["classifier"])
    assert ours["modules_to_save"] == saved


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"rank_pattern": {"query": 4}}, "rank_pattern={'query': 4}"),
        ({"r": 4}, "lora_A and lora_B of rank 4"),
        ({"base_model_name_or_path": "some/base"}, "base_model_name_or_path=some/base"),
    ],
)
def test_other_adapters_are_errors(tmp_path, fields, message):
    shutil.copytree(FOLDER / "bert", tmp_path / "bert")
    path = tmp_path / "bert" / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(UserError) as error:
        convert.load(path.parent)
    assert message in str(error.value) and "\n" not in str(error.value)


def draw(family, head):
    return random_model(small_of(family), head, family.required(head), classes=3)


def adapted(family, tmp_path, head="sequence_classification", of_base=""):
    """Returns a small random model with low-rank updates of the family's targets; its base is in a folder.

    The base has the head `of_base`, by default the model's head.
    """
    base, model = draw(family, of_base or head), draw(family, head)
    rng = np.random.default_rng(1)
    params = {name: base.params.get(name, x) for name, x in model.params.items()}
    (tmp_path / "base").mkdir()
    formats.FORMATS["huggingface"].write(base, tmp_path / "base")
    updates = {}
    for name, kernel in params.items():
        if name.endswith("/kernel") and name.split("/")[-2] in family.low_rank_targets:
            layers = kernel.shape[:-3]
            a, b = (rng.normal(size=(*layers, *x)) for x in ((kernel.shape[-3], 2), (2, *kernel.shape[-2:])))
            updates[name] = Update(a.astype(np.float32), b.astype(np.float32), 1.5)
    heads = [group for group in family.required(head) if group not in ("encoder", "pooler")]
    own = {name: -x for name, x in params.items() if name.split("/")[0] in heads}
    adapter = LowRankAdapter(str(tmp_path / "base"), updates, own)
    return model.replace(params=adapter.merged(params), adapter=adapter)


TARGETS = {
    "distilbert": ["q_lin", "v_lin"],
    "modernbert": ["Wqkv"],
    "deberta-v2": ["query_proj", "value_proj"],
}


@pytest.mark.parametrize("name", families.FAMILIES)
def test_every_family_is_read_as_it_was_written(tmp_path, name):
    model = adapted(families.FAMILIES[name], tmp_path)
    (tmp_path / "out").mkdir()
    formats.FORMATS["peft"].write(model, tmp_path / "out")
    found = convert.load(tmp_path / "out")
    assert found.params.keys() == model.params.keys() and model.adapter.updates
    assert all(np.array_equal(found.params[each], model.params[each]) for each in model.params)
    fields = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert fields["target_modules"] == TARGETS.get(name, ["query", "value"])
    # Query and value have separate A matrices, which ModernBERT's fused module combines.
    assert (fields["r"], fields["lora_alpha"]) == ((4, 6) if name == "modernbert" else (2, 3))
    assert {key: x.a.shape[-1] for key, x in found.adapter.updates.items()} == dict.fromkeys(
        model.adapter.updates, 2
    )


@pytest.mark.parametrize("head", ["question_answering", "none", "masked_lm"])
def test_a_base_may_have_what_the_head_does_not_read(tmp_path, head):
    """A base may have unused parameters: released checkpoints have a pooler and often pre-training heads."""
    model = adapted(families.FAMILIES["bert"], tmp_path, head, "pretraining")
    assert "pooler" not in model.groups
    (tmp_path / "out").mkdir()
    formats.FORMATS["peft"].write(model, tmp_path / "out")
    found = convert.load(tmp_path / "out")
    assert found.head == head and parity.check_same("read back", model, found) == 0


@pytest.mark.parametrize("of_base", [False, True])
def test_sentence_vectors_are_those_of_the_run_or_of_the_base(tmp_path, of_base):
    model = adapted(families.FAMILIES["bert"], tmp_path, "none")
    sentence = SentenceVectors("cls", True, 12, {"query": "q: "})
    (tmp_path / "out").mkdir()
    if of_base:
        sentences.write(sentence, 8, 16, str(tmp_path / "base"))
    formats.FORMATS["peft"].write(model if of_base else model.replace(sentence=sentence), tmp_path / "out")
    assert convert.load(tmp_path / "out").sentence == sentence


@pytest.mark.peer
@pytest.mark.parametrize("name", CASES)
def test_peft_loads_what_is_written(tmp_path, name):
    peft = pytest.importorskip("peft")
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    conversion.convert(str(FOLDER / name / "adapter"), str(tmp_path / "out"), "peft", **QUIET)
    make = getattr(
        transformers, "AutoModelFor" + ("TokenClassification" if name == "tags" else "SequenceClassification")
    )
    base = make.from_pretrained(FOLDER / name / "base").eval()
    adapted = peft.PeftModel.from_pretrained(base, str(tmp_path / "out")).eval()
    with np.load(FOLDER / name / "outputs.npz") as arrays:
        expected = dict(arrays)
    ids, mask = (torch.tensor(expected[each]).long() for each in ("input_ids", "mask"))
    with torch.no_grad():
        for model in (adapted, adapted.merge_and_unload()):
            found = model(input_ids=ids, attention_mask=mask).logits.numpy()
            real = expected["mask"] > 0 if name == "tags" else slice(None)
            assert np.max(np.abs(found[real] - logits(convert.load(tmp_path / "out"), expected)[real])) < 2e-5
