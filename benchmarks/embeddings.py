"""Trains sentence embeddings with bert_jax and with sentence-transformers, in turn, on the same pairs.

    python benchmarks/embeddings.py --model=DIR --input='wiki/*' --similarity=glue/STS-B/dev.tsv \
        --peer_python=PYTHON --output=embeddings
    python benchmarks/embeddings.py --model=DIR --scored=glue/STS-B/train.tsv ...

The pairs are neighboring sentences of a corpus, drawn by a fixed seed, with in-batch negatives; with
--scored, those of a table with the columns sentence1, sentence2 and score, with CoSENT. DIR is a Hugging Face
folder with the files of sentence-transformers. Both have the same batches in number and size, rates, lengths
and optimizer. Prints a markdown table: Spearman's correlation on --similarity before and after, by seed, and
the pairs per second of training without the first steps. What is in OUTPUT is not done again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

import paragraphs

from bert_jax.tasks import writers
from bert_jax.training.metrics.metrics_writer import read_metrics

HERE = Path(__file__).parent
WORDS = range(5, 41)  # of a sentence
NAMES = ("sentence-transformers", "bert_jax")


def write_pairs(args: argparse.Namespace, path: Path) -> None:
    """Writes neighboring sentences of the same paragraph, at most one pair of each paragraph."""
    rng, found = random.Random(0), []
    for split in paragraphs.read(args.input, args.input_format):
        pairs = itertools.pairwise(split)
        if near := [pair for pair in pairs if all(len(text.split()) in WORDS for text in pair)]:
            found.append(rng.choice(near))
    writers.write_table(str(path), ("first", "second"), rng.sample(found, args.pairs))


def ours(args: argparse.Namespace, pairs: Path, seed: int) -> dict:
    """Returns the rate and the score of a run of `bert-jax finetune`."""
    workdir = args.output / f"run-{seed}"
    model = json.loads((Path(args.model) / "config.json").read_text())
    columns = ("sentence1", "sentence2") if args.scored else ("first", "second")
    fields = {
        "init_from": args.model,
        "data.train": pairs,
        "data.text_a": columns[0],
        "data.text_b": columns[1],
        "data.eval": args.similarity,
        "data.eval_columns": "sentence1,sentence2,score",
        "batch_size": args.batch_size,
        "epochs": args.epochs,
        "max_seq_length": args.max_seq_length,
        "optimizer.learning_rate": args.learning_rate,
        "seed": seed,
        "eval.every": 10**6,
        "log_every": 10,
        # Those of the folder, which sentence-transformers has; ModernBERT's name their own, which are 0 here.
        "model.hidden_dropout_prob": model.get("hidden_dropout_prob", 0),
        "model.attention_probs_dropout_prob": model.get("attention_probs_dropout_prob", 0),
    }
    if args.scored:
        fields |= {"loss": "cosent", "data.label": "score"}
    command = [sys.executable, "-m", "bert_jax", "finetune", "--config=finetune/embedding"]
    command += [f"--workdir={workdir}", *(f"--config.{name}={value}" for name, value in fields.items())]
    subprocess.run(command, check=True, stdout=sys.stderr, env=os.environ | {"JAX_PLATFORMS": "cpu"})
    rows = read_metrics(workdir, "train")[1:]  # the first line has the compilation
    rate = args.batch_size * statistics.harmonic_mean([row["steps_per_second"] for row in rows])
    scores = json.loads((workdir / "best.json").read_text())["scores"]
    return {"pairs_per_second": rate, "after": scores["spearman"]}


def peer(args: argparse.Namespace, pairs: Path, seed: int) -> dict:
    """Returns the rates and scores of a run of sentence-transformers."""
    columns = "sentence1,sentence2,score" if args.scored else "first,second"
    given = {
        "model": args.model,
        "train": pairs,
        "similarity": args.similarity,
        "columns": columns,
        "epochs": args.epochs,
        "batch_size": args.batch_size,
        "learning_rate": args.learning_rate,
        "max_seq_length": args.max_seq_length,
        "seed": seed,
    }
    command = [args.peer_python, str(HERE / "peer_embeddings.py")]
    command += [f"--{name}={value}" for name, value in given.items()]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--input", default="", help="glob of the corpus")
    parser.add_argument("--input_format", default="wikiextractor")
    parser.add_argument("--scored", default="", help="table of pairs with scores")
    parser.add_argument("--similarity", required=True, help="table of pairs with scores to test on")
    parser.add_argument("--peer_python", required=True, help="a Python with sentence-transformers")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=6400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--max_seq_length", type=int, default=64)
    args = parser.parse_args()
    if bool(args.input) == bool(args.scored):
        parser.error("give either --input or --scored")
    args.output.mkdir(parents=True, exist_ok=True)
    pairs = Path(args.scored) if args.scored else args.output / "pairs.tsv"
    if not pairs.exists():
        write_pairs(args, pairs)
    file = args.output / "figures.json"
    figures = json.loads(file.read_text()) if file.exists() else {name: {} for name in NAMES}
    for seed in range(args.seeds):
        for name, run in zip(NAMES, (peer, ours), strict=True):
            if str(seed) not in figures[name]:
                figures[name][str(seed)] = run(args, pairs, seed)
                file.write_text(json.dumps(figures, indent=1))
    print(
        "| | Spearman before | after, by seed | mean | pairs/s of training, by seed |\n|---|---|---|---|---|"
    )
    before = figures[NAMES[0]]["0"]["before"]
    for name, runs in figures.items():
        after = [run["after"] for run in runs.values()]
        rates = ", ".join(f"{run['pairs_per_second']:.1f}" for run in runs.values())
        spread = f" ± {statistics.stdev(after):.4f}" if len(after) > 1 else ""
        listed = ", ".join(f"{score:.4f}" for score in after)
        print(f"| {name} | {before:.4f} | {listed} | {statistics.mean(after):.4f}{spread} | {rates} |")
    ratios = [
        figures[NAMES[1]][seed]["pairs_per_second"] / run["pairs_per_second"]
        for seed, run in figures[NAMES[0]].items()
    ]
    print(
        "\nRun by run, bert_jax trains " + ", ".join(f"{ratio:.2f}" for ratio in ratios) + " times as fast."
    )


if __name__ == "__main__":
    main()
