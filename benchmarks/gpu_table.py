"""Runs the parts of gpu_parts.py and a peer within the time there is, and prints one table.

python benchmarks/gpu_table.py --peer=PATH --seconds=600 --output=DIR
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent

# (size, rows a step, tokens a row) for 141 GB; less memory takes a half, a quarter, ... The largest first, as
# the time may be up before the last.
RUNS = (("large", 32, 512), ("large", 128, 128), ("base", 64, 512), ("base", 256, 128))
SMALL_RUNS = (("tiny", 4, 32), ("tiny", 2, 64))
FULL_MEMORY_GIB = 130

# Variants as gpu_parts.py takes them and the peer's flags, by round, while the time lasts. The first variant
# does the peers' work and stands beside the strong one in every round; without attention dropout the fused
# kernel runs.
SAME_WORK, FUSED = "padded:0.1:0.1", "packed:0.1:0.0"
STOCK, STRONG, STRONG_WITHOUT = ("--dropout=0.1",), ("--dropout=0.1", "--strong"), ("--dropout=0", "--strong")
ROUNDS = (
    ((SAME_WORK, FUSED), (STRONG,)),
    ((SAME_WORK, "packed:0.1:0.1", "padded:0.0:0.0"), (STRONG_WITHOUT, STOCK)),
    ((f"{FUSED}:bfloat16:scan", f"{FUSED}:float32", SAME_WORK), (STRONG,)),
)


def peer_flops_per_row(size: str, length: int) -> float:
    """The model's FLOPs of one of the peer's rows, by the same formula as ours."""
    from bert_jax.models.sizes import named
    from bert_jax.runs import benchmark
    from bert_jax.training.metrics import flops

    predictions = 80 if length == 512 else max(1, round(length * 0.15))
    return flops.RowFlops.of(benchmark.make_task(named(size), length))(length, predictions)


class Session:
    """Runs parts within the time that is left and keeps what they print."""

    def __init__(self, seconds: float, output: Path):
        self.end = time.monotonic() + seconds
        self.output = output
        self.log = open(output / "log.txt", "a", encoding="utf-8")

    def run(self, title: str, command: list[str], limit: float) -> str:
        """What it prints, also when it fails or takes too long; "" when there is no time left for it."""
        left = self.end - time.monotonic()
        if left < min(limit, 20):
            print(f"- {title}: left out, the time is up", flush=True)
            return ""
        began = time.monotonic()
        self.log.write(f"\n$ {' '.join(command)}\n")
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=min(limit, left),
                stdin=subprocess.DEVNULL,
            )
            text, state = done.stdout, "done" if done.returncode == 0 else f"failed ({_reason(done.stdout)})"
        except subprocess.TimeoutExpired as error:
            text = error.stdout or ""
            text = text if isinstance(text, str) else text.decode(errors="replace")
            state = f"stopped after {min(limit, left):.0f} s"
        self.log.write(text)
        self.log.flush()
        print(f"- {title}: {state}, {time.monotonic() - began:.0f} s", flush=True)
        return text

    def results(
        self, title: str, arguments: list[str], limit: float, python: str = sys.executable
    ) -> list[dict]:
        text = self.run(title, [python, str(HERE / "gpu_parts.py"), *arguments], limit)
        lines = [line for line in text.splitlines() if line.startswith("RESULT ")]
        return [json.loads(line.removeprefix("RESULT ")) for line in lines]


def _reason(text: str) -> str:
    for pattern in (r".*RESOURCE_EXHAUSTED.*", r".*OutOfMemoryError.*", r".*Error.*"):
        if found := re.findall(pattern, text):
            return found[-1].strip()[:120]
    return (text.strip().splitlines() or ["no output"])[-1][:120]


def run_all(args) -> None:
    args.output.mkdir(parents=True, exist_ok=True)
    session = Session(args.seconds, args.output)
    part = args.seconds / 10
    shape = ["--size=256", "--repeats=2"] if args.small else []
    rates = []
    for framework, dtype in (("jax", "bfloat16"), ("jax", "float32"), ("torch", "bfloat16")):
        python = sys.executable if framework == "jax" else args.peer_python
        command = ["matrix", framework, f"--dtype={dtype}", *shape]
        rates += session.results(f"{dtype} products in {framework}", command, part, python)
    title = "attention, fused beside plain"
    (checked,) = session.results(title, ["attention"], part) or [{"skipped": "no result"}]
    small = ["--small"] if args.small else []
    gradients = session.results("gradients beside the CPU's", ["gradients", *small], part)
    shape = ["tiny", "--batch=4", "--length=32", "--steps=2"] if args.small else ["base"]
    tasks = session.results("fine-tuning and inference", ["tasks", *shape], 1.5 * part)

    halvings = 0 if args.small else _halvings(args.memory_gib)
    steps = "2" if args.small else "10"
    rows = []
    for variants, peer_flags in ROUNDS[: args.rounds]:
        for model, batch, length in SMALL_RUNS if args.small else RUNS:
            batch = max(1, batch >> halvings)
            name = f"{model}, {batch} rows of {length}"
            arguments = ["train", model, str(batch), str(length), *variants, f"--steps={steps}"]
            for result in session.results(f"bert_jax {name}", arguments, 2 * part):
                rows.append(_our_row(model, batch, length, result))
            for flags in peer_flags if args.peer else ():
                command = [args.peer_python, str(args.peer), model, str(batch), str(length), *flags]
                text = session.run(
                    f"peer {name} {' '.join(flags)}", [*command, f"--steps={steps}"], 1.5 * part
                )
                if found := re.search(r"best ([\d.]+) seq/s, median ([\d.]+)", text):
                    rows.append(_peer_row(model, batch, length, flags, found))
            (args.output / "rows.json").write_text(json.dumps(rows, indent=1))
    text = table(rows, rates, checked, gradients, tasks)
    (args.output / "table.md").write_text(text + "\n")
    print("\n" + text)


def _halvings(memory_gib: float) -> int:
    count = 0
    while memory_gib < FULL_MEMORY_GIB * 0.5**count and count < 6:
        count += 1
    return count


def _our_row(model, batch, length, result):
    kind, dropout, attention_dropout, *rest = result["variant"].split(":")
    scan = ", scan" if "scan" in rest else ""
    return {
        "key": (model, batch, length),
        "what": f"bert_jax, {kind}{scan}, {result['dtype']}",
        "dtype": result["dtype"],
        "dropout": f"{float(dropout):g}, {float(attention_dropout):g}",
        "same_work": kind == "padded" and dropout == attention_dropout,
        "compile_seconds": result["compile_seconds"],
        "memory": {"planned": result["memory_bytes"], "peak": result["peak_bytes"]},
        "sequences": result["sequences_per_second"],
        "flops": result["model_flops_per_second"],
    }


def _peer_row(model, batch, length, flags, found):
    dropout = flags[0].partition("=")[2]
    rate = {"best": float(found[1]), "median": float(found[2])}
    each = peer_flops_per_row(model, length)
    return {
        "key": (model, batch, length),
        "what": f"PyTorch, {'strong' if '--strong' in flags else 'stock'}",
        "dtype": "bfloat16",
        "dropout": f"{dropout}, {dropout}",
        "same_work": True,
        "sequences": rate,
        "flops": {name: value * each for name, value in rate.items()},
    }


def table(
    rows: list[dict], rates: list[dict], checked: dict, gradients: list[dict], tasks: list[dict]
) -> str:
    """In markdown; of a thing that was measured several times, the best best and the best median.

    Args:
        rows: as `_our_row` and `_peer_row` make them.
        rates, checked, gradients, tasks: results of gpu_parts.py: matrix, attention, gradients, tasks.
    """
    lines = [
        f"{rate['framework']}: {rate['dtype']} products of random {rate['size']} x {rate['size']} reach "
        f"{rate['flops_per_second'] / 1e12:.4g} TFLOP/s on {rate['device']}"
        for rate in rates
    ]
    lines += [f"attention, fused beside plain: {json.dumps(checked)}", ""]
    tables = (_train_table(rows, rates), _task_table(tasks), _gradient_table(gradients))
    return "\n".join([*lines, *(line for part in tables for line in (*part, ""))]).strip()


def _train_table(rows: list[dict], rates: list[dict]) -> list[str]:
    ceilings = {"bfloat16": [], "float32": []}
    for rate in rates:
        ceilings[rate["dtype"]].append(rate["flops_per_second"])
    ceilings = {dtype: max(found, default=float("nan")) for dtype, found in ceilings.items()}
    merged: dict[tuple, dict] = {}
    for row in rows:
        known = merged.setdefault((tuple(row["key"]), row["what"], row["dropout"]), row)
        for figure in ("sequences", "flops"):
            known[figure] = {name: max(known[figure][name], row[figure][name]) for name in ("best", "median")}
    lines = [
        "| model | rows x tokens | what | dropout: hidden, attention | sequences/s best (median) | TFLOP/s | "
        "of the matrix rate | x stock | x strong | memory planned, peak (GiB) | compiled in |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (key, what, dropout), row in sorted(merged.items(), key=lambda entry: entry[0][0], reverse=True):

        def times(peer, key=key, row=row, dropout=dropout):
            beside = dropout if row["same_work"] else "0.1, 0.1"
            other = merged.get((key, f"PyTorch, {peer}", beside))
            return f"{row['sequences']['best'] / other['sequences']['best']:.2f}" if other else ""

        best, median = row["sequences"]["best"], row["sequences"]["median"]
        flops = row["flops"]["best"]
        memory = row.get("memory", {})
        compiled = f"{row['compile_seconds']:.0f} s" if "compile_seconds" in row else ""
        lines.append(
            f"| {key[0]} | {key[1]} x {key[2]} | {what} | {dropout} | {best:,.1f} ({median:,.1f}) | "
            f"{flops / 1e12:.3g} | {flops / ceilings[row['dtype']]:.1%} | {times('stock')} | "
            f"{times('strong')} | {', '.join(map(_gib, memory.values()))} | {compiled} |"
        )
    return [
        *lines,
        "",
        "Padded: one sequence a row. Packed: rows filled with sequences of Wikipedia's lengths (half a row "
        "on average); its sequences/s stand beside a peer that pads each to a row. TFLOP/s are the model's, "
        "over whole rows, by formula. Memory: what the compiler plans, and what was allocated at most, where "
        "that is known of this variant alone.",
    ]


def _task_table(tasks: list[dict]) -> list[str]:
    """Of gpu_parts.py tasks."""
    lines = [
        "| what | model | texts x tokens | dtype | texts/s best (median) | compiled in | peak (GiB) |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in tasks:
        rate = one["texts_per_second"]
        lines.append(
            f"| {one['what']} | {one['model']} | {one['rows']} x {one['length']} | {one['dtype']} | "
            f"{rate['best']:,.1f} ({rate['median']:,.1f}) | {one['compile_seconds']:.0f} s | "
            f"{_gib(one['peak_bytes'])} |"
        )
    return lines


def _gradient_table(gradients: list[dict]) -> list[str]:
    """Of gpu_parts.py gradients."""
    lines = [
        "| beside float32 on the CPU | tokens a row | loss | on the CPU | gradient apart | |",
        "|---|---|---|---|---|---|",
    ]
    for one in gradients:
        lines.append(
            f"| {one['dtype']}, precision {one['precision']}, {one['device']} | {one['length']} | "
            f"{one['loss']:.5f} | {one['loss_on_cpu']:.5f} | {one['gradient_apart']:.1e} | "
            f"{'ok' if one['ok'] else 'WRONG'} |"
        )
    return lines


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**30:.1f}"


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--peer_python", default=sys.executable)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--rounds", type=int, default=len(ROUNDS), help="of ROUNDS, while the time lasts")
    parser.add_argument("--memory_gib", type=float, default=FULL_MEMORY_GIB)
    parser.add_argument("--output", type=Path, default=Path("gpu-benchmark"))
    parser.add_argument("--small", action="store_true", help="tiny shapes, to try the script on a CPU")
    run_all(parser.parse_args())


if __name__ == "__main__":
    main()
