"""PEFT's folders are read with PEFT's logits, and written again; other adapters are refused by name."""

import dataclasses
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.models import small_of

from bert_jax import cli, convert
from bert_jax.checkpoint.leaves import nest
from bert_jax.convert import conversion, families, formats, parity, sentences
from bert_jax.convert.formats import peft_updates
from bert_jax.convert.low_rank import LowRankAdapter, Update
from bert_jax.convert.model import Model
from bert_jax.convert.pair_scores import PairScores
from bert_jax.convert.sentences import SentenceVectors
from bert_jax.errors import UserError
from bert_jax.models import assembled

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


@pytest.mark.parametrize("kind", ["bert_jax", "huggingface"])
def test_a_base_that_peft_cannot_load_gets_a_warning(tmp_path, kind):
    model, base = read("bert"), read("bert", "base")
    (tmp_path / "base").mkdir()
    formats.get(kind).write(base, tmp_path / "base")
    adapter = dataclasses.replace(model.adapter, base=str(tmp_path / "base"))
    warning = formats.get("peft").warning(model.replace(adapter=adapter))
    expected = f"`bert-jax convert --input={tmp_path}/base --output=DIR --to=huggingface`"
    assert (expected in warning) == bool(warning) == (kind == "bert_jax")


def test_a_layer_without_an_update_is_that_of_the_base():
    model, base = read("tags"), read("tags", "base")
    for kernel in model.adapter.updates:
        np.testing.assert_array_equal(model.params[kernel][0], base.params[kernel][0])
        assert np.any(model.params[kernel][1] != base.params[kernel][1])


def test_names_that_would_be_those_of_other_modules_are_written_whole(tmp_path):
    model = read("bert")
    updates = {name.replace("/value/", "/output/"): x for name, x in model.adapter.updates.items()}
    wide = updates["encoder/layers/stack/layer/output/kernel"]
    updates["encoder/layers/stack/layer/output/kernel"] = wide._replace(
        a=np.ones((2, 12, 3), np.float32), b=np.ones((2, 3, 8), np.float32)
    )
    changed = model.replace(adapter=type(model.adapter)("base", updates, model.adapter.params))
    convert.formats.get("peft").write(changed, tmp_path)
    targets = json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"]
    assert "bert.encoder.layer.1.output.dense" in targets and "dense" not in targets
    assert "base_model.model.bert.encoder.layer.1.output.dense.lora_B.weight" in load_file(
        tmp_path / "adapter_model.safetensors"
    )


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"rank_pattern": {"query": 4}}, "rank_pattern is {'query': 4}; only adapters without it"),
        ({"use_dora": True}, "use_dora is True; only adapters without it can be read"),
        ({"bias": "all"}, "bias is 'all'; only 'none' can be read"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; only 'LORA' can be read"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', which also changes the base"),
        ({"r": 4}, "lora_A and lora_B of rank 4"),
        ({"base_model_name_or_path": "some/base"}, "its base model some/base is not here; get it"),
    ],
)
def test_other_adapters_are_refused_by_name(tmp_path, fields, message):
    shutil.copytree(FOLDER / "bert", tmp_path / "bert")
    path = tmp_path / "bert" / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(UserError) as error:
        convert.load(path.parent)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_model_without_updates_is_refused(tmp_path, capsys):
    command = ["convert", f"--input={FOLDER}/bert/base", f"--output={tmp_path}/out", "--to=peft"]
    assert cli.main(command) == 2
    assert (
        "it has no low-rank updates; --to=peft is for runs with adapter.kind=lora" in capsys.readouterr().err
    )


@pytest.mark.parametrize("flag", ["dtype=bfloat16", "pad_vocab_to=8", "vocab=x", "layers=0", "head=none"])
def test_a_change_of_the_model_is_refused(tmp_path, capsys, flag):
    command = ["convert", f"--input={FOLDER}/bert/adapter", f"--output={tmp_path}/out", "--to=peft"]
    assert cli.main([*command, f"--{flag}"]) == 2
    assert f"--{flag.partition('=')[0]} changes the model, which --to=peft" in capsys.readouterr().err


def draw(family, head):
    config = small_of(family)
    rng = np.random.default_rng(0)
    shapes = assembled.parameters(family.module(config, family.required(head), head, 3))
    return Model(
        config, {name: rng.normal(size=x.shape).astype(np.float32) for name, x in shapes.items()}, head
    )


def adapted(family, tmp_path, head="sequence_classification", of_base=""):
    """A small random model with updates of the family's targets, whose base is in a folder.

    The base has the head `of_base`, or that of the model.
    """
    base, model = draw(family, of_base or head), draw(family, head)
    rng = np.random.default_rng(1)
    params = {name: base.params.get(name, x) for name, x in model.params.items()}
    (tmp_path / "base").mkdir()
    formats.get("huggingface").write(base, tmp_path / "base")
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


