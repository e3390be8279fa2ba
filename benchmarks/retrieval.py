"""Trains models that find or order documents on paragraphs of a corpus, and searches held-out ones with them.

    python benchmarks/retrieval.py --model=DIR --input='wiki/*' --output=retrieval
    python benchmarks/retrieval.py --model=DIR --input='wiki/*' --similarity=glue/STS-B/dev.tsv \
        --arms=simcse,tsdae --output=texts

A query is a sentence from within a paragraph, and its only relevant document is the rest of that paragraph,
among all held-out paragraphs, with those of the same article (the inverse cloze task, Lee et al. 2019).
Whole articles are held out: the last paragraphs of the corpus. DIR is a Hugging Face folder. Arms:

    pairs        one vector for each text, trained with in-batch negatives
    negatives    the same, with the hard negatives that `bert-jax mine` finds with DIR as well
    simcse       one vector, trained on the paragraphs alone, each given twice with different dropout
    tsdae        one vector, trained on the paragraphs alone, by restoring them
    reranker     a query and a document in one row, trained with hard negatives, orders what DIR finds
    late         late interaction, trained with hard negatives, orders what DIR finds

Prints a markdown table: means and deviations of nDCG@10, MRR@10 and recall@10, and with --similarity of
Spearman's correlation.
What is in OUTPUT is not done again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

import paragraphs

from bert_jax.tasks import writers

WORDS = range(30, 121)  # of a paragraph without the sentence
QUERY_WORDS = range(6, 31)  # of a sentence
MEASURES = ("ndcg10", "mrr10", "recall10")
_MINED = {"data.negatives": "negatives"}
_SINGLE = {"data.text_a": "document", "data.text_b": ""}
ARMS = {
    "pairs": ("embedding", {}),
    "negatives": ("embedding", _MINED | {"batch_size": 32}),
    "simcse": ("embedding", _SINGLE),
    "tsdae": (
        "embedding",
        _SINGLE | {"loss": "denoising", "model.classifier_pooling": "cls", "batch_size": 8},
    ),
    "reranker": ("reranking", _MINED),
    "late": ("late_interaction", _MINED | {"batch_size": 32, "optimizer.learning_rate": 1e-4}),
}
ORDERING = ("reranker", "late")


def bert_jax(*args: object) -> str:
    """Runs a command and returns what it prints."""
    command = [sys.executable, "-m", "bert_jax", *map(str, args)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


def write_data(args: argparse.Namespace) -> None:
    """Writes pairs to train on, in pairs.tsv, and a folder in the form of BEIR, with qrels/test.tsv last."""
    rng, found = random.Random(0), []
    for split in paragraphs.read(args.input, args.input_format):
        inner = [i for i in range(1, len(split) - 1) if len(split[i].split()) in QUERY_WORDS]
        if not inner:
            continue
        place = rng.choice(inner)
        rest = " ".join(split[:place] + split[place + 1 :])
        if len(rest.split()) in WORDS:
            found.append((split[place], rest))
    held_out, rest = found[-args.documents :], found[: -2 * args.documents]
    folder = args.output / "beir"
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    asked = rng.sample(range(len(held_out)), args.queries)
    for name, rows in (
        ("corpus", [{"_id": f"d{i}", "title": "", "text": text} for i, (_, text) in enumerate(held_out)]),
        ("queries", [{"_id": f"q{i}", "text": held_out[i][0]} for i in asked]),
    ):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    writers.write_table(str(args.output / "pairs.tsv"), ("query", "document"), rng.sample(rest, args.pairs))
    judged = [(f"q{i}", f"d{i}", "1") for i in asked]
    writers.write_table(str(folder / "qrels" / "test.tsv"), ("query-id", "corpus-id", "score"), judged)


def mine(args: argparse.Namespace) -> Path:
    """Returns a file with the pairs and four hard negatives of each."""
    path = args.output / "hard.jsonl"
    if not path.exists():
        columns = ("--text_a=query", "--text_b=document")
        given = (f"--model={args.model}", f"--input={args.output / 'pairs.tsv'}")
        print(bert_jax("mine", *given, *columns, f"--output={path}"), file=sys.stderr)
    return path


def train(args: argparse.Namespace, arm: str, seed: int) -> Path:
    """Returns the work directory of a run."""
    workdir = args.output / f"{arm}-{seed}"
    config, changed = ARMS[arm]
    fields = {
        "init_from": args.model,
        "data.train": mine(args) if "data.negatives" in changed else args.output / "pairs.tsv",
        "data.text_a": "query",
        "data.text_b": "document",
        "max_seq_length": args.max_seq_length,
        "optimizer.learning_rate": 5e-5,
        "seed": seed,
    } | changed
    if arm in ORDERING or "data.negatives" in changed:
        fields["train_rows"] = args.mined
    if arm == "reranker":
        fields["max_seq_length"] = args.max_seq_length + 40  # the query is in the row
    given = (f"--config.{name}={value}" for name, value in fields.items() if value != "")
    print(
        bert_jax("finetune", f"--config=finetune/{config}", f"--workdir={workdir}", *given), file=sys.stderr
    )
    return workdir


def score(args: argparse.Namespace, checkpoint: Path | str, *more: str) -> dict[str, float]:
    """Returns the scores of a model, and of what orders the documents that it finds."""
    evaluate = ("evaluate", f"--model={checkpoint}", "--json")
    found = json.loads(bert_jax(*evaluate, f"--retrieval={args.output / 'beir'}", *more))["scores"]
    if args.similarity and not more:
        found |= json.loads(bert_jax(*evaluate, f"--similarity={args.similarity}"))["scores"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--input", required=True, help="glob of the corpus")
    parser.add_argument("--input_format", default="wikiextractor")
    parser.add_argument("--similarity", default="", help="table of pairs with scores")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--arms", default="pairs,negatives,reranker,late")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=6400)
    parser.add_argument("--mined", type=int, default=1600, help="pairs of the arms with hard negatives")
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--candidates", type=int, default=20, help="documents to order again")
    parser.add_argument("--max_seq_length", type=int, default=128)
    args = parser.parse_args()
    if not (args.output / "beir" / "qrels" / "test.tsv").exists():
        write_data(args)
    file = args.output / "figures.json"
    figures = json.loads(file.read_text()) if file.exists() else {}
    arms = args.arms.split(",")
    for arm, seed in [("as it is", 0), *((arm, seed) for seed in range(args.seeds) for arm in arms)]:
        of_arm = figures.setdefault(arm, {})
        if str(seed) in of_arm:
            continue
        if arm == "as it is":
            of_arm[str(seed)] = score(args, args.model)
        elif arm in ORDERING:
            run = train(args, arm, seed)
            order = (f"--rerank={run}", f"--candidates={args.candidates}")
            of_arm[str(seed)] = score(args, args.model, *order)
        else:
            of_arm[str(seed)] = score(args, train(args, arm, seed))
        file.write_text(json.dumps(figures, indent=1))
    measures = (*MEASURES, "spearman") if args.similarity else MEASURES
    print("| | " + " | ".join(measures) + " |\n|" + "---|" * (len(measures) + 1))
    for arm, runs in figures.items():
        cells = [_cell([run[name] for run in runs.values() if name in run]) for name in measures]
        print(f"| {arm} | " + " | ".join(cells) + " |")


def _cell(values: list[float]) -> str:
    if len(values) < 2:
        return "".join(f"{value:.4f}" for value in values)
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"


if __name__ == "__main__":
    main()
