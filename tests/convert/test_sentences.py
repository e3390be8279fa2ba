"""Folders of sentence-transformers: settings of vectors and of scores of pairs are read and written."""

import json

import numpy as np
import pytest

from bert_jax import cli
from bert_jax.convert import conversion, loading, sentences
from bert_jax.convert.formats import huggingface, work_directory
from bert_jax.convert.sentences import PairScores, SentenceVectors
from bert_jax.errors import UserError


def write(folder, modules, pooling=None, **more):
    names = [f"{i}_{kind}" if i else "" for i, kind in enumerate(modules)]
    kinds = [
        {"idx": i, "name": str(i), "path": name, "type": f"sentence_transformers.models.{kind}"}
        for i, (name, kind) in enumerate(zip(names, modules, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(kinds))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps(pooling or {"pooling_mode_mean_tokens": True})
    )
    for name, content in more.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return str(folder)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "last"])
@pytest.mark.parametrize("prompts", [{}, {"query": "query: ", "document": "passage: "}])
def test_what_is_written_is_read(tmp_path, pooling, prompts):
    sentence = SentenceVectors(pooling, pooling == "cls", 17, prompts)
    sentences.write(sentence, 32, 40, str(tmp_path))
    assert sentences.read(str(tmp_path), 40) == sentence


def test_a_released_folder(tmp_path):
    every = dict.fromkeys(
        ["pooling_mode_cls_token", "pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens"], False
    )
    folder = write(
        tmp_path,
        ["Transformer", "Pooling", "Normalize"],
        {"word_embedding_dimension": 384, "pooling_mode_mean_tokens": True, "include_prompt": True} | every,
        sentence_bert_config={"max_seq_length": 256, "do_lower_case": False},
        config_sentence_transformers={
            "prompts": {"query": "q: ", "document": "", "clustering": None},
            "default_prompt_name": None,
        },
    )
    assert sentences.read(folder, 512) == SentenceVectors("mean", True, 256, {"query": "q: "})


@pytest.mark.parametrize(
    "files, expected",
    [
        ({"sentence_bert_config": {"max_seq_length": 16}, "tokenizer_config": {"model_max_length": 32}}, 16),
        ({"sentence_bert_config": {"max_seq_length": 514}}, 64),
        (
            {"sentence_bert_config": {"max_seq_length": None}, "tokenizer_config": {"model_max_length": 12}},
            12,
        ),
        ({"tokenizer_config": {"model_max_length": 1000000000000000019884624838656}}, 64),
        ({}, 0),
        ({"sentence_roberta_config": {"max_seq_length": 16}}, 16),
    ],
)
def test_the_length_is_that_of_sentence_transformers(tmp_path, files, expected):
    """Version 6 writes `model_max_length` only; both are at most the positions of the model."""
    folder = write(tmp_path, ["Transformer", "Pooling"], **files)
    assert sentences.read(folder, 64) == SentenceVectors(max_seq_length=expected)


def as_an_old_version_wrote_it(folder, path="0_Transformer"):
    (folder / "0_Transformer").mkdir()
    for file in list(folder.iterdir()):
        if file.is_file() and file.name not in ("modules.json", "config_sentence_transformers.json"):
            file.rename(folder / "0_Transformer" / file.name)
    file = folder / "modules.json"
    modules = json.loads(file.read_text())
    file.write_text(json.dumps([modules[0] | {"path": path}, *modules[1:]]))


def test_an_encoder_in_a_folder_below_is_read(make_model, tmp_path):
    sentence = SentenceVectors("cls", False, 12, {"query": "q "})
    model = make_model("none").replace(sentence=sentence)
    huggingface.FORMAT.write(model, tmp_path)
    as_an_old_version_wrote_it(tmp_path)
    again = loading.load(tmp_path)
    assert (again.sentence, again.source) == (sentence, str(tmp_path))
    assert again.tokenizer.tokens == model.tokenizer.tokens
    assert all(np.array_equal(again.params[name], x) for name, x in model.params.items())
    assert loading.load_architecture(tmp_path)[0] == model.config
    (tmp_path / "0_Transformer" / "model.safetensors").rename(
        tmp_path / "0_Transformer" / "pytorch_model.bin"
    )
    with pytest.raises(UserError, match="can run code"):
        loading.load(tmp_path)


@pytest.mark.parametrize("similarity", ["", "dot"])
def test_every_conversion_keeps_them(make_model, tmp_path, similarity):
    sentence = SentenceVectors("cls", True, 12, {"query": "q "}, similarity=similarity)
    model = make_model("none").replace(sentence=sentence)
    work_directory.FORMAT.write(model, tmp_path / "run")
    assert work_directory.FORMAT.read(tmp_path / "run").sentence == sentence
    run = json.loads((tmp_path / "run" / "config.json").read_text())
    assert run["sentence"].get("similarity", "") == similarity  # older runs have none
    command = ["convert", f"--input={tmp_path / 'run'}", f"--output={tmp_path / 'out'}", "--to=huggingface"]
    assert cli.main(command) == 0
    assert huggingface.FORMAT.read(tmp_path / "out").sentence == sentence
    card = (tmp_path / "out" / "README.md").read_text()
    assert "library_name: sentence-transformers" in card and "SentenceTransformer(" in card


IDENTITY = "torch.nn.modules.linear.Identity"


def change(file, **fields):
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | fields))


def as_version_6(folder, activation):
    change(folder / "config_sentence_transformers.json", model_type="CrossEncoder", activation_fn=activation)
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.Transformer"}
    (folder / "modules.json").write_text(json.dumps([module]))


def as_version_4(folder, activation):
    settings = {"activation_fn": activation, "version": "4.1.0"}
    change(folder / "config.json", sentence_transformers=settings)


def as_version_3(folder, activation):
    change(folder / "config.json", sbert_ce_default_activation_function=activation)


@pytest.fixture
def converted(export, tmp_path):
    """converted(length, save, ...): a classifier with these settings after a way over a work directory."""

    def make(length, save, *args):
        folder, _ = export("sequence_classification", classes=1)
        change(folder / "tokenizer_config.json", model_max_length=length)
        save(folder, *args)
        run, out = tmp_path / "run", tmp_path / "out"
        for source, output, to in ((folder, run, "bert_jax"), (run, out, "huggingface")):
            conversion.convert(str(source), str(output), to, log=lambda line: None)
        return [loading.load(path) for path in (run, out)], out

    return make


@pytest.mark.parametrize("save", [as_version_6, as_version_4, as_version_3])
def test_the_activation_and_the_length_are_kept(converted, save):
    models, folder = converted(10, save, IDENTITY)
    assert [model.scores for model in models] == [PairScores(IDENTITY, 10)] * 2
    fields = json.loads((folder / "config.json").read_text())
    assert fields["sentence_transformers"] == {"activation_fn": IDENTITY}
    assert json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"] == 10
