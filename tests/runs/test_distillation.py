"""Runs with a teacher: a student of half its layers, exported, and fine-tuning in two steps."""

import json

import numpy as np
import pytest
from support import fine_tuned, processes
from support.pretrained import write

from bert_jax import checkpoint, cli, convert

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
    steps = [checkpoint.verify(run / "checkpoints" / str(step)) for step in (2, 4)]
    assert not any("teacher" in name for names in steps for name in names)
    saved = checkpoint.verify(run / "checkpoints" / "frozen")
    assert {name.split("/")[1] for name in saved} == {"teacher"}
    theirs = checkpoint.verify(trained / "checkpoints" / "6")
    for name, leaf in saved.items():  # bit for bit
        assert leaf.digest == theirs[name.replace("frozen/teacher", "params")].digest
    assert not any(name.startswith(("frozen/teacher/nsp", "frozen/teacher/pooler")) for name in saved)
    lines = processes.metrics(run)
    names = {"logits_loss", "mlm_loss", "cosine_loss", "mlm_accuracy"}
    assert all(names <= line.keys() for line in lines if line.get("kind") in ("train", "eval"))


@pytest.mark.long
def test_a_run_resumes_without_the_checkpoint_of_its_teacher(run, records, trained, tmp_path, capsys):
    moved = trained.rename(tmp_path / "teacher")
    try:
        fine_tuned.assert_resumes_to_the_same_end(
            lambda copy: cli.main(command(copy, records, trained)), run, tmp_path / "run", capsys, 2
        )
    finally:
        moved.rename(trained)


# Two-step fine-tuning


def finetune(files, workdir, pretrained, *more):
    fields = "max_seq_length=16 batch_size=16 epochs=2 eval.every=2 optimizer.learning_rate=0.01"
    flags = (*(f"--config.{field}" for field in fields.split()), *fine_tuned.NO_DROPOUT, *more)
    return cli.main(fine_tuned.command(files, workdir, pretrained, *flags, label="color"))


@pytest.mark.slow
def test_two_steps(files, pretrained, vocabulary, tmp_path, capsys):
    teacher, student = tmp_path / "teacher", write(tmp_path / "small", vocabulary, num_hidden_layers=1)
    assert finetune(files, teacher, pretrained) == 0
    flags = (f"--config.distillation.teacher={teacher}", f"{LOSSES}=logits=1,task=1,hidden=1")
    workdir = tmp_path / "run"
    assert finetune(files, workdir, student, *flags) == 0
    lines = processes.metrics(workdir)
    assert {"task_loss", "logits_loss", "hidden_loss"} <= lines[0].keys()
    saved = checkpoint.verify(workdir / "checkpoints" / "frozen")
    assert {name.split("/")[1] for name in saved} == {"teacher"}
    best = json.loads((workdir / "best.json").read_text())["step"]
    assert not (workdir / "best" / "frozen").exists() and (workdir / "best" / str(best)).exists()
    assert cli.main(["evaluate", f"--workdir={workdir}", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])["scores"]
    assert scores == pytest.approx(json.loads((workdir / "best.json").read_text())["scores"])
    model = convert.load(workdir)
    assert model.config.num_hidden_layers == 1 and model.labels == ("blue", "red")
