"""Takes families from raw text to a fine-tuned model in transformers, and kills each pre-training once.

    python benchmarks/family.py --input='wikipedia/*' --glue=glue --output=family --families=bert,electra \
        --peer_python=PYTHON
    python benchmarks/family.py --output=family --table

For each family: a vocabulary of its kind, records, pre-training that is killed by SIGKILL after a third of
its steps and resumed, fine-tuning on the first rows of SST-2 (10,000) with several seeds, the same from drawn
weights, an export, and the predictions of transformers beside ours (only with --peer_python). Every stage
adds its figures to OUTPUT/FAMILY/figures.json. What is there is not done again, so the same command goes on
after an interruption; more --seeds add runs. --table prints what is there and draws the curves. --steps=120
--train_rows=2000 tries the way in a few minutes, in an OUTPUT of its own.

Whether the resumed run is bit for bit the other: the process is killed after the checkpoint of step K, which
is taken away, so that the same command resumes from the checkpoint before and computes step K again. Both
checkpoints of step K have to agree in every array, and all metrics logged on the way to the last digit.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import glue

from bert_jax import checkpoint
from bert_jax.data import records, token_counts
from bert_jax.plots import curves
from bert_jax.training.metrics.metrics_writer import read_metrics

BERT_JAX = [sys.executable, "-m", "bert_jax"]
NAMES = {
    "bert": "BERT",
    "electra": "ELECTRA",
    "roberta": "RoBERTa",
    "modernbert": "ModernBERT",
    "albert": "ALBERT",
    "distilbert": "DistilBERT",
}


@dataclasses.dataclass(frozen=True)
class Family:
    """How a family is pre-trained.

    Attributes:
        vocabulary: name of the vocabulary's file, and flags of `bert-jax vocab`.
        records: flags of `bert-jax data`.
        config: the config of pre-training.
        steps: number of steps, which take ten minutes of two cores or more on a slow processor.
        fields: fields of the config that differ from it, beside those of `SHORT`.
        teacher: the family whose run is the teacher.
    """

    vocabulary: tuple[str, ...]
    records: tuple[str, ...]
    config: str
    steps: int
    fields: dict[str, object]
    teacher: str = ""


# What a run of minutes needs; see the config pretrain/mini.
SHORT = {
    "batch_size": 16,
    "model.hidden_dropout_prob": 0.0,
    "model.attention_probs_dropout_prob": 0.0,
    "model.scan_unroll": 0,
    "eval.every": 200,
    "eval.batches": 40,
}
ADAM = {"optimizer.name": "adamw_bias_corrected", "optimizer.learning_rate": 1e-3, "optimizer.b2": 0.98}
MINI = {"model.hidden_size": 256, "model.num_attention_heads": 4, "model.intermediate_size": 1024}

FAMILIES = {
    "bert": Family(("wordpiece.txt",), ("--nsp=next",), "pretrain/mini", 2000, {}),
    "electra": Family(
        ("wordpiece.txt",),
        ("--nsp=none",),
        "pretrain/electra_tiny",
        1400,
        ADAM | MINI | {"model.embedding_size": 128},
    ),
    "roberta": Family(
        ("bpe-roberta.json", "--kind=bpe"),
        ("--nsp=none", "--full_sentences"),
        "pretrain/roberta:tiny",
        1550,
        ADAM,
    ),
    "modernbert": Family(
        ("bpe-bert.json", "--kind=bpe", "--special_tokens=bert"),
        ("--nsp=none", "--full_sentences"),
        "pretrain/ettin_tiny",
        1280,
        {},
    ),
    "albert": Family(
        ("sentencepiece-albert.model", "--kind=sentencepiece", "--normalizer=albert"),
        ("--nsp=sop", "--normalizer=albert"),
        "pretrain/albert:tiny",
        1750,
        ADAM | {"optimizer.schedule": "warmup_then_decay"},
    ),
    "distilbert": Family(
        ("wordpiece.txt",),
        ("--nsp=none", "--full_sentences"),
        "pretrain/distilbert",
        1600,
        ADAM | {"optimizer.warmup_fraction": 0.0, "model.num_hidden_layers": 2},
        teacher="bert",
    ),
}
TUNING = {
    "optimizer.name": "adamw_bias_corrected",
    "optimizer.schedule": "warmup_then_decay",
    "optimizer.learning_rate": 3e-4,
    "epochs": 2,
    "batch_size": 32,
    "eval.every": 1_000_000,
}


class Figures:
    """The figures of a family, by stage, in a file."""

    def __init__(self, folder: Path):
        self.folder, self.path = folder, folder / "figures.json"
        folder.mkdir(parents=True, exist_ok=True)
        self.of = json.loads(self.path.read_text()) if self.path.exists() else {}

    def stage(self, name, work):
        """Does the work of a stage unless it is done; keeps its figures and the time of its commands."""
        if name in self.of:
            return self.of[name]
        print(f"{self.folder.name}: {name}", flush=True)
        began, cpu = time.monotonic(), cpu_seconds()
        found = work() or {}
        self.of[name] = found | {
            "cpu_seconds": round(cpu_seconds() - cpu, 1),
            "seconds": round(time.monotonic() - began, 1),
        }
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.of, indent=1) + "\n")
        new.replace(self.path)
        print(f"{self.folder.name}: {name}: {self.of[name]}", flush=True)
        return self.of[name]


def cpu_seconds() -> float:
    """CPU seconds of all commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def bert_jax(*arguments, log: Path) -> None:
    with log.open("a", encoding="utf-8") as file:
        subprocess.run([*BERT_JAX, *map(str, arguments)], check=True, stdout=file, stderr=file)


