"""Estimates the recipes of six papers on three TPU slices and 8 H100, for the table in docs/costs.md.

    python benchmarks/estimates.py OUTPUT [--only=WORDS]

TPUs need libtpu (`pip install -e '.[estimate]'`), and H100 (`--only=h100:8`) jax's plugin for GPUs
(`.[estimate-gpu]`); rows of H100 are lower bounds by the roofline. For TPUs, each recipe is compiled with two
small numbers of layers, in minutes of a core rather than half an hour. Step, memory and FLOPs grow by the
same amount for each layer, and are extrapolated. For BERT-Base with rows of 512 on v5e:4x4 this gives 84.2 ms
and 6.23 GiB (compiled whole: 82.8 and 6.23), on v5p:4x4x4 38.5 ms and 5.23 GiB (38.6 and 5.24). OUTPUT keeps
the JSON of each estimate, which is not computed again.
"""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

TOPOLOGIES = ("v5e:4x4", "v5p:4x4x4", "v6e:8x8", "h100:8")
_BERT = ("--config.model.attention_probs_dropout_prob=0",)
_ELECTRA, _MODERNBERT = (*_BERT, "--config.model.vocab_size=30522"), ("--config.batch_ramp=",)
_DEBERTA = (*_BERT, "--config.model.vocab_size=128100")
_ROBERTA = (*_BERT, *_MODERNBERT, "--config.model.vocab_size=50265")
# {name: (config, row length, rows a chip, layers to compile, layers, rows in the recipe, flags)}
RECIPES = {
    "BERT-Base, 128": ("base", 128, 128, (2, 4), 12, 256 * 900_000, _BERT),
    "BERT-Base, 512": ("base", 512, 32, (2, 4), 12, 256 * 100_000, _BERT),
    "BERT-Large, 128": ("large", 128, 64, (2, 4), 24, 256 * 900_000, _BERT),
    "BERT-Large, 512": ("large", 512, 16, (2, 4), 24, 256 * 100_000, _BERT),
    "RoBERTa-base, 512": ("roberta", 512, 32, (2, 4), 12, 8192 * 500_000, _ROBERTA),
    "ELECTRA-base, 512": ("electra:base", 512, 32, (2, 4), 12, 256 * 766_000, _ELECTRA),
    "ModernBERT-base, 1,024": ("modernbert", 1024, 16, (4, 7), 22, 1_719_000_000_000 // 1024, _MODERNBERT),
    "ModernBERT-base, 8,192": ("modernbert", 8192, 2, (4, 7), 22, 300_000_000_000 // 8192, _MODERNBERT),
    "DeBERTa-v3-base, 512": ("deberta_v3:base", 512, 32, (4, 6), 12, 8192 * 500_000, _DEBERTA),
}


def estimate(path, config, length, rows, topology, layers, flags):
    """Returns what `bert-jax estimate` prints for this number of layers, if possible from the file."""
    if not path.exists():
        chips = math.prod(map(int, topology.partition(":")[2].split("x")))
        command = [sys.executable, "-m", "bert_jax", "estimate", f"--config=pretrain/{config}", "--json"]
        command += [f"--topology={topology}", f"--seq_length={length}", f"--config.batch_size={rows * chips}"]
        command += [f"--config.model.num_hidden_layers={layers}", *flags]
        if config.startswith("deberta"):
            command.append(f"--config.replaced_tokens.generator_layers={layers // 2}")  # at least two
        path.write_text(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return json.loads(path.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", default="", help="only rows with this in their name or topology")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    print(
        "| recipe, row length | slice | rows per chip | step | MFU | GiB per chip | chip-hours |", flush=True
    )
    print("|---|---|---|---|---|---|---|")
    for name, (config, length, rows, depths, depth, total, flags) in RECIPES.items():
        for topology in TOPOLOGIES:
            if args.only not in f"{name} {topology}":
                continue
            slug = f"{config}-{length}-{topology}".replace(":", "-")
            first, second = (depth, depth) if topology == "h100:8" else depths
            paths = [args.output / f"{slug}-{layers}.json" for layers in (first, second)]
            pair = [
                estimate(path, config, length, rows, topology, layers, flags)
                for path, layers in zip(paths, (first, second), strict=True)
            ]
            print(_row(name, pair, (depth - first) / max(second - first, 1), total), flush=True)


def _row(name, pair, ratio, total):
    """Returns a row of the table; `ratio` says how far the whole depth lies beyond the two of the pair."""

    def whole(get):
        first, second = map(get, pair)
        return first + ratio * (second - first)

    first = pair[0]
    chips, rows = first["topology"]["chips"], first["rows_per_chip"]
    if bound := "roofline_seconds" in first:
        step, peak = max(first["roofline_seconds"].values()), chips * first["peak_flops"]
    else:
        step = whole(lambda one: one["seconds"]["step"])
        peak = first["flops"]["model"] / first["seconds"]["step"] / first["mfu"]
    mfu = whole(lambda one: one["flops"]["model"]) / step / peak
    memory = whole(lambda one: one["memory_bytes"]["total"]) / 2**30
    hours = total / (rows * chips) * step / 3600 * chips
    slice_ = first["topology"]["name"]
    least, most = ("≥ ", "≤ ") if bound else ("", "")
    time, fraction = f"{least}{1e3 * step:.1f} ms", f"{most}{mfu:.1%}"
    return f"| {name} | {slice_} | {rows} | {time} | {fraction} | {memory:.2f} | {least}{hours:,.0f} |"


if __name__ == "__main__":
    main()
