"""What the gate records: programs, parameters, records, runs and conversions of small models.

Runs and conversions go through the command line, so that they do not depend on how the code is laid out.
"""

import contextlib
import functools
import json
import os
import random
import shutil
import tarfile
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
from support import lowering, processes, program_digests, recorded

from bert_jax import cli

# Arguments of configs of which one is not enough.
ARGUMENTS = {
    "pretrain/base_gpu": ("1", "8"),
    "pretrain/large_lamb": ("phase1", "phase2"),
    "finetune/glue": ("stsb", "mnli"),
}

# Values that no config file has: {name: (config, fields)}.
VARIANTS = {
    "whole words, all layers computed again": (
        "pretrain/base",
        {"masking.strategy": "whole_word", "model.remat": "full", "accumulate_steps": 2},
    ),
    "spans, left to right, products kept": (
        "pretrain/base",
        {"masking.strategy": "span", "model.remat": "dots", "model.causal": True},
    ),
    "spikes skipped, LAMB without correction, constant rate": (
        "pretrain/tiny",
        {"spikes.factor": 2.0, "optimizer.name": "lamb_uncorrected", "optimizer.schedule": "constant"},
    ),
}


def _set(config, fields):
    for name, value in fields.items():
        *path, last = name.split(".")
        part = config
        for each in path:
            part = part[each]
        part[last] = value


def config_names(folder):
    """Every config of a folder, with each of its arguments."""
    return [
        f"{folder}/{name}:{argument}" if argument else f"{folder}/{name}"
        for name in lowering.configs(folder)
        for argument in ARGUMENTS.get(f"{folder}/{name}", ("",))
    ]


def pretraining_programs(name):
    """{program: digest} of a config under pretrain/, or of one of VARIANTS."""
    given, fields = VARIANTS.get(name, (name, {}))
    config = lowering.load(given)
    _set(config, fields)
    config.model.update(lowering.SMALL)
    key = str([config.steps, config.accumulate_steps, config.model, config.optimizer, config.masking])
    key += str(config.spikes)
    if key not in _train_steps:  # configs that differ in their size alone share it
        _train_steps[key] = _digest(lowering.lower_pretraining_step(config))
    found = {f"{name}: train step": _train_steps[key]}
    if name in ("pretrain/base", "pretrain/large_lamb:phase1"):
        without = lowering.lower_pretraining_step(config, **lowering.NO_DROPOUT)
        found[f"{name}: train step without dropout"] = _digest(without)
    if name in ("pretrain/base", "pretrain/tiny"):
        found[f"{name}: evaluation step"] = _digest(lowering.lower_pretraining_evaluation(config))
    return found


_train_steps = {}


def finetuning_programs(name, files):
    """{program: digest} of a config under finetune/, or of one of `lowering.MORE`."""
    config, data = lowering.finetuning_config(name.removeprefix("finetune/"), files)
    train, predict = lowering.lower_finetuning(config, files, data)
    return {f"{name}: train step": _digest(train), f"{name}: prediction": _digest(predict)}


def accelerator_programs(accelerator, files):
    """{program: digest} of some programs with the kernels of an accelerator."""
    lowered = lowering.lower_for(accelerator, files)
    return {f"for {accelerator}, {name}": _digest(each) for name, each in lowered.items()}


def inference_programs():
    return {name: _digest(lowered) for name, lowered in lowering.lower_inference().items()}


def _digest(lowered):
    return program_digests.digest(lowered.compiler_ir())


def parameters(files):
    """{config: digest of the paths, shapes, dtypes and shardings of its parameters}."""
    found = {
        name: lowering.describe_parameters(lowering.load(name))
        for name in (f"pretrain/{each}" for each in lowering.configs("pretrain"))
    }
    for name in ("classification", "squad", "tagging", "multiple_choice", *lowering.MORE):
        config, data = lowering.finetuning_config(name, files)
        found[f"finetune/{name}"] = lowering.describe_finetuned_parameters(config, files, data)
    return {
        name: f"{program_digests.of_text(os.linesep.join(lines))} {len(lines)}"
        for name, lines in found.items()
    }


def programs(files):
    """{group: function that returns {program: digest}}, a group for each config and each of its variants."""
    groups = {name: functools.partial(pretraining_programs, name) for name in config_names("pretrain")}
    groups |= {name: functools.partial(pretraining_programs, name) for name in VARIANTS}
    groups |= {
        name: functools.partial(finetuning_programs, name, files)
        for name in (*config_names("finetune"), *lowering.MORE)
    }
    groups |= {
        f"for {accelerator}": functools.partial(accelerator_programs, accelerator, files)
        for accelerator in lowering.DEVICES
    }
    return groups | {"inference": inference_programs}


