"""Tables of estimates for TPUs that are not there: Base and Large on several slices, and weak scaling.

    python benchmarks/estimates.py OUTPUT [--only=WORD]

Needs libtpu (`pip install -e '.[estimate]'`). One compilation after another, some minutes of a core each; the
JSON of each estimate stays in OUTPUT, and what is there already is not compiled again. OUTPUT/scaling.png is
the plot. Nothing is measured.
"""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

_NO_ATTENTION_DROPOUT = ("--config.model.attention_probs_dropout_prob=0",)
_TOPOLOGIES = ("v5e:4x4", "v5e:16x16", "v4:8x8x8", "v5p:8x8x4", "v6e:16x16")
_MODELS = {"base-128": ("base", 128, 64), "base-512": ("base", 512, 16), "large-512": ("large", 512, 8)}
# (topology, slices), 16 to 1,024 chips
_SCALING = {
    "v5e": (("v5e:4x4", 1), ("v5e:8x8", 1), ("v5e:16x16", 1), ("v5e:16x16", 4)),
    "v4": (("v4:4x2x2", 1), ("v4:4x4x4", 1), ("v4:8x8x4", 1), ("v4:8x8x8", 1), ("v4:8x8x16", 1)),
}


def runs():
    """Name -> (config, length, rows a chip, topology, slices, further flags)."""
    found = {}
    for model, (config, length, rows) in _MODELS.items():
        for topology in _TOPOLOGIES:
            found[f"{model}-{_slug(topology)}"] = (config, length, rows, topology, 1, _NO_ATTENTION_DROPOUT)
    # Scanned, which is compiled sooner: the search for the largest batch compiles several.
    too_large = (*_NO_ATTENTION_DROPOUT, "--config.model.scan_unroll=1")
    found["large-512-too-large-v5e-4x4"] = ("large", 512, 64, "v5e:4x4", 1, too_large)
    for sizes in _SCALING.values():
        for topology, slices in sizes:
            name = f"scaling-{_slug(topology)}" + (f"-{slices}" if slices > 1 else "")
            found[name] = ("base", 512, 16, topology, slices, _NO_ATTENTION_DROPOUT)
    return found


def _slug(topology):
    return topology.replace(":", "-")


def _chips(topology, slices):
    return math.prod(map(int, topology.partition(":")[2].split("x"))) * slices


def estimate(folder, name, config, length, rows, topology, slices, flags):
    path = folder / f"{name}.json"
    if path.exists():
        return
    command = [sys.executable, "-m", "bert_jax", "estimate", f"--config=configs/pretrain/{config}.py"]
    command += [f"--seq_length={length}", f"--topology={topology}", f"--slices={slices}", "--json"]
    command += [f"--config.batch_size={rows * _chips(topology, slices)}", *flags]
    # The same program, and so the same estimate, as a run of the other table.
    same = [other for other, run in runs().items() if run == (config, length, rows, topology, slices, flags)]
    known = next((folder / f"{other}.json" for other in same if (folder / f"{other}.json").exists()), None)
    print(name, flush=True)
    text = (
        known.read_text()
        if known
        else subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    )
    path.write_text(text)


def print_table(found):
    columns = ["estimate", "chips", "rows a chip", "GiB a chip", "by cycles, ms", "kernels, ms", "other, ms"]
    columns += ["collectives, ms", "step, ms", "MFU", "sequences/s"]
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for name, result in found.items():
        cells = [name, f"{result['topology']['chips']:,}", result["rows_per_chip"]]
        cells.append(f"{result['memory_bytes']['total'] / 2**30:.2f}")
        if result["fits"]:
            seconds = result["seconds"]
            keys = ("compute", "kernels", "without_estimate", "collectives_waited_for", "step")
            cells += [f"{1e3 * seconds[key]:.1f}" for key in keys]
            cells += [f"{result['mfu']:.1%}", f"{result['sequences_per_second']:,.0f}"]
        else:
            cells += [f"does not fit; {result['largest_batch']['rows_per_chip']} rows a chip do", *[""] * 6]
        print("| " + " | ".join(map(str, cells)) + " |")


def plot_scaling(path, found):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for chip, sizes in _SCALING.items():
        of_chip = [result for result in found.values() if result["topology"]["name"].startswith(f"{chip}:")]
        if len(of_chip) < len(sizes):
            continue
        of_chip.sort(key=lambda result: result["topology"]["chips"])
        shares = [100 * _waiting(result) for result in of_chip]
        several = [f", {n} slices at {_chips(name, n):,}" for name, n in sizes if n > 1]
        chips = [result["topology"]["chips"] for result in of_chip]
        axes.plot(chips, shares, marker="o", label=chip + "".join(several))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks := [16, 64, 256, 1024], [f"{tick:,}" for tick in ticks])
    axes.set(xlabel="chips", ylabel="share of the step that waits for collectives, %", ylim=(0, None))
    axes.set_title("BERT-Base, 16 rows of 512 a chip: estimates")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def _waiting(result):
    return result["seconds"]["collectives_waited_for"] / result["seconds"]["step"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", default="", help="those with this in their name")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    for name, run in runs().items():
        if args.only in name:
            estimate(args.output, name, *run)
    found = {
        name: json.loads((args.output / f"{name}.json").read_text())
        for name in runs()
        if (args.output / f"{name}.json").exists()
    }
    print_table({name: result for name, result in found.items() if not name.startswith("scaling")})
    scaling = {name: result for name, result in found.items() if name.startswith("scaling")}
    if scaling:
        print_table(scaling)
        plot_scaling(args.output / "scaling.png", scaling)


if __name__ == "__main__":
    main()