def flags(fields):
    return [f"--config.{name}={value}" for name, value in fields.items()]


def prepare(args, family: Family, folder: Path, log: Path) -> dict:
    text = (f"--input={args.input}", "--input_format=wikiextractor")
    vocabulary = args.output / family.vocabulary[0]
    if not vocabulary.exists():
        bert_jax(
            *("vocab", *text, f"--output={vocabulary}", "--size=8192", "--sample_bytes=20000000"),
            *family.vocabulary[1:],
            log=log,
        )
    bert_jax(
        *("data", *text, f"--vocab={vocabulary}", f"--output={folder / 'records'}"),
        *("--max_seq_length=128", *family.records),
        log=log,
    )
    manifest = json.loads((folder / "records" / "manifest.json").read_text())
    return {
        "tokens": manifest["splits"]["train"]["tokens"],
        "unigram": unigram_loss(folder / "records", manifest),
    }


def unigram_loss(directory: Path, manifest: dict) -> float:
    """Cross entropy of the held-out tokens, special ones left out, under their frequencies in training."""
    size = manifest["vocabulary"]["size"]
    train, held_out = (
        token_counts.count(records.open_dataset(str(directory), split), size) for split in ("train", "eval")
    )
    for counts in (train, held_out):
        counts[list(manifest["special_ids"].values())] = 0
    return token_counts.cross_entropy(held_out, train)


def pretraining(args, family: Family, folder: Path) -> list[str]:
    """The command, before and after the kill."""
    every = twelfth(family)
    fields = (
        SHORT
        | family.fields
        | {
            "steps": family.steps,
            "optimizer.warmup_steps": every,
            "checkpoint.every": every,
            "checkpoint.keep_every": kill_step(family),
            "log_every": every // 5,
            "data.dir": folder / "records",
        }
    )
    if family.teacher:
        fields["distillation.teacher"] = run_of(args, family.teacher)
    return ["pretrain", f"--config={family.config}", f"--workdir={run_of(args, folder.name)}", *flags(fields)]


def twelfth(family: Family) -> int:
    """Steps from one checkpoint to the next."""
    return family.steps // 12


def kill_step(family: Family) -> int:
    return 4 * twelfth(family)


def run_of(args, name: str) -> Path:
    return args.output / "pretrain" / name


def kill(args, family: Family, folder: Path, log: Path) -> dict:
    """Starts pre-training, kills it after the checkpoint of `kill_step`, and takes that away."""
    run, aside, at = run_of(args, folder.name), folder / "uninterrupted", kill_step(family)
    for left in (run, aside):  # by a script that was interrupted here
        shutil.rmtree(left, ignore_errors=True)
    aside.mkdir()
    with log.open("a", encoding="utf-8") as file:
        process = subprocess.Popen([*BERT_JAX, *pretraining(args, family, folder)], stdout=file, stderr=file)
        while process.poll() is None and not (
            (run / "checkpoints" / str(at)).exists() and last_step(run) > at
        ):
            time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            raise SystemExit(f"{log}: pre-training ended by itself, with {process.returncode}")
    shutil.move(run / "checkpoints" / str(at), aside / str(at))
    if (frozen := run / "checkpoints" / "frozen").exists():  # the parameters of a teacher, beside the steps
        shutil.copytree(frozen, aside / "frozen")
    shutil.copy(run / "metrics.jsonl", aside)
    return {"logged": last_step(run), "at": at, "from": at - twelfth(family)}


