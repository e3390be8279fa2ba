"""Losses of checkpoints on held-out records."""

import jax
import numpy as np
import pytest
from support import google_records, pretrained, processes

from bert_jax import convert, tokenization
from bert_jax.checkpoint.leaves import nest
from bert_jax.data import records
from bert_jax.errors import UserError
from bert_jax.inference import held_out as held_out_module
from bert_jax.inference.held_out import held_out
from bert_jax.objectives.causal_lm import CausalLM
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.masking import MaskingOptions, Vocabulary


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return processes.write_records(tmp_path_factory.mktemp("data") / "records", eval_rows=11)


@pytest.fixture(scope="module")
def model(tmp_path_factory, directory):
    """A model whose predictions differ from token to token."""
    path = pretrained.write(tmp_path_factory.mktemp("model"), directory / "vocab.txt")
    found = convert.load(path, log=print)
    return found.replace(params={name: 5 * x for name, x in found.params.items()})


@pytest.fixture
def evaluate(model, monkeypatch):
    def run(data, of=model, **options):
        monkeypatch.setattr(convert, "load", lambda path, log: of)
        return held_out("a checkpoint", str(data), **options)

    return run


def row_by_row(model, directory, masking, count):
    """The losses of one row at a time, with masks from the row's number, and the labels."""
    dataset = records.open_dataset(str(directory), "eval")
    tokenizer = tokenization.load(directory / "vocab.txt")
    task = MaskedLM(
        model.config, Vocabulary.from_tokenizer(tokenizer), MaskingOptions(max_predictions=32, **masking)
    )
    params, key = nest(model.params), jax.random.key(0, impl="threefry2x32")

    @jax.jit
    def evaluate(batch):
        prepared = task.prepare(batch, key, False)
        return prepared, task.loss(params, prepared, None)

    sums, labels = {}, []
    for row in range(count):
        batch = dataset.batch(np.array([row])) | {"row_ids": np.array([row], np.int32)}
        prepared, (losses, metrics) = evaluate(batch)
        named = {f"{name}_loss": pair for name, pair in losses.items()} | metrics
        for name, pair in named.items():
            sums[name] = np.add(sums.get(name, 0), np.asarray(pair, np.float64))
        labels.append(prepared["masked_labels"][prepared["masked_weights"] > 0])
    return {name: total / weight for name, (total, weight) in sums.items()}, np.concatenate(labels)


@pytest.mark.long
@pytest.mark.parametrize(
    "options, masking, rows, batch_size",
    [
        ({}, {}, 11, 32),
        ({"replace": "1,0,0"}, {"replace": (1.0, 0.0, 0.0)}, 9, 8),
    ],
)
def test_the_means_of_all_rows(evaluate, model, directory, options, masking, rows, batch_size, monkeypatch):
    monkeypatch.setattr(held_out_module, "_BATCH_ROWS", batch_size)
    wanted, labels = row_by_row(model, directory, masking, rows)
    found = evaluate(directory, rows=rows, **options)
    assert (found["rows"], found["predicted_tokens"]) == (rows, len(labels))
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, rel=1e-5)
    counts = records.count_tokens(records.open_dataset(str(directory), "train"), 100)
    counts[[0, 2, 3]] = 0  # padding, [CLS] and [SEP]
    shares = (counts + 1) / (counts.sum() + 100)
    assert found["unigram"] == pytest.approx(-np.log(shares[labels]).mean())
    dataset = records.open_dataset(str(directory), "eval")
    kinds = dataset.batch(np.arange(rows))["next_sentence_labels"]
    assert found["pairs"] == (kinds >= 0).sum()
    share = (kinds == 1).sum() / (kinds >= 0).sum()
    assert found["nsp_majority"] == pytest.approx(max(share, 1 - share))


