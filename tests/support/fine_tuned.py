"""Fine-tuning on a file with texts and labels, as a user calls it, and equivalent work directories with
random weights, for tests that need no training."""

import json
import shutil

import numpy as np
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


NO_DROPOUT = ("--config.model.hidden_dropout_prob=0", "--config.model.attention_probs_dropout_prob=0")
LEARNING = (
    *("--config.max_seq_length=16", "--config.batch_size=16", "--config.optimizer.learning_rate=0.003"),
    *NO_DROPOUT,
)  # for a tiny model


def command_that_learns(config, files, workdir, pretrained, *more):
    """Returns `finetune` arguments for a task's folder of files."""
    run = [f"--config={config}", f"--workdir={workdir}", f"--config.init_from={pretrained}"]
    return ["finetune", *run, f"--config.data_dir={files}", *LEARNING, *more]


def command(
    files,
    workdir,
    pretrained,
    *more,
    config="finetune/classification",
    suffix="csv",
    text="text",
    label="label",
):
    """Returns `finetune` arguments for the tables train and dev in `files`, with the names of the columns."""
    return [
        "finetune",
        f"--config={config}",
        f"--workdir={workdir}",
        f"--config.init_from={pretrained}",
        f"--config.data.train={files}/train.{suffix}",
        f"--config.data.eval={files}/dev.{suffix}",
        f"--config.data.text_a={text}",
        *([f"--config.data.label={label}"] if label else []),
        *more,
    ]


def learn(command, workdir, capsys):
    """Runs `finetune`; returns its output, and the scores of the best step, which `evaluate` finds again."""
    assert cli.main(command) == 0
    shown = capsys.readouterr().out
    best = json.loads((workdir / "best.json").read_text())["scores"]
    assert cli.main(["evaluate", f"--workdir={workdir}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["scores"] == pytest.approx(best)
    return shown, best


def predict(workdir, file):
    """Returns the predictions for a file, as JSON objects."""
    output = file.with_name(f"{file.stem}-predictions.jsonl")
    assert cli.main(["predict", f"--workdir={workdir}", f"--input={file}", f"--output={output}"]) == 0
    return [json.loads(line) for line in output.read_text().splitlines()]


def rerank(workdir, pretrained, documents, queries, header, capsys):
    """Asserts that a search orders all documents by the scores that `predict` gives the pairs.

    Returns the texts of the documents for each query, the best first.
    """
    index = documents.with_name("index")
    search = ["search", f"--model={pretrained}", f"--corpus={documents}", f"--index={index}", "--json"]
    search += [f"--rerank={workdir}", "--top=99", *(f"--query={query}" for query in queries)]
    capsys.readouterr()
    assert cli.main(search) == 0
    found = [json.loads(line)["results"] for line in capsys.readouterr().out.splitlines()]
    pairs = documents.with_name("pairs.tsv")
    results = [(query, result) for query, of_query in zip(queries, found, strict=True) for result in of_query]
    pairs.write_text("\n".join([header, *(f"{query}\t{result['text']}" for query, result in results)]) + "\n")
    scores = [one["prediction"] for one in predict(workdir, pairs)]
    np.testing.assert_allclose(scores, [result["score"] for _, result in results], atol=1e-3)
    count = len(documents.read_text().splitlines())
    for of_query in found:
        assert len(of_query) == count
        assert [one["score"] for one in of_query] == sorted((one["score"] for one in of_query), reverse=True)
    return [[one["text"] for one in of_query] for of_query in found]


@pytest.fixture(scope="module")
def finetuned(request, tmp_path_factory, files, pretrained):
    """A run of the command that the test module's `arguments` returns, on its fixture `files`."""
    workdir = tmp_path_factory.mktemp("finetuned")
    assert cli.main(request.module.arguments(files, workdir, pretrained)) == 0
    return workdir


def assert_resumes_to_the_same_end(run, finished, copy, capsys, step=4):
    """Asserts that a copy of a finished run resumes from a step, as after a kill, to the same end.

    `run` trains in a directory and returns the exit code. The result is the printed text.
    """
    shutil.copytree(finished, copy)
    steps = checkpoint.list_steps(str(finished / "checkpoints"))
    for later in steps[steps.index(step) + 1 :]:
        shutil.rmtree(copy / "checkpoints" / str(later))
    capsys.readouterr()
    assert run(copy) == 0
    output = capsys.readouterr().out
    assert f"resumed from step {step} " in output, output
    last, expected = (checkpoint.verify(each / "checkpoints" / str(steps[-1])) for each in (copy, finished))
    assert last == expected
    return output


def mistake(command, capsys):
    """Returns the one-line error message of a command."""
    capsys.readouterr()
    assert cli.main(command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error