WORDS = (
    "the of a river stone old bright wind walks under over seven houses and slow green hill letter".split()
)


def run(*arguments):
    """A command of bert-jax in this process."""
    code = cli.main(list(arguments))
    assert code == 0, f"bert-jax {' '.join(arguments)}: exit code {code}"


@contextlib.contextmanager
def inside(folder):
    """With this working directory, so that paths in the files of a run are relative."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def write_corpus(folder):
    """Writes text and vocabulary of a corpus into corpus.txt and vocab.txt of a folder."""
    generator = random.Random(0)
    documents = [
        "".join(
            f"{number} {' '.join(generator.choices(WORDS, k=generator.randint(2, 25)))}.\n"
            for _ in range(generator.randint(1, 40))
        )
        for number in range(60)
    ]
    (folder / "corpus.txt").write_text("\n".join(documents))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = [*special, *WORDS, ".", *(str(number) for number in range(10)), *(f"##{n}" for n in range(10))]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")


RECORDS = {
    "packed": ("--eval_fraction=0.2", "--dupe_factor=2"),
    "packed-sop": ("--nsp=sop",),
    "packed-sentences": ("--nsp=none", "--full_sentences"),
    "google": ("--schema=google", "--dupe_factor=2", "--max_predictions_per_seq=8"),
    "google-words": ("--schema=google", "--whole_word_mask", "--dupe_factor=1", "--eval_fraction=0.2"),
    "google-ngrams": ("--schema=google", "--max_ngram=3", "--dupe_factor=1"),
}


def write_records(folder):
    """Writes records of each kind of RECORDS into folders of the kind's name."""
    with inside(folder):
        for kind, flags in RECORDS.items():
            run(
                "data",
                "--input=corpus.txt",
                "--vocab=vocab.txt",
                f"--output_dir={kind}",
                "--max_seq_length=48",
                "--seed=7",
                "--num_shards=2",
                "--workers=1",
                *flags,
            )


def record_digests(folder):
    return {
        f"{kind}/{path}": digest
        for kind in RECORDS
        for path, digest in recorded.tree_digests(folder / kind).items()
        if path.endswith(".tfrecord")
    }


_NO_DROPOUT = ("--config.model.hidden_dropout_prob=0", "--config.model.attention_probs_dropout_prob=0")
_SMALL = (
    "--config.model.hidden_size=16",
    "--config.model.num_hidden_layers=2",
    "--config.model.num_attention_heads=2",
    "--config.model.intermediate_size=32",
    "--config.model.max_position_embeddings=48",
    "--config.log_every=1",
)
_PRETRAIN = (
    "pretrain",
    "--config=pretrain/tiny",
    *_SMALL,
    "--config.batch_size=16",
    "--config.optimizer.warmup_steps=2",
)
_FINETUNE = (
    *_SMALL,
    "--config.vocab=vocab.txt",
    "--config.max_seq_length=48",
    "--config.batch_size=8",
    "--config.epochs=1",
)

# Runs of five steps.
CURVES = {
    "pretraining on packed records": (*_PRETRAIN, "--config.data.dir=packed", *_NO_DROPOUT),
    "pretraining in two parts": (
        *_PRETRAIN,
        "--config.data.dir=packed",
        "--config.accumulate_steps=2",
        "--config.optimizer.name=lamb",
        *_NO_DROPOUT,
    ),
    "pretraining on google records": (*_PRETRAIN, "--config.data.dir=google", *_NO_DROPOUT),
    "classification": (
        *("finetune", "--config=finetune/classification", *_FINETUNE, *_NO_DROPOUT),
        *("--config.data.train=table.csv", "--config.data.eval=table.csv"),
        *("--config.data.text_a=text", "--config.data.text_b=other", "--config.data.label=label"),
    ),
    "multiple choice": (
        *("finetune", "--config=finetune/multiple_choice", *_FINETUNE),
        *("--config.data.train=table.csv", "--config.data.eval=table.csv"),
        *("--config.data.text_a=text", "--config.data.choices=text,other", "--config.data.label=right"),
    ),
    "questions": (
        *("finetune", "--config=finetune/squad", *_FINETUNE, *_NO_DROPOUT),
        *(
            "--config.data.train=questions.jsonl",
            "--config.data.eval=questions.jsonl",
            "--config.doc_stride=12",
        ),
        *("--config.max_query_length=8",),
    ),
    "tags": (
        *("finetune", "--config=finetune/tagging", *_FINETUNE, *_NO_DROPOUT),
        *("--config.data.train=words.jsonl", "--config.data.eval=words.jsonl"),
    ),
}

METRICS = (
    "loss",
    "grad_norm",
    "mlm_loss",
    "mlm_accuracy",
    "nsp_loss",
    "accuracy",
    "f1",
    "f1_macro",
    "exact_match",
)


