"""`bert-jax evaluate` of pre-trained models; that of fine-tuned ones is tested with their tasks."""

import json

import pytest
from support import fine_tuned, pretrained, processes

from bert_jax import cli
from bert_jax.inference.held_out import held_out


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return processes.write_records(tmp_path_factory.mktemp("data") / "records")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, records):
    return pretrained.write(tmp_path_factory.mktemp("model"), records / "vocab.txt")


def test_the_losses_on_records(records, checkpoint, capsys):
    command = ["evaluate", f"--checkpoint={checkpoint}", f"--records={records}", "--rows=9", "--seed=2"]
    command += ["--masking_prob=.3", "--masking_replace=1,0,0", "--split=train", "--batch_size=8"]
    assert cli.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    options = {"rows": 9, "seed": 2, "prob": 0.3, "replace": "1,0,0", "split": "train", "batch_size": 8}
    assert found["scores"] == held_out(checkpoint, str(records), **options)
    assert (found["records"], found["split"]) == (str(records), "train")
    capsys.readouterr()
    assert cli.main(command) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"9 rows of {records}, split train, checkpoint {checkpoint}"
    shown = dict(line.split() for line in lines)
    assert shown["mlm_loss"] == f"{found['scores']['mlm_loss']:.4f}" and shown.keys() | {"rows"} == set(
        found["scores"]
    )


@pytest.mark.parametrize(
    "flags, message",
    [
        ([], "evaluate needs --workdir=DIR, the work directory of a fine-tuning run, or --checkpoint=DIR"),
        (["--checkpoint=x"], "or --checkpoint=DIR and --records=DIR"),
        (["--workdir=x", "--records=y"], "not both --workdir and --records"),
        (["--records=y"], "--records needs --checkpoint=DIR"),
        (["--records=y", "--checkpoint=x", "--output=z.tsv"], "--output is not for --records; leave it out"),
        (["--workdir=x", "--rows=3"], "--rows is not for --workdir; leave it out"),
        (["--workdir=x", "--input=a.tsv", "--split=dev"], "--input and --split name two files"),
    ],
)
def test_mistakes(flags, message, capsys):
    assert message in fine_tuned.mistake(["evaluate", *flags], capsys)
