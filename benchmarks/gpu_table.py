"""The parts of gpu.sh: each measures one thing in a process of its own; `all` runs them and prints one table.

    python benchmarks/gpu_table.py all --peer=PATH --seconds=600 --output=DIR
    python benchmarks/gpu_table.py matrix jax|torch [--size=8192]
    python benchmarks/gpu_table.py attention
    python benchmarks/gpu_table.py train SIZE BATCH LENGTH ROWS:DROPOUT:ATTENTION_DROPOUT...

A part prints its result as one line of JSON that starts with RESULT.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import subprocess
import sys
import time
import types
from pathlib import Path

HERE = Path(__file__).resolve().parent

# (size, rows a step, tokens a row) for 141 GB; less memory takes a half, a quarter, ...
RUNS = (("base", 256, 128), ("base", 64, 512), ("large", 128, 128), ("large", 32, 512))
SMALL_RUNS = (("tiny", 4, 32), ("tiny", 2, 64))
FULL_MEMORY_GIB = 130

# ROWS:DROPOUT:ATTENTION_DROPOUT and the peer's flags, by round, while the time lasts. The first variant does
# the peers' work and stands beside the strong one in every round; without attention dropout the fused kernel
# runs.
VARIANTS = ("padded:0.1:0.1", "packed:0.1:0.1", "packed:0.1:0.0")
STOCK, STRONG, STRONG_WITHOUT = ("--dropout=0.1",), ("--dropout=0.1", "--strong"), ("--dropout=0", "--strong")
ROUNDS = (
    (VARIANTS, (STOCK, STRONG)),
    ((VARIANTS[0], "padded:0.0:0.0"), (STRONG, STRONG_WITHOUT)),
    (VARIANTS[:1], (STRONG,)),
)


def emit(**result) -> None:
    print("RESULT " + json.dumps(result), flush=True)


def best_matrix_rate(product, size: int, repeats: int = 30) -> float:
    """FLOP/s of the best of `repeats` products of size x size matrices; `product` waits for its result."""
    for _ in range(3):
        product()
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        product()
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best


def matrix(args) -> None:
    """What the device reaches at all: bfloat16 products, several a call so that launching costs nothing."""
    inner = 10
    if args.framework == "jax":
        import jax
        import jax.numpy as jnp

        x = jnp.ones((args.size, args.size), jnp.bfloat16) / args.size
        product = jax.jit(lambda a, b: jax.lax.fori_loop(0, inner, lambda _, c: a @ c, b))
        rate = best_matrix_rate(lambda: product(x, x).block_until_ready(), args.size, args.repeats)
        device = jax.devices()[0].device_kind
    else:
        import torch

        on = "cuda" if torch.cuda.is_available() else "cpu"
        x = torch.full((args.size, args.size), 1 / args.size, dtype=torch.bfloat16, device=on)

        def product():
            y = x
            for _ in range(inner):
                y = x @ y
            if on == "cuda":
                torch.cuda.synchronize()

        rate = best_matrix_rate(product, args.size, args.repeats)
        device = torch.cuda.get_device_name() if on == "cuda" else "cpu"
    emit(framework=args.framework, size=args.size, flops_per_second=inner * rate, device=device)


def attention(args) -> None:
    """Fused attention beside the plain one, on packed rows: results and gradients."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from bert_jax import benchmark, pretraining
    from bert_jax.kernels.attention import attention as attend

    if jax.default_backend() != "gpu":
        emit(skipped=f"no GPU: jax runs on {jax.default_backend()}")
        return

    @functools.partial(jax.jit, static_argnums=0)
    def gradients(name, qkv, weights, ids):
        def loss(qkv):
            out = attend(*qkv, ids, implementation=name) * (ids > 0)[:, :, None, None].astype(qkv.dtype)
            return jnp.sum((out * weights).astype(jnp.float32)), out

        return jax.grad(loss, has_aux=True)(qkv)

    worst = {}
    for length in (128, 512):
        batch = benchmark.synthetic_batch("packed", 4, length, 30522)
        ids = pretraining.unpack({name: jnp.asarray(x) for name, x in batch.items()})["sequence_ids"]
        keys = jax.random.split(jax.random.key(0))
        qkv = jax.random.normal(keys[0], (3, 4, length, 12, 64), jnp.bfloat16)
        weights = jax.random.normal(keys[1], (4, length, 12, 64), jnp.bfloat16)
        for plain, fused in zip(
            *(gradients(name, qkv, weights, ids) for name in ("xla", "cudnn")), strict=True
        ):
            plain, fused = np.asarray(plain, np.float32), np.asarray(fused, np.float32)
            difference = float(np.abs(plain - fused).max() / np.abs(plain).max())
            worst[length] = max(worst.get(length, 0.0), difference)
    emit(largest_difference=worst, ok=all(value < 0.03 for value in worst.values()))


def train(args) -> None:
    """The pre-training step in the given variants, one after the other."""
    try:
        import google_crc32c  # noqa: F401
    except ImportError:  # checks records, of which none are read here
        sys.modules["google_crc32c"] = types.SimpleNamespace(value=None)
    import jax

    from bert_jax import benchmark, sharding
    from bert_jax.config import named
    from bert_jax.optimizer import make_optimizer

    settings = types.SimpleNamespace(
        name="adamw", schedule="reference", learning_rate=1e-4, warmup_steps=10, weight_decay=0.01,
        b1=0.9, b2=0.999, eps=1e-6, clip_norm=1.0,
    )  # fmt: skip
    optimizer, schedule = make_optimizer(settings, 1000)
    mesh = sharding.make_mesh(devices=jax.devices()[:1])
    for variant in args.variants:
        rows, dropout, attention_dropout = variant.split(":")
        model = named(
            args.model_size,
            dtype="float32" if jax.default_backend() == "cpu" else "bfloat16",
            hidden_dropout_prob=float(dropout),
            attention_probs_dropout_prob=float(attention_dropout),
        )
        batch = benchmark.synthetic_batch(rows, args.batch, args.length, model.vocab_size)
        task = benchmark.make_task(model, args.length)
        result = benchmark.time_train_step(task, optimizer, schedule, batch, mesh=mesh, steps=args.steps)
        emit(variant=variant, **result)