def written_by_peft(folder):
    """Writes the weights again as PEFT does, without the digest of the folder."""
    file = folder / "adapter_model.safetensors"
    save_file(load_file(file), file, {"format": "pt"})


TARGETS = {"distilbert": ["q_lin", "v_lin"], "modernbert": ["Wqkv"]}


@pytest.mark.parametrize("name", families.FAMILIES)
def test_every_family_is_read_as_it_was_written(tmp_path, name):
    model = adapted(families.FAMILIES[name], tmp_path)
    (tmp_path / "out").mkdir()
    formats.get("peft").write(model, tmp_path / "out")
    found = convert.load(tmp_path / "out")
    assert found.params.keys() == model.params.keys() and model.adapter.updates
    assert all(np.array_equal(found.params[each], model.params[each]) for each in model.params)
    fields = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert fields["target_modules"] == TARGETS.get(name, ["query", "value"])
    # The updates of query and value have an A each, and ModernBERT's module both of them.
    assert (fields["r"], fields["lora_alpha"]) == ((4, 6) if name == "modernbert" else (2, 3))
    assert {key: x.rank for key, x in found.adapter.updates.items()} == dict.fromkeys(
        model.adapter.updates, 2
    )


@pytest.mark.parametrize("name", ["bert", "albert"])
@pytest.mark.parametrize("head", ["token_classification", "question_answering", "none", "masked_lm"])
def test_a_base_may_have_what_the_head_does_not_read(tmp_path, name, head):
    """Released checkpoints have a pooler, and often the heads of their pre-training."""
    model = adapted(families.FAMILIES[name], tmp_path, head, "pretraining")
    assert "pooler" not in model.groups
    (tmp_path / "out").mkdir()
    formats.get("peft").write(model, tmp_path / "out")
    found = convert.load(tmp_path / "out")
    assert found.head == head and parity.check_same("read back", model, found) == 0


@pytest.mark.parametrize(
    ("name", "removed", "module"),
    [("bert", "bert.pooler.", "pooler"), ("distilbert", "pre_classifier.", "pre_classifier")],
)
def test_a_module_that_peft_drew_and_did_not_save_is_named(tmp_path, name, removed, module):
    """As after training on a masked LM, which has none of them."""
    folder = shutil.copytree(FOLDER / name, tmp_path / name)
    tensors = load_file(folder / "base" / "model.safetensors")
    names = [x for x in tensors if not x.startswith((removed, "classifier."))]
    save_file({x: tensors[x] for x in names}, folder / "base" / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "base" / "config.json").read_text())
    config["architectures"] = ["BertModel" if name == "bert" else "DistilBertModel"]
    (folder / "base" / "config.json").write_text(json.dumps(config))
    file = folder / "adapter" / "adapter_model.safetensors"
    own = {x: array for x, array in load_file(file).items() if f".{removed}" not in x}
    save_file(own, file, {"format": "pt"})
    fields = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    fields["base_model_name_or_path"] = str(folder / "base")
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(fields))
    problem = f"{folder / 'base'} has no {module}, which transformers drew at random and PEFT did not save"
    with pytest.raises(UserError, match=problem) as error:
        convert.load(folder / "adapter")
    assert str(error.value).endswith(f"train it again with modules_to_save=['{module}']")


@pytest.mark.parametrize("head", ["token_classification", "none"])
def test_the_task_of_a_folder_of_peft_decides_before_the_head_of_the_base(tmp_path, head):
    family = families.FAMILIES["bert"]
    model = adapted(family, tmp_path, head, "sequence_classification" if head == "none" else "pretraining")
    (tmp_path / "out").mkdir()
    formats.get("peft").write(model, tmp_path / "out")
    (tmp_path / "out" / "bert_jax.json").unlink()
    written_by_peft(tmp_path / "out")
    found = convert.load(tmp_path / "out")
    # transformers' class of the bare encoder has the pooler of its base, that of a token classifier has none.
    assert (found.head, found.groups) == (head, ("encoder", "pooler" if head == "none" else "classifier"))


def test_what_was_written_of_another_task_is_not_read(tmp_path):
    model = adapted(families.FAMILIES["bert"], tmp_path)
    (tmp_path / "out").mkdir()
    formats.get("peft").write(model, tmp_path / "out")
    file = tmp_path / "out" / "bert_jax.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"head": "none", "groups": ["encoder"]}))
    written_by_peft(tmp_path / "out")
    assert convert.load(tmp_path / "out").head == "sequence_classification"