def write_tables(folder):
    """Writes 40 examples of each task into a folder."""
    generator = random.Random(1)

    def text():
        return " ".join(generator.choices(WORDS, k=generator.randint(4, 30)))

    rows = [(text(), text(), "yes" if number % 3 else "no", number % 2) for number in range(40)]
    lines = [f"{a},{b},{label},{right}\n" for a, b, label, right in rows]
    (folder / "table.csv").write_text("text,other,label,right\n" + "".join(lines))
    with open(folder / "words.jsonl", "w") as file:
        for a, *_ in rows:
            words = a.split()
            tags = ["B-RIVER" if word == "river" else "B-HILL" if word == "hill" else "O" for word in words]
            file.write(json.dumps({"words": words, "tags": tags}) + "\n")
    with open(folder / "questions.jsonl", "w") as file:
        for number, (a, *_) in enumerate(rows):
            context = f"{a} river {a}"
            answers = {"text": ["river"], "answer_start": [context.index("river")]}
            row = {"id": str(number), "context": context, "question": "the river", "answers": answers}
            file.write(json.dumps(row) + "\n")


def curve(name, folder):
    """The metrics of each step and evaluation of one of CURVES; `folder` has the records and the tables."""
    workdir = Path(folder) / f"run-{name.replace(' ', '-')}"
    arguments = CURVES[name]
    steps = (
        "--config.steps=5",
        "--config.checkpoint.every=0",
        "--config.eval.every=0",
        "--config.eval.batches=2",
    )
    with inside(folder), processes.quick_compilation():
        run(*arguments, f"--workdir={workdir}", *(steps if arguments[0] == "pretrain" else ()))
    return metrics(workdir)


def metrics(workdir):
    """[[kind, step, {metric: value}], ...] of a work directory."""
    lines = map(json.loads, (Path(workdir) / "metrics.jsonl").read_text().splitlines())
    return [
        [line["kind"], line["step"], {name: line[name] for name in METRICS if name in line}] for line in lines
    ]


# Work directories that the recording code left at step 4 of 8: {name: arguments}.
RUNS = {
    "pretraining": (
        *(*_PRETRAIN, "--config.data.dir=records", *_NO_DROPOUT, "--config.optimizer.learning_rate=0.01"),
        *("--config.steps=8", "--config.checkpoint.every=4", "--config.eval.every=4"),
        "--config.checkpoint.keep=9",
    ),
    "pretraining-dropout": (
        *(*_PRETRAIN, "--config.data.dir=records", "--config.accumulate_steps=2"),
        *("--config.steps=8", "--config.checkpoint.every=4", "--config.eval.every=8"),
        "--config.checkpoint.keep=9",
    ),
    "finetuning": (
        *("finetune", "--config=finetune/classification", *_FINETUNE, *_NO_DROPOUT),
        *("--config.data.train=table.csv", "--config.data.eval=table.csv", "--config.data.text_a=text"),
        *("--config.data.label=label", "--config.batch_size=16", "--config.epochs=4"),
        *("--config.checkpoint.every=4", "--config.eval.every=4", "--config.optimizer.learning_rate=0.01"),
        "--config.checkpoint.keep=9",
    ),
}
STEP = 4
KEPT = ("config.json", "vocab.txt", "metrics.jsonl", "best.json")


RUNS_FILE = recorded.FOLDER / "runs.tar.xz"


def write_runs(scratch):
    """Writes the work directories of RUNS, with the records and tables that they need."""
    scratch.mkdir(parents=True)
    processes.write_records(scratch / "records", words=35, rows=64, eval_rows=16)
    write_corpus(scratch)
    write_tables(scratch)
    for name in RUNS:
        resume(name, scratch)
        cut_back(scratch / name, STEP)
    with tarfile.open(RUNS_FILE, "w:xz") as archive:
        for name in ("records", *RUNS, "vocab.txt", "table.csv"):
            archive.add(scratch / name, name)


def copy_runs(folder):
    """Unpacks the work directories into a folder, with the records and tables that they need."""
    with tarfile.open(RUNS_FILE) as archive:
        archive.extractall(folder, filter="data")


def resume(name, folder):
    """Goes on with the work directory `folder`/NAME to its end."""
    with inside(folder), processes.quick_compilation():
        run(*RUNS[name], f"--workdir={name}")


def end(name, folder):
    """{path: array} of the state that a run of `folder` ends with when it goes on."""
    resume(name, folder)
    return state(folder / name, last_step(folder / name))


def write_ends(ends):
    for name, arrays in ends.items():
        np.savez_compressed(recorded.FOLDER / f"{name}.npz", **arrays)
    recorded.write("ends", {"machine": recorded.machine()})