def last_step(run: Path) -> int:
    return max((row["step"] for row in read_metrics(run, "train")), default=0)


def pretrain(args, family: Family, folder: Path, log: Path) -> dict:
    bert_jax(*pretraining(args, family, folder), log=log)
    rows = read_metrics(run_of(args, folder.name), "eval")
    return {"steps": rows[-1].pop("step"), "eval": rows[-1]}


def compare_resumed(args, family: Family, folder: Path) -> dict:
    """Compares the two checkpoints of `kill_step`, and what was logged from the one before to the kill."""
    at, run = kill_step(family), run_of(args, folder.name)
    # A line has the means since the line before it, and the run goes on between two lines.
    first = at - twelfth(family) + twelfth(family) // 5
    one, other = (
        checkpoint.verify(path / str(at)) for path in (folder / "uninterrupted", run / "checkpoints")
    )
    lines = [
        {
            (row["step"], name): value
            for row in read_metrics(path, "train")
            for name, value in row.items()
            if first <= row["step"] and ("loss" in name or name == "grad_norm")
        }
        for path in (folder / "uninterrupted", run)
    ]
    return {
        "arrays": len(one),
        "different": sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name)),
        "digests": [
            hashlib.sha256(repr(sorted(leaves.items())).encode()).hexdigest()[:16] for leaves in (one, other)
        ],
        "metrics": len(lines[0]),
        "different_metrics": sum(value != lines[1].get(key) for key, value in lines[0].items()),
    }


def finetune(args, folder: Path, log: Path, seed: int, from_scratch: bool) -> dict:
    run = folder / f"{'control' if from_scratch else 'sst2'}-{seed}"
    source = argparse.Namespace(data_dir=args.glue, output=args.output)
    fields = TUNING | {
        "init_from": run_of(args, folder.name),
        "data_dir": glue.limited(source, "sst2", args.train_rows),
        "seed": seed,
        "from_scratch": from_scratch,
    }
    bert_jax("finetune", "--config=finetune/glue:sst2", f"--workdir={run}", *flags(fields), log=log)
    return json.loads((run / "best.json").read_text())["scores"]


def export(folder: Path, log: Path) -> None:
    bert_jax(
        *("convert", f"--input={folder / 'sst2-0'}", f"--output={folder / 'exported'}", "--to=huggingface"),
        "--overwrite",
        log=log,
    )


def compare_peer(args, folder: Path, log: Path) -> dict:
    with log.open("a", encoding="utf-8") as file:
        done = subprocess.run(
            [
                *(args.peer_python, Path(__file__).with_name("peer_predictions.py")),
                *("--model", folder / "exported", "--input", Path(args.glue, "SST-2", "dev.tsv")),
                *("--predictions", folder / "sst2-0" / "predictions-dev.tsv"),
            ],
            check=True,
            stdout=subprocess.PIPE,
            stderr=file,
        )
    return json.loads(done.stdout.splitlines()[-1])  # tokenizers prints there, too


def run_family(args, name: str) -> None:
    family, folder = FAMILIES[name], args.output / name
    family = dataclasses.replace(family, steps=args.steps or family.steps)
    figures, log = Figures(folder), folder / "log.txt"
    figures.stage("records", lambda: prepare(args, family, folder, log))
    figures.stage("killed", lambda: kill(args, family, folder, log))
    figures.stage("pretrain", lambda: pretrain(args, family, folder, log))
    figures.stage("resumed", lambda: compare_resumed(args, family, folder))
    for seed in range(args.seeds):
        figures.stage(f"sst2-{seed}", lambda seed=seed: finetune(args, folder, log, seed, False))
        if seed == 0:
            figures.stage("export", lambda: export(folder, log))
            if args.peer_python:
                figures.stage("transformers", lambda: compare_peer(args, folder, log))
        if args.control:
            figures.stage(f"control-{seed}", lambda seed=seed: finetune(args, folder, log, seed, True))