@pytest.mark.parametrize("known", [True, False])
def test_labels_and_the_type_of_problem_survive_or_are_left_out(tmp_path, known):
    model = adapted(families.FAMILIES["bert"], tmp_path, of_base="pretraining")
    model = model.replace(labels=("a", "b", "c"), problem_type="multi_label_classification")
    for folder in ("out", "huggingface"):
        (tmp_path / folder).mkdir()
    formats.get("peft").write(model, tmp_path / "out")
    if not known:
        (tmp_path / "out" / "bert_jax.json").unlink()
        written_by_peft(tmp_path / "out")
    lines = []
    found = convert.load(tmp_path / "out", log=lines.append)
    formats.get("huggingface").write(found, tmp_path / "huggingface")
    config = json.loads((tmp_path / "huggingface" / "config.json").read_text())
    labels = model.labels if known else ("LABEL_0", "LABEL_1", "LABEL_2")
    assert config["id2label"] == {str(i): name for i, name in enumerate(labels)}
    assert config.get("problem_type") == ("multi_label_classification" if known else None)
    warnings = [line for line in lines if "does not say whether a text has one of its 3 classes" in line]
    assert len(warnings) == (0 if known else 1)


@pytest.mark.parametrize("of_base", [False, True])
def test_sentence_vectors_are_those_of_the_run_or_of_the_base(tmp_path, of_base):
    model = adapted(families.FAMILIES["bert"], tmp_path, "none")
    sentence = SentenceVectors("cls", True, 12, {"query": "q: "})
    (tmp_path / "out").mkdir()
    if of_base:
        sentences.write(sentence, 8, 16, str(tmp_path / "base"))
    formats.get("peft").write(model if of_base else model.replace(sentence=sentence), tmp_path / "out")
    assert convert.load(tmp_path / "out").sentence == sentence


def on(base, folder):
    """Returns a folder with PEFT's adapter on a base model, which is written beside it."""
    (folder / "base").mkdir()
    formats.get("huggingface").write(base, folder / "base")
    shutil.copytree(FOLDER / "bert" / "adapter", folder / "adapter")
    change(folder / "adapter" / "adapter_config.json", base_model_name_or_path=f"{folder}/base")
    return folder / "adapter"


def change(file, **fields):
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | fields))


@pytest.mark.parametrize(
    "name, fields, expected",
    [
        ("tokenizer_config.json", {}, ("torch.Identity", 10)),
        ("tokenizer_config.json", {"model_max_length": 12}, ("torch.Identity", 12)),
        ("tokenizer_config.json", {"model_max_length": 512}, ("torch.Identity", 0)),
        ("config_sentence_transformers.json", {"activation_fn": "torch.Tanh"}, ("torch.Tanh", 10)),
    ],
)
def test_the_scores_of_a_cross_encoder_are_those_of_the_folder_or_of_the_base(
    tmp_path, name, fields, expected
):
    folder = on(read("bert", "base").replace(scores=PairScores("torch.Identity", 10)), tmp_path)
    change(folder / name, **fields)
    model = convert.load(folder)
    assert model.scores == PairScores(*expected)
    (tmp_path / "again").mkdir()
    formats.get("peft").write(model, tmp_path / "again")
    assert convert.load(tmp_path / "again").scores == PairScores(*expected)


def test_the_scores_of_a_base_with_other_outputs_are_not_those_of_an_adapter(tmp_path):
    base = read("bert", "base")
    params = {name: x[..., :2] if name.startswith("classifier/") else x for name, x in base.params.items()}
    folder = on(base.replace(params=params, scores=PairScores("torch.Identity")), tmp_path)
    assert convert.load(tmp_path / "base").scores == PairScores("torch.Identity")
    assert convert.load(folder).scores == PairScores()


def test_parts_of_a_module_share_their_a_or_have_all():
    rng = np.random.default_rng(0)
    a, c = rng.normal(size=(2, 5, 2)).astype(np.float32)
    b, d = rng.normal(size=(2, 2, 3)).astype(np.float32)
    down, up = peft_updates.joined([(a, b), None, (c, d)])
    assert down.shape == (4, 5) and up.shape == (9, 4)
    expected = np.concatenate([b.T @ a.T, np.zeros((3, 5)), d.T @ c.T])
    np.testing.assert_allclose(up @ down, expected, atol=1e-6)
    down, up = peft_updates.joined([(a, b), (a, d)])
    assert down.shape == (2, 5)
    np.testing.assert_allclose(up @ down, np.concatenate([b.T @ a.T, d.T @ a.T]), atol=1e-6)


@pytest.mark.peer
def test_peft_computes_the_updates_of_parts_of_a_module(tmp_path):
    peft = pytest.importorskip("peft")
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = adapted(families.FAMILIES["modernbert"], tmp_path)
    (tmp_path / "out").mkdir()
    formats.get("peft").write(model, tmp_path / "out")
    base = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "base").eval()
    theirs = peft.PeftModel.from_pretrained(base, str(tmp_path / "out")).eval()
    ids = np.random.default_rng(0).integers(4, 30, (2, 10)).astype(np.int32)
    with torch.no_grad():
        found = theirs(input_ids=torch.tensor(ids).long()).logits.numpy()
    expected = logits(model, {"input_ids": ids, "mask": np.ones_like(ids)})
    assert np.max(np.abs(found - expected)) < 2e-5 * np.max(np.abs(expected))


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
