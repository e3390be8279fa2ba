"""Compares the speed of bert_jax, PyTorch and ONNX Runtime on this machine; writes table.md and table.png.

    python benchmarks/compare --peer_python=PYTHON --models=mini,base --kinds=train,forward --output=DIR

Without --peer_python it measures only bert_jax. Running it again with the same output adds rounds. The
processes of a case alternate and keep running, so each compiles only once. benchmarks/gpu.sh runs it on GPUs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
from pathlib import Path

import plan
import tables
import turns


def _list(text: str) -> list[str]:
    return [one for one in text.split(",") if one]


def _variants(args) -> list[str]:
    """Returns the variants that the flags select, as ROWS:DROPOUT:ATTENTION_DROPOUT:DTYPE."""
    if args.variants:
        return _list(args.variants)
    return [
        f"{rows}:{dropout}:{dropout}:{dtype}"
        for dtype in _list(args.dtypes)
        for dropout in _list(args.dropout)
        for rows in _list(args.rows)
    ]


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("compare", description=__doc__, formatter_class=layout)
    add = parser.add_argument
    add("--output", type=Path, required=True)
    add("--peer_python", default="", help="a Python with torch and transformers, and onnxruntime on a CPU")
    add(
        "--kinds", default="", help=f"default: all of {','.join(plan.KINDS)}, the last if there is a --corpus"
    )
    add("--models", default="mini,base", help="sizes or pre-training configs; default: %(default)s")
    add("--lengths", default="128,512", help="tokens a row; default: %(default)s")
    add("--rows", default="padded,packed", help="full, padded, packed; default: %(default)s")
    add("--dropout", default="0.1,0.0", help="default: %(default)s")
    add("--dtypes", default="float32", help="float32, bfloat16; default: %(default)s")
    add(
        "--variants",
        default="",
        help="ROWS:DROPOUT:ATTENTION_DROPOUT:DTYPE,... in place of the three flags above",
    )
    add("--rounds", type=int, default=3, help="turns of each side; default: %(default)s")
    add("--batch", type=int, default=0, help="rows a step; default: by model, length and device")
    add("--steps", type=int, default=10, help="timed steps of a turn; default: %(default)s")
    add("--stock", action="store_true", help="PyTorch as transformers' documentation shows it, too")
    add("--memory_gib", type=float, default=0.0, help="of the GPU; 0 on a CPU")
    add("--seconds", type=float, default=1e9, help="after which nothing more is started")
    add("--patience", type=float, default=60.0, help="seconds to wait for other processes before each turn")
    add("--corpus", nargs=3, metavar=("FILES", "FORMAT", "VOCAB"), help="text for records")
    add("--small", action="store_true", help="tiny shapes, to try it out")
    args = parser.parse_args()
    kinds = _list(args.kinds) or [kind for kind in plan.KINDS if kind != "records" or args.corpus]
    variants = _variants(args)
    if unknown := set(kinds) - set(plan.KINDS):
        parser.error(f"--kinds: {', '.join(sorted(unknown))}; expected {', '.join(plan.KINDS)}")
    if ("records" in kinds) != bool(args.corpus):
        parser.error("--kinds=records and --corpus belong together; give both or neither")
    if {"finetune", "first_step", "checkpoint"} & set(kinds) and all(
        one.startswith("packed") for one in variants
    ):
        parser.error(
            "packed rows are for --kinds=train alone; add padded or full to --rows, or choose --kinds"
        )
    output = args.output.resolve()
    made = plan.Plan(
        kinds=kinds,
        models=["tiny"] if args.small else _list(args.models),
        lengths=[32] if args.small else [int(one) for one in _list(args.lengths)],
        variants=variants,
        batch=4 if args.small else args.batch,
        steps=2 if args.small else args.steps,
        memory_gib=args.memory_gib,
        peer_python=args.peer_python,
        stock=args.stock,
        output=output,
        corpus=tuple(args.corpus) if args.corpus else None,
        small=args.small,
    )
    session = turns.Session(args.seconds, output, args.patience)
    kept = output / "results.jsonl"
    results = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    first = 1 + max((one["round"] for one in results), default=-1)
    session.run(list(made.preparations()), 1)
    for turns_of_case in made.groups():
        results += session.run(turns_of_case, args.rounds, first)
        if results:
            (output / "table.md").write_text(tables.table(results) + "\n")
            if importlib.util.find_spec("matplotlib"):
                title = f"bert_jax on {os.cpu_count()} cores" if not args.memory_gib else "bert_jax on a GPU"
                tables.picture(results, output / "table.png", title)
    print(f"{platform.platform()}, {os.cpu_count()} processors\n", file=sys.stderr)
    print((output / "table.md").read_text() if results else "nothing was measured")


if __name__ == "__main__":
    main()
