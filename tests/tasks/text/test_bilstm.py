"""GLUE's BiLSTM baseline, as a user trains it: everything but the model is as in any other run."""

import json

import numpy as np
import pytest
from support.fine_tuned import command, mistake
from support.pretrained import WORDS

from bert_jax import cli

TABLE = "encoder/embeddings/word_embeddings"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Whether both texts of a pair begin with the same word."""
    directory, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    for name, count in (("train", 256), ("dev", 24)):
        lines = ["a,b,label"]
        for number in range(count):
            word, other = rng.choice(WORDS[:6], 2, replace=False)
            lines.append(f"{word} is,the {word if number % 2 else other},{'yes' if number % 2 else 'no'}")
        (directory / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return directory


def arguments(files, workdir, pretrained, *more, encoder="bilstm_attention"):
    return command(
        files,
        workdir,
        pretrained,
        f"--config.encoder={encoder}",
        "--config.encoder_size=16",
        "--config.data.text_b=b",
        "--config.max_seq_length=16",
        "--config.batch_size=16",
        "--config.model.hidden_dropout_prob=0",
        "--config.optimizer.learning_rate=0.01",
        "--config.optimizer.name=adamw_bias_corrected",
        "--config.epochs=4",
        *more,
        text="a",
    )


@pytest.mark.slow
def test_a_run_learns_and_is_read_again(finetuned, tmp_path, capsys):
    best = json.loads((finetuned / "best.json").read_text())
    assert best["scores"]["accuracy"] > 0.9
    report = json.loads((finetuned / "initialized.json").read_text())
    assert report["loaded"] == [TABLE] and {name.split("/")[0] for name in report["new"]} == {
        *("lstm", "head", "classifier")
    }
    capsys.readouterr()
    assert cli.main(["evaluate", f"--workdir={finetuned}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["scores"]
    assert found == pytest.approx(best["scores"])
    export = ["convert", f"--input={finetuned}", f"--output={tmp_path}/hf", "--to=huggingface"]
    assert "a BiLSTM" in mistake(export, capsys)
