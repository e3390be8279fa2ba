"""Runs with a teacher: a student of half its layers, exported, and fine-tuning in two steps."""

import json
import shutil

import jax
import numpy as np
import pytest
from support import fine_tuned, lowering, processes
from support.pretrained import write

from bert_jax import checkpoint, cli, convert
from bert_jax.convert import parity
from bert_jax.convert.formats import work_directory
from bert_jax.estimate import program
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.runs import pretrain
from bert_jax.settings import config_files, pretrain_config
from bert_jax.training import flops

pytestmark = pytest.mark.usefixtures("quick_compilation")

LOSSES = "--config.distillation.losses"
CONFIG = processes.CONFIG.with_name("distilbert.py")
FIELDS = {
    "model.num_hidden_layers": 1, "batch_size": 8, "steps": 4, "checkpoint.every": 2, "eval.every": 4,
    "log_every": 1,
}  # fmt: skip


def command(workdir, records, teacher, **fields):
    fields = FIELDS | {"data.dir": records, "distillation.teacher": teacher} | fields
    flags = (f"--config.{name}={value}" for name, value in fields.items())
    return ["pretrain", f"--config={CONFIG}", f"--workdir={workdir}", *flags]


@pytest.fixture(scope="module")
def run(tmp_path_factory, records, trained):
    workdir = tmp_path_factory.mktemp("distilled") / "run"
    assert cli.main(command(workdir, records, trained)) == 0
    return workdir


@pytest.mark.long
def test_the_student_starts_with_layers_of_the_teacher(run, trained):
    report = json.loads((run / "initialized.json").read_text())
    assert not report["new"] and "encoder/embeddings/token_type_embeddings" in report["unused"]
    assert all(name.split("/")[0] in ("encoder", "mlm") for name in report["loaded"])
    model, teacher = convert.load(run), convert.load(trained)
    assert (model.family.name, model.head, model.config.num_hidden_layers) == ("DistilBERT", "masked_lm", 1)
    assert model.config.hidden_size == teacher.config.hidden_size and model.config.type_vocab_size == 0
    words = "encoder/embeddings/word_embeddings"
    assert 0 < np.max(np.abs(model.params[words] - teacher.params[words])) < 0.01  # after 4 small steps


@pytest.mark.long
def test_the_teacher_is_saved_once(run, trained):
    steps = [checkpoint.describe(run / "checkpoints" / str(step)) for step in (2, 4)]
    assert not any("teacher" in name for names in steps for name in names)
    saved = checkpoint.describe(run / "checkpoints" / "frozen")
    assert {name.split("/")[1] for name in saved} == {"teacher"}
    theirs = checkpoint.describe(trained / "checkpoints" / "6")
    for name, leaf in saved.items():  # bit for bit
        assert leaf.digest == theirs[name.replace("frozen/teacher", "params")].digest
    assert not any(name.startswith(("frozen/teacher/nsp", "frozen/teacher/pooler")) for name in saved)
    lines = processes.metrics(run)
    names = {"logits_loss", "mlm_loss", "cosine_loss", "mlm_accuracy"}
    assert all(names <= line.keys() for line in lines if line.get("kind") in ("train", "eval"))


@pytest.mark.long
def test_a_run_resumes_without_the_checkpoint_of_its_teacher(run, records, trained, tmp_path, capsys):
    other, moved = tmp_path / "run", tmp_path / "teacher"
    shutil.copytree(run, other)
    shutil.rmtree(other / "checkpoints" / "4")
    trained.rename(moved)
    try:
        assert cli.main(command(other, records, trained)) == 0
    finally:
        moved.rename(trained)
    assert "resumed from step 2" in capsys.readouterr().out
    assert checkpoint.describe(other / "checkpoints" / "4") == checkpoint.describe(run / "checkpoints" / "4")


@pytest.mark.long
def test_a_run_does_not_go_on_with_another_teacher(run, records, trained, tmp_path, capsys):
    other = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(other / "checkpoints" / "4")
    same = shutil.copytree(trained, tmp_path / "same")
    teacher = convert.load(trained)
    params = {name: 2 * x for name, x in teacher.params.items()}
    work_directory.FORMAT.write(teacher.replace(params=params), tmp_path / "another")
    assert cli.main([*command(other, records, tmp_path / "another"), "--allow_changes"]) == 2
    assert "the frozen parameters are not those that" in capsys.readouterr().err
    assert cli.main([*command(other, records, same), "--allow_changes"]) == 0


@pytest.mark.long
def test_mistakes(run, records, trained, pretrained, tmp_path, capsys):
    for fields, message in (
        (
            {"distillation.teacher": pretrained},
            "was trained with another vocabulary than",
        ),
        ({"distillation.teacher": ""}, "distillation.init_layers=spread: there is no teacher"),
        (
            {"distillation.temperature": 3, "distillation.losses": "cosine=1"},
            "temperature=3.0: distil",
        ),
        ({"distillation.layers": "1"}, "distillation.losses=logits=5, task=2, cosine=1 does not use it"),
        ({"distillation.init_layers": "0,5"}, "the model has no layer 5; expected 0 to 1"),
        ({"model.num_hidden_layers": 3}, "the student has 3 layers and the teacher 2; set --config.model."),
        ({"init_from": trained}, "the model starts with layers of the teacher; leave it at"),
        ({"objective": "replaced_tokens", "model.model_type": "electra"}, "objective=replaced_tokens has no"),
    ):
        assert cli.main(command(tmp_path / "run", records, trained, **fields)) == 2, fields
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, (fields, error)