def peer_flops_per_row(size: str, length: int) -> float:
    """The model's FLOPs of one of the peer's rows, by the same formula as ours."""
    from bert_jax import flops
    from bert_jax.config import named

    predictions = 80 if length == 512 else max(1, round(length * 0.15))
    return flops.train_flops_per_row(named(size), length, predictions)


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
        text = self.run(title, [python, str(HERE / "gpu_table.py"), *arguments], limit)
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
    rates = {}
    for framework in ("jax", "torch"):
        python = sys.executable if framework == "jax" else args.peer_python
        for rate in session.results(
            f"matrix products in {framework}", ["matrix", framework, *shape], part, python
        ):
            rates[framework] = rate
    title = "attention, fused beside plain"
    (checked,) = session.results(title, ["attention"], part) or [{"skipped": "no result"}]

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
    text = table(rows, rates, checked)
    (args.output / "table.md").write_text(text + "\n")
    print("\n" + text)


def _halvings(memory_gib: float) -> int:
    count = 0
    while memory_gib < FULL_MEMORY_GIB * 0.5**count and count < 6:
        count += 1
    return count


def _our_row(model, batch, length, result):
    kind, dropout, attention_dropout = result["variant"].split(":")
    return {
        "key": (model, batch, length),
        "what": f"bert_jax, {kind}",
        "dropout": f"{float(dropout):g}, {float(attention_dropout):g}",
        "same_work": kind == "padded" and dropout == attention_dropout,
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
        "dropout": f"{dropout}, {dropout}",
        "same_work": True,
        "sequences": rate,
        "flops": {name: value * each for name, value in rate.items()},
    }


def table(rows: list[dict], rates: dict, checked: dict) -> str:
    """One markdown table; of a thing that was measured several times, the best best and the best median."""
    lines = [
        f"{rate['framework']}: bfloat16 products of {rate['size']} x {rate['size']} reach "
        f"{rate['flops_per_second'] / 1e12:.4g} TFLOP/s on {rate['device']}"
        for rate in rates.values()
    ]
    lines += [f"attention, fused beside plain: {json.dumps(checked)}", ""]
    ceiling = max((rate["flops_per_second"] for rate in rates.values()), default=float("nan"))
    merged: dict[tuple, dict] = {}
    for row in rows:
        known = merged.setdefault((tuple(row["key"]), row["what"], row["dropout"]), row)
        for figure in ("sequences", "flops"):
            known[figure] = {name: max(known[figure][name], row[figure][name]) for name in ("best", "median")}
    lines.append(
        "| model | rows x tokens | what | dropout: hidden, attention | sequences/s best (median) | TFLOP/s | "
        "of the matrix rate | x stock | x strong |"
    )
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for (key, what, dropout), row in merged.items():

        def times(peer, key=key, row=row, dropout=dropout):
            beside = dropout if row["same_work"] else "0.1, 0.1"
            other = merged.get((key, f"PyTorch, {peer}", beside))
            return f"{row['sequences']['best'] / other['sequences']['best']:.2f}" if other else ""

        best, median = row["sequences"]["best"], row["sequences"]["median"]
        flops = row["flops"]["best"]
        lines.append(
            f"| {key[0]} | {key[1]} x {key[2]} | {what} | {dropout} | {best:,.1f} ({median:,.1f}) | "
            f"{flops / 1e12:.3g} | {flops / ceiling:.1%} | {times('stock')} | {times('strong')} |"
        )
    lines += [
        "",
        "Padded: one sequence a row. Packed: rows filled with sequences of Wikipedia's lengths (half a row "
        "on average); its sequences/s stand beside a peer that pads each to a row. TFLOP/s are the model's, "
        "over whole rows, by formula.",
    ]
    return "\n".join(lines)


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    commands = parser.add_subparsers(dest="command", required=True)
    part = commands.add_parser("matrix")
    part.add_argument("framework", choices=["jax", "torch"])
    part.add_argument("--size", type=int, default=8192)
    part.add_argument("--repeats", type=int, default=30)
    commands.add_parser("attention")
    part = commands.add_parser("train")
    part.add_argument("model_size")
    part.add_argument("batch", type=int)
    part.add_argument("length", type=int)
    part.add_argument("variants", nargs="+")
    part.add_argument("--steps", type=int, default=10)
    part = commands.add_parser("all")
    part.add_argument("--peer", type=Path)
    part.add_argument("--peer_python", default=sys.executable)
    part.add_argument("--seconds", type=float, default=540)
    part.add_argument("--rounds", type=int, default=len(ROUNDS), help="of ROUNDS, while the time lasts")
    part.add_argument("--memory_gib", type=float, default=FULL_MEMORY_GIB)
    part.add_argument("--output", type=Path, default=Path("gpu-benchmark"))
    part.add_argument("--small", action="store_true", help="tiny shapes, to try the script on a CPU")
    args = parser.parse_args()
    {"matrix": matrix, "attention": attention, "train": train, "all": run_all}[args.command](args)


if __name__ == "__main__":
    main()
