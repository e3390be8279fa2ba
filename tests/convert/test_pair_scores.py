"""Classifiers of sentence-transformers' CrossEncoder keep their activation and their maximal length."""

import json

import pytest

from bert_jax.convert import conversion, loading
from bert_jax.convert.sentences import PairScores

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
