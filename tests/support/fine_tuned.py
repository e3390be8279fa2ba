"""Fine-tuning on a file with texts and labels, as a user calls it, and equivalent work directories with
random weights, for tests that need no training."""

import shutil

import pytest
from support.tiny_model import draw_parameters, tiny_config

from bert_jax import checkpoint, cli, tasks, tokenization
from bert_jax.tasks import fields as task_fields
from bert_jax.workdir import run_directory as workdir


def make_config(vocabulary, task, fields=(), **data):
    """Returns a configuration; `fields` sets its fields and `data` sets fields of `config.data`."""
    tokenizer = tokenization.load(vocabulary)
    config = tasks.default_config("tiny", task)
    bert = tiny_config(tokenizer.vocab_size)
    config.update(dict(task=task, max_seq_length=16, batch_size=16) | dict(fields))
    config.model, config.data = bert.to_dict(), dict(config.data) | data
    return config


def make_task(vocabulary, task, labels=None, fields=(), **data):
    """Returns the task of the configuration from `make_config`."""
    config, spec, tokenizer = (
        make_config(vocabulary, task, fields, **data),
        tasks.get(task),
        tokenization.load(vocabulary),
    )
    return spec.task(
        task_fields.of_task(task_fields.of_run(config)),
        spec,
        labels,
        tokenizer,
        tiny_config(tokenizer.vocab_size),
    )


def make_run(directory, vocabulary, task, labels=None, fields=(), **data):
    """Writes a work directory for the task of `make_task`; returns its path."""
    config = make_config(vocabulary, task, fields, **data)
    task = make_task(vocabulary, task, labels, fields, **data)
    with workdir.WorkDir(directory) as held:
        run = {"command": "finetune", "config": config.to_dict(), "labels": labels}
        run |= {"head": task.export_head, "problem_type": task.problem_type}
        run |= {"sentence": task.sentence.stored()} if task.sentence else {}
        held.open_run(run | {"vocabulary": task.tokenizer.settings()}, {})
        held.copy_vocabulary(task.tokenizer.path)
        keeper = checkpoint.Checkpointer(held.checkpoints)
        keeper.save(3, {"params": draw_parameters(task.objective())})
        keeper.close()
    return directory


def command_that_learns(config, files, workdir, pretrained, *more):
    """Returns `finetune` arguments for a task's files, with a learning rate that suits a tiny model."""
    return [
        "finetune",
        f"--config={config}",
        f"--workdir={workdir}",
        f"--config.init_from={pretrained}",
        f"--config.data_dir={files}",
        "--config.max_seq_length=16",
        "--config.batch_size=16",
        "--config.optimizer.learning_rate=0.003",
        "--config.model.hidden_dropout_prob=0",
        "--config.model.attention_probs_dropout_prob=0",
        *more,
    ]


def command(files, workdir, pretrained, *more, text="text", label="label"):
    """Returns `finetune` arguments for train.csv and dev.csv in `files`, with the names of the columns."""
    return [
        "finetune",
        "--config=finetune/classification",
        f"--workdir={workdir}",
        f"--config.init_from={pretrained}",
        f"--config.data.train={files}/train.csv",
        f"--config.data.eval={files}/dev.csv",
        f"--config.data.text_a={text}",
        f"--config.data.label={label}",
        *more,
    ]


NO_DROPOUT = ("--config.model.hidden_dropout_prob=0", "--config.model.attention_probs_dropout_prob=0")


@pytest.fixture(scope="module")
def finetuned(request, tmp_path_factory, files, pretrained):
    """A run of the command that the test module's `arguments` returns, on its fixture `files`."""
    workdir = tmp_path_factory.mktemp("finetuned")
    assert cli.main(request.module.arguments(files, workdir, pretrained)) == 0
    return workdir


def assert_resumes_to_the_same_end(run, finished, copy, capsys):
    """Asserts that a copy of a finished run of 8 steps resumes from step 4, as after a kill, to the same end.

    Args:
        run: trains in a given directory; returns the exit code.
        finished: the work directory, which is not changed.
        copy: the path of the copy.
        capsys: the pytest fixture.
    """
    shutil.copytree(finished, copy)
    shutil.rmtree(copy / "checkpoints" / "8")
    capsys.readouterr()
    assert run(copy) == 0
    output = capsys.readouterr().out
    assert "resumed from step 4" in output, output
    last, expected = (checkpoint.verify(each / "checkpoints" / "8") for each in (copy, finished))
    assert last == expected


def mistake(command, capsys):
    """Returns the one-line error message of a command."""
    capsys.readouterr()
    assert cli.main(command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error
