"""Continues the pre-training of a model on a domain: what it learns of it, forgets, and gains on a task.

    python benchmarks/continued.py --model=all-MiniLM-L6-v2 --general='wikipedia/*' --output=continued
    python benchmarks/continued.py --model=all-MiniLM-L6-v2 --general='wikipedia/*' --output=continued --table

MODEL is a Hugging Face folder. The domain is the documentation of Python, from the Python that runs this, and
the task is to tell which of six packages a sentence is from; these packages are held out of the text, as in
`bert-jax demo`. --domain=GLOB is another text, with --task=DIR that has train.tsv and dev.tsv: a header, a
text and its label a row.

An encoder of sentences, such as MiniLM, has no masked LM head. It is first trained on general text for
--head_steps, all of it, which gives it one: that is the model "before", from which every arm starts. A model
that has a head is "before" as it is. The arms have the same number of steps, rows and rates:

- domain: the text of the domain alone
- replay-10, replay-30: of which 10% or 30% of the rows are general text (any replay-N)
- words: the domain alone, after the words that the vocabulary splits most are added to it

Each is measured by the masked LM loss on held-out text of the domain and of the general text, and by the task
with --task_rows training rows and --seeds seeds. The losses of `words` are per token of another vocabulary,
so they are compared only with those of the same vocabulary before training.

Every stage adds its figures to OUTPUT/ARM/figures.json. What is there is not done again, so the same command
goes on after an interruption; more --seeds or --arms add theirs. --table prints what is there and draws the
curves. --steps=4 --head_steps=4 --seeds=1 --held_out_rows=32 --task_epochs=1 with one file of general text
tries the way in a few minutes, in an OUTPUT of its own.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import statistics
from pathlib import Path

from family import Figures, bert_jax, flags

from bert_jax import convert
from bert_jax.demo.steps import HELD_OUT
from bert_jax.inference.held_out import held_out
from bert_jax.plots import curves
from bert_jax.tasks import writers
from bert_jax.training.metrics.metrics_writer import read_metrics
from data_pipelines import python_docs

BEFORE, CHECKPOINT, WORDS = "before", "checkpoint", "words"
WORDS_SUFFIX = "-words"  # of records with the vocabulary of that arm
ROWS = ("--max_seq_length=128", "--nsp=none", "--full_rows")
HELD_OUT_TEXT = {"domain": 0.1, "general": 0.02}  # shares of the documents


class Continued:
    """The stages, which are done once each."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.output = args, args.output
        self.output.mkdir(parents=True, exist_ok=True)
        self.log = self.output / "log.txt"

    def run(self) -> None:
        for arm in self.args.arms.split(","):
            self.fields(arm)  # refuses an unknown one before the first stage
        shared = Figures(self.output / "shared")
        shared.stage("text", self.write_text)
        self.make_records(shared, "", self.args.model)
        before = Figures(self.output / BEFORE)
        if self.before != self.args.model:
            before.stage("pretrain", self.add_head)
            self.tune(Figures(self.output / CHECKPOINT), self.args.model)
        self.measure(before, self.before)
        self.tune(before, self.before)
        for arm in self.args.arms.split(","):
            figures, suffix = Figures(self.output / arm), ""
            if arm == WORDS:
                suffix = WORDS_SUFFIX
                figures.stage("words", self.add_words)
                self.make_records(figures, suffix, self.extended / "vocab.txt")
                self.measure(figures, self.extended, suffix, "before, ")
            figures.stage("pretrain", lambda arm=arm: self.pretrain(arm, self.fields(arm)))
            self.measure(figures, self.workdir(arm), suffix)
            self.tune(figures, self.workdir(arm))

    # The text

    def write_text(self) -> dict:
        """Writes the documentation of Python and its task, unless there is another domain."""
        if self.args.domain:
            return {"text": self.args.domain}
        documents = python_docs.documents()
        written = python_docs.write_corpus(
            self.output / "text", [one for one in documents if one.package not in HELD_OUT]
        )
        rows = [
            (sentence, document.package)
            for document in documents
            for sentence in document.sentences
            if document.package in HELD_OUT and 5 <= len(sentence.split()) <= 40
        ]
        random.Random(0).shuffle(rows)
        train, dev = rows[: self.args.task_rows], rows[self.args.task_rows :]
        (self.output / "task").mkdir(exist_ok=True)
        for name, split in (("train", train), ("dev", dev)):
            writers.write_table(str(self.output / "task" / f"{name}.tsv"), ("sentence", "package"), split)
        return {"sentences": written.sentences, "words": written.words, "dev": len(dev)}

    def text(self, name: str) -> tuple[str, str]:
        """The flags of the text of the domain, or of the general text."""
        if name == "general":
            return f"--input={self.args.general}", f"--input_format={self.args.general_format}"
        text = self.args.domain or self.output / "text"
        return f"--input={text}", f"--input_format={self.args.domain_format}"

    @property
    def task(self) -> Path:
        return Path(self.args.task) if self.args.domain else self.output / "task"

    def make_records(self, figures: Figures, suffix: str, vocabulary) -> None:
        for name in HELD_OUT_TEXT:
            figures.stage(f"records, {name}", lambda name=name: self._make_records(name, suffix, vocabulary))

    def _make_records(self, name: str, suffix: str, vocabulary) -> dict:
        directory = self.records(name, suffix)
        bert_jax(
            *("data", *self.text(name), f"--vocab={vocabulary}", f"--output={directory}", *ROWS),
            f"--eval_fraction={HELD_OUT_TEXT[name]}",
            log=self.log,
        )
        splits = json.loads((directory / "manifest.json").read_text())["splits"]
        return {split: of["rows"] for split, of in splits.items()}

    def records(self, name: str, suffix: str = "") -> Path:
        return self.output / f"records-{name}{suffix}"

    # The models

    @functools.cached_property
    def before(self) -> Path | str:
        """The model from which the arms start."""
        groups = convert.load(self.args.model, log=lambda line: None).groups
        return self.args.model if "mlm" in groups else self.workdir(BEFORE)

    def workdir(self, arm: str) -> Path:
        return self.output / arm / "pretrain"

    @property
    def extended(self) -> Path:
        """The model before training, with the words of the domain."""
        return self.output / WORDS / "model"

    def add_head(self) -> dict:
        fields = {
            "data.dir": self.records("general"),
            "init_from": self.args.model,
            "init_ignore": "(mlm|nsp|pooler)/.*",
            "steps": self.args.head_steps,
            "optimizer.learning_rate": self.args.head_rate,
        }
        return self.pretrain(BEFORE, fields)

    def add_words(self) -> dict:
        terms = self.output / WORDS / "terms.txt"
        bert_jax(
            *("vocab", *self.text("domain"), f"--add_to={self.before}", f"--output={terms}"),
            *(f"--size={self.args.words}", "--overwrite"),
            log=self.log,
        )
        bert_jax(
            *("convert", f"--input={self.before}", f"--output={self.extended}", "--to=bert_jax"),
            *(f"--add_tokens={terms}", "--overwrite"),
            log=self.log,
        )
        words = terms.read_text(encoding="utf-8").split()
        return {"words": len(words), "first": words[:20]}

    def fields(self, arm: str) -> dict:
        """The fields of an arm's pre-training."""
        kind, _, percent = arm.partition("-")
        if arm not in ("domain", WORDS) and not (kind == "replay" and percent.isdecimal()):
            raise SystemExit(f"--arms: {arm} is none of domain, replay-PERCENT and {WORDS}")
        fields = {
            "data.dir": self.records("domain", WORDS_SUFFIX if arm == WORDS else ""),
            "init_from": self.extended if arm == WORDS else self.before,
            "init_ignore": "(nsp|pooler)/.*",
            "steps": self.args.steps,
            "optimizer.learning_rate": self.args.rate,
        }
        if percent:
            fields |= {"data.replay": self.records("general"), "data.replay_share": int(percent) / 100}
        return fields

    def pretrain(self, arm: str, fields: dict) -> dict:
        steps = fields["steps"]
        fields |= {
            "batch_size": self.args.batch_size,
            "model.scan_unroll": 0,
            "checkpoint.every": max(1, steps // 8),
            "eval.every": max(1, steps // 10),
            "eval.batches": 20,
            "log_every": max(1, steps // 50),
        }
        workdir = self.workdir(arm)
        bert_jax(
            *("pretrain", "--config=pretrain/continue", f"--workdir={workdir}", *flags(fields)),
            log=self.log,
        )
        rate = statistics.median(row["steps_per_second"] for row in read_metrics(workdir, "train")[1:])
        return {"steps": steps, "steps_per_second": rate}

    # The measures

    def measure(self, figures: Figures, model, suffix: str = "", prefix: str = "") -> None:
        for name in HELD_OUT_TEXT:
            figures.stage(
                f"{prefix}held out, {name}",
                lambda name=name: held_out(
                    model, str(self.records(name, suffix)), rows=self.args.held_out_rows, log=print
                ),
            )

    def tune(self, figures: Figures, model) -> None:
        for seed in range(self.args.seeds):
            figures.stage(f"task-{seed}", lambda seed=seed: self._tune(figures.folder, model, seed))

    def _tune(self, folder: Path, model, seed: int) -> dict:
        with open(self.task / "train.tsv", encoding="utf-8") as file:
            text, label = file.readline().rstrip("\n").split("\t")
        workdir = folder / f"task-{seed}"
        fields = {
            "init_from": model,
            "data.train": self.task / "train.tsv",
            "data.eval": self.task / "dev.tsv",
            "data.text_a": text,
            "data.label": label,
            "seed": seed,
            "max_seq_length": 64,
            "batch_size": 16,
            "epochs": self.args.task_epochs,
            "optimizer.name": "adamw_bias_corrected",
            "optimizer.schedule": "warmup_then_decay",
            "optimizer.learning_rate": self.args.task_rate,
            "eval.every": 1_000_000,
        }
        bert_jax(
            *("finetune", "--config=finetune/classification", f"--workdir={workdir}", *flags(fields)),
            log=self.log,
        )
        return json.loads((workdir / "best.json").read_text())["scores"]

    # The table

    def table(self) -> None:
        names = [CHECKPOINT, BEFORE, *self.args.arms.split(",")]
        found = {name: Figures(self.output / name).of for name in names}
        print(
            "| model | loss on the domain | loss on general text | accuracy of the task, by seed | mean |\n"
            "|---|---|---|---|---|"
        )
        for name, of in found.items():
            losses = [self._loss(of, stage, name) for stage in HELD_OUT_TEXT]
            scores = [run["accuracy"] for stage, run in sorted(of.items()) if stage.startswith("task-")]
            mean = ""
            if scores:
                spread = f" ± {statistics.stdev(scores):.4f}" if len(scores) > 1 else ""
                mean = f"{statistics.mean(scores):.4f}{spread}"
            by_seed = ", ".join(f"{score:.4f}" for score in scores)
            print(f"| {name} | {' | '.join(losses)} | {by_seed} | {mean} |")
        print(
            "\nLosses are nats per masked token of held-out rows. Those of `words` are of another "
            "vocabulary, before its training and after it."
        )
        runs = {name: read_metrics(self.workdir(name)) for name in self.args.arms.split(",")}
        if runs := {name: list(map(_of_panels, rows)) for name, rows in runs.items() if rows}:
            picture = str(self.output / "continued.png")
            curves.plot_metrics(runs, picture, title="Continued pre-training")

    def _loss(self, of: dict, stage: str, name: str) -> str:
        if f"held out, {stage}" not in of:
            return ""
        after = f"{of[f'held out, {stage}']['mlm_loss']:.3f}"
        if name != WORDS:
            return after
        return f"{of[f'before, held out, {stage}']['mlm_loss']:.3f} to {after}"


def _of_panels(row: dict) -> dict:
    """The metrics to draw; speeds mean nothing on a shared machine."""
    return {name: row[name] for name in ("step", "kind", "mlm_loss", "mlm_accuracy") if name in row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="Hugging Face folder")
    parser.add_argument("--general", required=True, help="glob of general text")
    parser.add_argument("--general_format", default="wikiextractor")
    parser.add_argument("--domain", default="", help="glob of text of a domain; default: Python's own")
    parser.add_argument("--domain_format", default="text")
    parser.add_argument("--task", default="", help="folder with train.tsv and dev.tsv, with --domain")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--arms", default="domain,replay-10,replay-30,words")
    parser.add_argument("--steps", type=int, default=400, help="steps of each arm")
    parser.add_argument("--head_steps", type=int, default=1500, help="steps on general text before them")
    parser.add_argument("--rate", type=float, default=5e-5, help="learning rate of the arms")
    parser.add_argument("--head_rate", type=float, default=1e-4)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--words", type=int, default=500, help="words to add in the arm `words`")
    parser.add_argument("--held_out_rows", type=int, default=2000, help="rows of each held-out set")
    parser.add_argument("--seeds", type=int, default=3, help="fine-tunings of each model")
    parser.add_argument("--task_rows", type=int, default=300, help="training rows of the task of Python")
    parser.add_argument("--task_epochs", type=float, default=10)
    parser.add_argument("--task_rate", type=float, default=1e-4)
    parser.add_argument("--table", action="store_true", help="only print the table, and draw the curves")
    args = parser.parse_args()
    if bool(args.domain) != bool(args.task):
        parser.error("--domain and --task are given together, or neither")
    continued = Continued(args)
    if not args.table:
        continued.run()
    continued.table()


if __name__ == "__main__":
    main()
