"""Estimates of each family's train step on TPUs that are not there, and of local beside global attention.

    python benchmarks/family_tpu.py OUTPUT [--only=WORD]

Needs libtpu (`pip install -e '.[estimate]'`). One compilation after another, minutes of a core each; the JSON
of each estimate stays in OUTPUT, and what is there already is not compiled again. Nothing is measured.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

_TOPOLOGY = "--topology=v5e:4x4"
_MODERN = ("--config=pretrain/modernbert:modernbert-base", "--config.batch_ramp=")
# One global and one local layer, with few words, so that the layers are most of the step.
_TWO = (
    *_MODERN,
    "--config.model.vocab_size=1024",
    "--config.model.num_hidden_layers=2",
    "--config.model.global_every=2",
)
_GLOBAL = ("--config.model.local_window=0", "--config.model.global_every=1")


def runs():
    """Name -> (arguments, tokens of a row, rows of the batch), with 8,192 tokens a chip."""
    families = {
        "BERT-base": ("--config=pretrain/base",),
        "RoBERTa-base": (
            "--config=pretrain/roberta:base",
            "--config.batch_ramp=",
            "--config.model.vocab_size=50265",
        ),
        "ALBERT-base": ("--config=pretrain/albert:base", "--config.model.vocab_size=30000"),
        "ELECTRA-base": ("--config=pretrain/electra:base",),
        "ModernBERT-base": (*_MODERN, "--config.model.vocab_size=50368"),
        "MosaicBERT-base": ("--config=pretrain/mosaicbert",),
        "NeoBERT": ("--config=pretrain/neobert",),
    }
    found = {name: (arguments, 512, 256) for name, arguments in families.items()}
    found["crammed-BERT"] = (("--config=pretrain/crammed_bert", "--config.batch_ramp="), 128, 1024)
    for length, rows in ((512, 256), (1024, 128), (8192, 16)):
        found[f"global and local layer, {length}"] = (_TWO, length, rows)
        found[f"two global layers, {length}"] = ((*_TWO, *_GLOBAL), length, rows)
    return found


def command(arguments, length, rows):
    own = (f"--seq_length={length}", f"--config.batch_size={rows}", "--json")
    return ["-m", "bert_jax", "estimate", *arguments, _TOPOLOGY, *own]


def print_table(found):
    columns = ["model", "rows a chip x tokens", "GiB a chip", "by cycles, ms", "kernels, ms"]
    columns += ["other, ms", "collectives, ms"]
    columns += ["step, ms", "MFU", "tokens/s a chip", "attention"]
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for name, result in found.items():
        cells = [name, f"{result['rows_per_chip']} x {result['rows']['length']}"]
        cells.append(f"{result['memory_bytes']['total'] / 2**30:.2f}")
        if result["fits"]:
            seconds = result["seconds"]
            times = ("compute", "kernels", "without_estimate", "collectives_waited_for", "step")
            cells += [f"{seconds[time] * 1e3:.1f}" for time in times]
            cells += [f"{result['mfu']:.1%}", f"{result['tokens_per_second'] / 16:,.0f}"]
            cells.append(result["model"]["attention"])
        else:
            cells += ["does not fit", *[""] * 7]
        print("| " + " | ".join(map(str, cells)) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, run in runs().items():
        if args.only not in name:
            continue
        path = args.output / f"{name.replace(', ', '-').replace(' ', '-')}.json"
        if not path.exists():
            print("bert-jax", shlex.join(command(*run)[2:]), file=sys.stderr, flush=True)
            done = subprocess.run(
                [sys.executable, *command(*run)], check=True, stdout=subprocess.PIPE, text=True
            )
            path.write_text(done.stdout)
        found[name] = json.loads(path.read_text())
    print_table(found)


if __name__ == "__main__":
    main()