@pytest.mark.long
def test_the_masks_of_records_are_replaced(evaluate, tmp_path):
    found = []
    for name, place in (("one", 1), ("another", 2)):
        rows = []
        for number in range(10):
            tokens = [10 + number, 30 + number, 50 + number, 60]
            masked = [4 if position == place - 1 else token for position, token in enumerate(tokens)]
            mask = (place, tokens[place - 1])
            rows.append(google_records.example(masked, (70,), (mask,), label=number % 2))
        google_records.write(tmp_path / name / "eval.tfrecord", rows)
        found.append(evaluate(tmp_path / name))
    assert found[0] == found[1]
    # Each row has 8 tokens, of which round(1.2) are masked; there is no training split.
    assert (found[0]["predicted_tokens"], found[0]["pairs"], "unigram" in found[0]) == (10, 10, False)


@pytest.mark.long
def test_heads_and_labels_of_any_kind(evaluate, model, directory, tmp_path, capsys):
    swapped = processes.write_records(tmp_path / "sop", nsp="sop")
    assert evaluate(swapped)["pairs"] > 0
    without = processes.write_records(tmp_path / "none", nsp="none")
    found = evaluate(without)
    assert found.keys() == {"rows", "predicted_tokens", "mlm_loss", "mlm_accuracy", "unigram"}
    assert "no next-sentence loss: the records have no labels" in capsys.readouterr().out
    headless = {name: x for name, x in model.params.items() if name.split("/")[0] in ("encoder", "mlm")}
    headless = model.replace(params=headless, head="masked_lm")
    assert evaluate(directory, headless)["mlm_loss"] == pytest.approx(evaluate(directory)["mlm_loss"])
    assert "no next-sentence loss: the model has no head for it" in capsys.readouterr().out


def causal(model):
    return model.replace(config=model.config.replace(causal=True))


@pytest.mark.long
def test_a_causal_model_predicts_every_next_token(evaluate, model, directory):
    found = evaluate(directory, causal(model), rows=9)
    batch = records.open_dataset(str(directory), "eval").batch(np.arange(9))
    task, params = CausalLM(causal(model).config), nest(model.params)
    batch |= {"row_ids": np.arange(9)}
    loss, metrics = jax.jit(lambda batch: task.loss(params, task.prepare(batch, None, False), None))(batch)
    assert found["predicted_tokens"] == loss["clm"][1]
    assert found["clm_loss"] == pytest.approx(float(loss["clm"][0] / loss["clm"][1]), rel=1e-5)
    assert found["clm_accuracy"] == pytest.approx(float(np.divide(*metrics["clm_accuracy"])), rel=1e-5)
    # Every token but [CLS] is a label, [SEP] among them.
    real = np.arange(32) < batch["lengths"][:, None]
    labels = batch["input_ids"][real & (batch["input_ids"] != 2)]
    assert len(labels) == found["predicted_tokens"]
    counts = records.count_tokens(records.open_dataset(str(directory), "train"), 100)
    counts[[0, 2]] = 0
    assert found["unigram"] == pytest.approx(-np.log((counts + 1) / (counts.sum() + 100))[labels].mean())
    assert "nsp_loss" not in found


@pytest.mark.long
def test_mistakes(evaluate, model, directory, tmp_path):
    encoder = {name: x for name, x in model.params.items() if name.startswith("encoder/")}
    other = processes.write_records(tmp_path / "other", words=94)
    long = processes.write_records(tmp_path / "long", length=33)
    for data, options, message in (
        (directory, {"of": model.replace(params=encoder, head="none")}, "has no masked LM head"),
        (directory, {"of": causal(model), "replace": "1,0,0"}, "no effect with the causal model"),
        (other, {}, "was trained with another vocabulary"),
        (long, {}, "have 33 tokens, more than the 32 positions"),
        (directory, {"split": "dev"}, "have no split 'dev'"),
        (directory, {"replace": "1,0"}, "masking.replace='1,0'"),
        (tmp_path / "nowhere", {}, "has no manifest.json"),
    ):
        with pytest.raises(UserError, match=message):
            evaluate(data, **options)
