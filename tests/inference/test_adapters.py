"""Several adapters over one base: their answers, and what is in memory and compiled once."""

import io
import json
import pickle

import jax
import numpy as np
import pytest
from support import fine_tuned
from support.pretrained import write

import bert_jax
from bert_jax import cli
from bert_jax.errors import UserError
from bert_jax.inference import embedding, predictor
from bert_jax.inference.predictor import Predictor, Shared, load_adapters

QUIET = {"log": [].append}
TEXTS = ["the red cat", "a blue dog is big", "one"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("files")
    for name in ("train", "dev"):
        lines = (f"the {'red' if i % 2 else 'blue'} cat,{i % 2},{i % 3}\n" for i in range(16))
        (directory / f"{name}.csv").write_text("".join(["text,two,three\n", *lines]))
    return directory


@pytest.fixture(scope="module")
def base(tmp_path_factory, vocabulary):
    return write(tmp_path_factory.mktemp("base"), vocabulary, num_hidden_layers=2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, files, base):
    """Work directories of runs that trained a step each: two alike, one of other labels, one of biases."""
    found = {}
    lora = ("--config.adapter.kind=lora", "--config.adapter.rank=2")
    for name, label, flags in (
        ("first", "two", lora),
        ("second", "two", (*lora, "--config.seed=3", "--config.adapter.alpha=4")),
        ("three", "three", lora),
        ("biases", "two", ("--config.adapter.kind=bitfit",)),
    ):
        found[name] = tmp_path_factory.mktemp(name)
        shared = ("--config.max_seq_length=16", "--config.batch_size=16", "--config.epochs=4")
        more = ("--config.optimizer.learning_rate=0.05", "--config.eval.every=4", *fine_tuned.NO_DROPOUT)
        command = fine_tuned.command(files, found[name], base, *shared, *more, *flags, label=label)
        assert cli.main(command) == 0
    return found


@pytest.mark.long
def test_adapters_share_the_base_and_the_programs_and_answer_as_the_merged_models(runs):
    first = Predictor(str(runs["first"]), shared=Shared(), **QUIET)
    others = load_adapters(first, {name: str(runs[name]) for name in ("second", "three", "biases")}, **QUIET)
    compiled = [one.warm_up() for one in (first, *others.values())]
    assert compiled[0] > 0 and compiled[1] == 0 and compiled[2] > 0
    table = {name: one._frozen["params"]["encoder"]["embeddings"] for name, one in others.items()}
    for each in table.values():
        assert each["word_embeddings"] is first._frozen["params"]["encoder"]["embeddings"]["word_embeddings"]
    whole = sum(x.nbytes for x in jax.tree.leaves((first._params, first._frozen)))
    assert first.own_bytes == whole and all(one.own_bytes < whole / 8 for one in others.values())

    lines = [json.dumps({"text": text, "adapter": name}) for text in TEXTS for name in others]
    lines += [json.dumps({"text": text}) for text in TEXTS] + ['{"text": "one", "adapter": "four"}', "one"]
    source, out = io.BytesIO("\n".join(lines).encode()), io.BytesIO()
    served = {name: (one, one.task.line_reader()) for name, one in others.items()}
    assert predictor.answer_lines(first, first.task.line_reader(), source, out, served) == (len(lines), 1)
    answers = [json.loads(line) for line in out.getvalue().splitlines()]
    assert "expected one of second, three, biases" in answers[-2]["error"]
    for name, path in runs.items():
        merged = Predictor(str(path), **QUIET)
        wanted = [i for i, line in enumerate(lines[:-1]) if json.loads(line).get("adapter", "first") == name]
        stream = io.BytesIO("\n".join(json.dumps({"text": text}) for text in TEXTS).encode())
        alone = io.BytesIO()
        predictor.answer_lines(merged, merged.task.line_reader(), stream, alone)
        for i, line in zip(wanted, alone.getvalue().splitlines(), strict=True):
            expected = json.loads(line)
            assert answers[i].keys() == expected.keys()
            for key, value in expected.items():
                if key != "id":
                    assert answers[i][key] == (
                        pytest.approx(value, abs=1e-5) if key != "prediction" else value
                    )


@pytest.mark.long
def test_the_library_encodes_with_each_adapter_by_one_program(base, runs):
    adapters = {"first": runs["first"], "second": runs["second"]}
    model = bert_jax.load(base, adapters=adapters, **QUIET)
    plain = model.encode(TEXTS)
    model.encode(TEXTS, adapter="first")
    before = embedding.features._cache_size()
    found = {name: model.encode(TEXTS, pooling="pooler", adapter=name) for name in adapters}
    assert embedding.features._cache_size() == before
    for name, path in adapters.items():
        expected = bert_jax.load(path, **QUIET).encode(TEXTS, pooling="pooler")
        np.testing.assert_allclose(found[name].states, expected.states, atol=1e-5)
        np.testing.assert_allclose(found[name].pooled, expected.pooled, atol=1e-5)
        assert np.max(np.abs(found[name].states - plain.states)) > 1e-2
    np.testing.assert_array_equal(model.encode(TEXTS).states, plain.states)
    copied = pickle.loads(pickle.dumps(model))
    assert copied.adapters == model.adapters == ("first", "second")
    again = copied.encode(TEXTS, pooling="pooler", adapter="second")
    np.testing.assert_array_equal(again.pooled, found["second"].pooled)
    with pytest.raises(UserError, match="adapter='x': the adapters are first, second"):
        model.encode(TEXTS, adapter="x")
    with pytest.raises(UserError, match="has no low-rank updates"):
        bert_jax.load(base, adapters={"x": runs["biases"]}, **QUIET)
    with pytest.raises(UserError, match="belongs to another base than"):
        bert_jax.load(runs["biases"], adapters={"x": runs["first"]}, **QUIET)
