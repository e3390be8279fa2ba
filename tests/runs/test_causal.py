"""Pre-training left to right, and before masked LM; and what is done with its models."""

import json
import math

import pytest
from support import processes
from support.processes import error_of

from bert_jax import checkpoint, cli

pytestmark = pytest.mark.usefixtures("quick_compilation")

CAUSAL = {"objective": "causal_lm", "model.causal": True, "optimizer.warmup_steps": 0}


@pytest.fixture(scope="module")
def causal(tmp_path_factory, records):
    """The work directory of a run of `objective=causal_lm`."""
    directory = tmp_path_factory.mktemp("causal") / "run"
    with processes.quick_compilation():
        assert cli.main(processes.command(directory, records, steps=4, **CAUSAL)) == 0
    return directory


def metrics(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_a_run_left_to_right(causal):
    config = json.loads((causal / "config.json").read_text())["config"]
    assert config["objective"] == "causal_lm" and config["model"]["causal"] is True
    assert {name.split("/")[0] for name in checkpoint.parameter_names(causal)} == {"encoder", "mlm"}
    first, *_, last = metrics(causal)
    assert first["loss"] == first["clm_loss"] == pytest.approx(math.log(100), rel=0.05)
    assert last["kind"] == "eval" and {"clm_loss", "clm_accuracy"} <= last.keys()
    assert not any("mlm" in name or "nsp" in name for line in metrics(causal) for name in line)


def test_what_is_said_of_labels(pretrain):
    code, output, _ = pretrain(steps=1, **CAUSAL)
    assert code == 0 and "labels of the records are not used: [CLS] sees no other token" in output
    assert "clm_loss 4." in output and "warning" not in output
    assert output.endswith("checkpoints/1\n")


def test_masks_are_not_filled(causal, capsys):
    assert cli.main(["fill-mask", f"--checkpoint={causal}", "word1 [MASK]"]) == 2
    error = capsys.readouterr().err
    assert "reads left to right and predicts the next token" in error and error.count("\n") == 1


def test_the_picture_has_its_loss(causal, capsys):
    assert cli.main(["plot", f"--workdir={causal}", f"--output={causal}/curves.svg"]) == 0
    drawn = (causal / "curves.svg").read_text()
    assert "<!-- Causal LM loss -->" in drawn and "<!-- Loss -->" not in drawn


def test_masked_lm_goes_on_from_its_weights(causal, pretrain, tmp_path):
    fields = {"init_from": causal, "init_ignore": "(nsp|pooler)/.*", "model.causal": False}
    code, _, error = pretrain(**fields, steps=1, **{"optimizer.warmup_steps": 0})
    assert (code, error) == (0, "")
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert config["model"]["causal"] is False
    report = json.loads((tmp_path / "run" / "initialized.json").read_text())
    assert all(name.startswith(("nsp/", "pooler/")) for name in report["new"])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"model.causal": False},
            "objective=causal_lm needs left-to-right attention; set --config.model.causal",
        ),
        ({"masking.prob": 0.3}, "masking.prob=0.3: the objective causal_lm has no masks; leave it at 0.15"),
        ({"eval_masking.prob": 0.2}, "eval_masking.prob=0.2: the objective causal_lm has no masks"),
        ({"distillation.teacher": "x"}, "distillation.teacher=x: objective=causal_lm has no teacher"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(pretrain, fields, told):
    assert told in error_of(pretrain(**CAUSAL | fields))


def test_fine_tuning_reads_the_last_token(causal, tmp_path, capsys):
    """A label that only words behind [CLS] tell is learned; read at [CLS], all texts are one."""
    table = tmp_path / "train.csv"
    rows = "".join(f"word{n} word{n % 2},{n % 2}\n" for n in range(64))
    table.write_text("sentence,label\n" + rows)

    def finetune(name, *more):
        fields = {
            "init_from": causal, "init_ignore": "pooler/.*", "data.train": table, "data.eval": table,
            "data.text_a": "sentence", "data.label": "label", "max_seq_length": 32, "batch_size": 16,
            "epochs": 12, "optimizer.learning_rate": 3e-3,
        }  # fmt: skip
        arguments = [f"--config.{name}={value}" for name, value in fields.items()]
        workdir = tmp_path / name
        command = ["finetune", "--config=finetune/classification", f"--workdir={workdir}", *arguments, *more]
        assert cli.main(command) == 0
        return json.loads((workdir / "best.json").read_text())["scores"]["accuracy"], workdir

    accuracy, workdir = finetune("last")
    assert accuracy > 0.9
    assert finetune("cls", "--config.model.classifier_pooling=cls")[0] == 0.5
    capsys.readouterr()
    assert cli.main(["evaluate", f"--workdir={workdir}", f"--input={table}", "--json"]) == 0
    assert f'"accuracy": {accuracy}' in capsys.readouterr().out


def test_other_formats_refuse_its_model(causal, tmp_path, capsys):
    for to, told in (
        ("huggingface", "transformers' BERT has no causal=True, only False"),
        ("tensorflow", "has no left-to-right attention (causal)"),
    ):
        assert cli.main(["convert", f"--input={causal}", f"--output={tmp_path / to}", f"--to={to}"]) == 2
        assert told in capsys.readouterr().err