def test_an_estimate_includes_the_teacher(trained):
    """Of its architecture alone: its forward pass, and the memory of its parameters."""
    fields = config_files.load("pretrain/distilbert")
    fields.distillation.teacher, fields.model.num_hidden_layers = str(trained), 1
    config, message = pretrain.adopt_architecture(pretrain_config.pretraining(fields), ())
    assert message == f"the model starts with layers 0 of the 2 of {trained}, 32 wide"
    step = program.TrainStep(config, program.synthetic_rows(config, 32), jax.devices()[:1])
    student, teacher = (
        MaskedLM(config.model.encoder().replace(**changes), None, None, next_sentence_head=False)
        for changes in ({}, {"num_hidden_layers": 2, "type_vocab_size": 2})
    )
    one, other = (flops.RowFlops.of(each)(32, 32) for each in (student, teacher))
    assert step.row_flops == pytest.approx(one + other / 3)
    shapes = (jax.eval_shape(each.init, jax.random.key(0)) for each in (student, teacher))
    assert step.chip_bytes["parameters"] == 4 * sum(x.size for x in jax.tree.leaves(list(shapes)))


def test_the_config_has_the_published_parameters():
    model = pretrain_config.pretraining(lowering.load("pretrain/distilbert")).model.replace(vocab_size=30522)
    student = MaskedLM(model.encoder(), None, None, next_sentence_head=False)
    shapes = jax.eval_shape(student.init, jax.random.key(0))
    assert sum(x.size for x in jax.tree.leaves(shapes)) == 66_985_530


# Two-step fine-tuning


def finetune(files, workdir, pretrained, *more):
    flags = (
        "--config.max_seq_length=16", "--config.batch_size=16", "--config.epochs=2", "--config.eval.every=2",
        "--config.checkpoint.every=2", "--config.optimizer.learning_rate=0.01",
        "--config.optimizer.warmup_steps=1", "--config.checkpoint.keep=9", *fine_tuned.NO_DROPOUT,
    )  # fmt: skip
    return cli.main(fine_tuned.command(files, workdir, pretrained, *flags, *more, text="text", label="color"))


@pytest.mark.slow
def test_two_steps(files, pretrained, vocabulary, tmp_path, capsys):
    teacher, student = tmp_path / "teacher", write(tmp_path / "small", vocabulary, num_hidden_layers=1)
    assert finetune(files, teacher, pretrained) == 0
    flags = (
        f"--config.distillation.teacher={teacher}",
        f"{LOSSES}=logits=1,task=1,hidden=1",
    )
    workdir = tmp_path / "run"
    assert finetune(files, workdir, student, *flags) == 0
    lines = processes.metrics(workdir)
    assert {"task_loss", "logits_loss", "hidden_loss"} <= lines[0].keys()
    saved = checkpoint.describe(workdir / "checkpoints" / "frozen")
    assert {name.split("/")[1] for name in saved} == {"teacher"}
    best = json.loads((workdir / "best.json").read_text())["step"]
    assert not (workdir / "best" / "frozen").exists() and (workdir / "best" / str(best)).exists()
    assert cli.main(["evaluate", f"--workdir={workdir}", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])["scores"]
    assert scores == pytest.approx(json.loads((workdir / "best.json").read_text())["scores"])
    model = convert.load(workdir)
    assert model.config.num_hidden_layers == 1 and model.labels == ("blue", "red")
    for more, message in (
        ((f"--config.distillation.teacher={pretrained}",), "has the head pretraining, and the task has"),
        (
            (flags[0], f"{LOSSES}=hidden=1"),
            "trains no head; add logits=1, task=1, or both",
        ),
        (("--config.distillation.temperature=3",), "distillation.temperature=3.0: there is no teacher"),
    ):
        assert finetune(files, tmp_path / "wrong", student, *more) == 2
        assert message in capsys.readouterr().err


@pytest.mark.peer
def test_transformers_loads_the_student(run, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    assert cli.main(["convert", f"--input={run}", f"--output={tmp_path}/hf", "--to=huggingface"]) == 0
    theirs, info = transformers.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert type(theirs).__name__ == "DistilBertForMaskedLM"
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    model = convert.load(tmp_path / "hf")
    inputs = parity.random_inputs(model.config)
    given = {"input_ids": torch.tensor(inputs["input_ids"]), "attention_mask": torch.tensor(inputs["mask"])}
    with torch.no_grad():
        logits = theirs.eval()(**given).logits.numpy()
    mine = parity.flax_outputs(model)["mlm"]
    parity.compare("masked_lm", parity.without_padding({"mlm": logits}, inputs["mask"]), {"mlm": mine})