def check_ends(ends):
    """One line for each array that differs from what is recorded; "" if none does."""
    exact = recorded.read("ends")["machine"] == recorded.machine()
    lines = []
    for name, found in ends.items():
        with np.load(recorded.FOLDER / f"{name}.npz") as file:
            expected = {path: file[path] for path in file.files}
        lines += [f"{name}: only one end has {path}" for path in sorted(set(expected) ^ set(found))]
        for path in sorted(set(expected) & set(found)):
            if not recorded.same_numbers(expected[path], found[path], exact):
                largest = np.max(np.abs(np.asarray(expected[path], float) - np.asarray(found[path], float)))
                lines.append(f"{name}: {path} ends otherwise, by up to {largest:g}")
    return recorded.explain(lines)


def check_curves(expected, found):
    """One line for each curve that differs from what is recorded; "" if none does."""
    exact = expected["machine"] == found["machine"]
    lines = []
    for name in sorted({*expected["curves"], *found["curves"]}):
        one, two = (each["curves"].get(name, []) for each in (expected, found))
        keys = [[[kind, step, sorted(values)] for kind, step, values in curve] for curve in (one, two)]
        if keys[0] != keys[1]:
            lines.append(f"{name}: other steps or metrics: {keys[0]}, now {keys[1]}")
            continue
        for (kind, step, before), (*_, now) in zip(one, two, strict=True):
            lines += [
                f"{name}: {kind} step {step}: {metric} was {before[metric]} and is {now[metric]}"
                for metric in before
                if not recorded.same_numbers(before[metric], now[metric], exact)
            ]
    return recorded.explain(lines)


def predictions(folder):
    """The machine, and the predictions of the recorded fine-tuned model, which evaluation writes."""
    with inside(folder):
        run("evaluate", "--workdir=finetuning", "--output=predictions.jsonl")
    lines = (folder / "predictions.jsonl").read_text().splitlines()
    return {"machine": recorded.machine(), "rows": [json.loads(line) for line in lines]}


def check_predictions(expected, found):
    """One line for each prediction that differs from what is recorded; "" if none does."""
    exact = expected["machine"] == found["machine"]
    lines = []
    for number, (one, two) in enumerate(zip(expected["rows"], found["rows"], strict=True)):
        texts = [{k: v for k, v in row.items() if k != "probabilities"} for row in (one, two)]
        numbers = [list(row["probabilities"].values()) for row in (one, two)]
        if texts[0] != texts[1] or not recorded.same_numbers(*numbers, exact):
            lines.append(f"prediction {number} was {one} and is {two}")
    return recorded.explain(lines)


def state(workdir, step):
    """{path: array} of a checkpoint, read by orbax alone."""
    with ocp.PyTreeCheckpointer() as reader:
        tree = reader.restore(Path(workdir).resolve() / "checkpoints" / str(step))
    return dict(_leaves(tree))


def _leaves(tree, prefix=""):
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for name, value in items:
        if isinstance(value, dict | list | tuple):
            yield from _leaves(value, f"{prefix}{name}/")
        elif value is not None:
            yield f"{prefix}{name}", np.asarray(value)


def last_step(workdir):
    return max(int(path.name) for path in (Path(workdir) / "checkpoints").iterdir() if path.name.isdigit())


def cut_back(workdir, step):
    """Leaves what a work directory holds of a run that was killed after the checkpoint of `step`."""
    workdir = Path(workdir)
    for path in (workdir / "checkpoints").iterdir():
        if not path.name.isdigit() or int(path.name) > step:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in workdir.iterdir():
        if path.name not in (*KEPT, "checkpoints", "best"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    lines = (workdir / "metrics.jsonl").read_text().splitlines(keepends=True)
    (workdir / "metrics.jsonl").write_text("".join(x for x in lines if json.loads(x)["step"] <= step))
    if (workdir / "best.json").exists():
        best = json.loads((workdir / "best.json").read_text())
        assert best["step"] == step, "the best checkpoint is not of the step that is kept"
        (workdir / "best.json").write_text(json.dumps(best | {"last_step": step, "since_best": 0}))


def conversions(folder, source):
    """{file: digest} of a work directory converted to a Hugging Face folder, and of that back and forth."""
    with inside(folder):
        run("convert", f"--input={source}", "--output=huggingface", "--to=huggingface")
        run("convert", "--input=huggingface", "--output=native", "--to=bert_jax")
        run("convert", "--input=native", "--output=again", "--to=huggingface")
    found = {f"huggingface/{path}": d for path, d in recorded.tree_digests(folder / "huggingface").items()}
    found |= {f"again/{path}": d for path, d in recorded.tree_digests(folder / "again").items()}
    return {path: d for path, d in found.items() if not path.endswith("README.md")}