def table(args) -> None:
    found = {
        name: of
        for name in FAMILIES
        if "pretrain" in (of := Figures(args.output / name).of if (args.output / name).exists() else {})
    }
    print(
        "| family | steps | CPU s | loss of masked tokens | by frequency | accuracy | second segments, or "
        "replaced tokens |\n|---|---|---|---|---|---|---|"
    )
    for name, of in found.items():
        held_out = of["pretrain"]["eval"]
        loss, accuracy = (
            held_out.get(f"mlm_{x}", held_out.get(f"generator_{x}")) for x in ("loss", "accuracy")
        )
        other = ""
        if "nsp_accuracy" in held_out:
            other = f"accuracy {held_out['nsp_accuracy']:.3f}"
        if "discriminator_recall" in held_out:
            other = ", ".join(
                f"{x} {held_out[f'discriminator_{x}']:.3f}" for x in ("loss", "precision", "recall")
            )
        cpu = sum(of[stage]["cpu_seconds"] for stage in ("killed", "pretrain"))
        print(
            f"| {NAMES[name]} | {of['pretrain']['steps']:,} | {cpu:,.0f} | {loss:.3f} | "
            f"{of['records']['unigram']:.3f} | {accuracy:.3f} | {other} |"
        )
    print(
        "\n| family | killed after step | resumed from | arrays at step K that differ | digests | metrics "
        "that differ |\n|---|---|---|---|---|---|"
    )
    for name, of in found.items():
        if "resumed" in of:
            killed, same = of["killed"], of["resumed"]
            print(
                f"| {NAMES[name]} | {killed['logged']} | {killed['from']} | "
                f"{len(same['different'])} of {same['arrays']} at {killed['at']} | "
                f"{', '.join(same['digests'])} | "
                f"{same['different_metrics']} of {same['metrics']} |"
            )
    print(
        "\n| family | accuracy, by seed | from random weights | CPU seconds | other labels in transformers | "
        "largest difference of probabilities | keys missing, unexpected |\n|---|---|---|---|---|---|---|"
    )
    for name, of in found.items():
        tuned, control = (
            [run for stage, run in sorted(of.items()) if stage.startswith(kind)]
            for kind in ("sst2-", "control-")
        )
        scores = [", ".join(f"{run['accuracy']:.4f}" for run in runs) for runs in (tuned, control)]
        seconds = ", ".join(f"{run['cpu_seconds']:.0f}" for run in tuned)
        peer, cells = of.get("transformers"), ["", "", ""]
        if peer:
            cells = [
                f"{peer['rows'] - peer['equal']} of {peer['rows']}",
                f"{peer['largest_difference']:.1e}",
                f"{len(peer['missing'])}, {len(peer['unexpected'])}",
            ]
        print(f"| {NAMES[name]} | {' | '.join([*scores, seconds, *cells])} |")
    runs = {NAMES[name]: list(map(of_panels, read_metrics(run_of(args, name)))) for name in found}
    curves.plot_metrics(runs, str(args.output / "family.png"), title="Pre-training on two cores")


def of_panels(row: dict) -> dict:
    """The metrics to draw: a generator is a masked LM, and speeds mean nothing on a shared machine."""
    row = {name.replace("generator_", "mlm_"): value for name, value in row.items()}
    shown = ("step", "kind", "mlm_loss", "mlm_accuracy", "nsp_accuracy", "discriminator_loss")
    return {name: row[name] for name in shown if name in row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", help="glob of Wikipedia's text as WikiExtractor writes it")
    parser.add_argument("--glue", help="folder with SST-2")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="steps of pre-training, in place of each family's own")
    parser.add_argument("--train_rows", type=int, default=10_000, help="rows of SST-2 to fine-tune on")
    parser.add_argument("--control", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--peer_python", help="a Python with torch and transformers")
    parser.add_argument("--table", action="store_true", help="only print the tables, and draw the curves")
    args = parser.parse_args()
    for name in [] if args.table else args.families.split(","):
        run_family(args, name)
    table(args)


if __name__ == "__main__":
    main()
