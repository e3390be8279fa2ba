"""Work directories of earlier code: how they were written, go on, evaluate and convert."""

import json
import tarfile
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
from support import processes, recorded
from support.gate.inputs import inside, run
from support.gate.losses import FINETUNE, NO_DROPOUT, PRETRAIN

# Work directories that the recording code left at step 4 of 8: {name: arguments}.
RUNS = {
    "pretraining": (
        *(*PRETRAIN, "--config.data.dir=records", *NO_DROPOUT, "--config.optimizer.learning_rate=0.01"),
        *("--config.steps=8", "--config.checkpoint.every=4", "--config.eval.every=4"),
        "--config.checkpoint.keep=9",
    ),
    "pretraining-dropout": (
        *(*PRETRAIN, "--config.data.dir=records", "--config.accumulate_steps=2"),
        *("--config.steps=8", "--config.checkpoint.every=4", "--config.eval.every=8"),
        "--config.checkpoint.keep=9",
    ),
    "finetuning": (
        *("finetune", "--config=finetune/classification", *FINETUNE, *NO_DROPOUT),
        *("--config.data.train=table.csv", "--config.data.eval=table.csv", "--config.data.text_a=text"),
        *("--config.data.label=label", "--config.batch_size=16", "--config.epochs=4"),
        *("--config.checkpoint.every=4", "--config.eval.every=4", "--config.optimizer.learning_rate=0.01"),
        "--config.checkpoint.keep=9",
    ),
}

RUNS_FILE = recorded.FOLDER / "runs.tar.xz"


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


def conversions(folder, source):
    """{file: digest} of a work directory converted to a Hugging Face folder, and of that back and forth."""
    with inside(folder):
        run("convert", f"--input={source}", "--output=huggingface", "--to=huggingface")
        run("convert", "--input=huggingface", "--output=native", "--to=bert_jax")
        run("convert", "--input=native", "--output=again", "--to=huggingface")
    found = {f"huggingface/{path}": d for path, d in recorded.tree_digests(folder / "huggingface").items()}
    found |= {f"again/{path}": d for path, d in recorded.tree_digests(folder / "again").items()}
    return {path: d for path, d in found.items() if not path.endswith("README.md")}
