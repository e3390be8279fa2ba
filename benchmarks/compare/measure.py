"""What the processes of all sides share: their arguments, timing, and how results are passed to the runner.

It imports the standard library alone, because each side runs in a Python of its own. A process prints each
result as a line of JSON after `PREFIX`, with these fields:

- `what`: the case, which is equal on all sides: `kind`, `model`, `batch`, `length` and those of a variant.
- `side`: who computed it, such as "bert_jax" or "PyTorch, compiled".
- `unit`: that of `best` and `median`: "sequences/s" or another rate, of which more is better, or "s".
- `flops`, model FLOPs for one sequence; `memory_bytes` and `compile_seconds`, where known.

A process with --in_turn compiles and warms up, prints `READY`, and times its cases once for each line of its
standard input; `DONE` is the end of such a turn. So the sides can alternate and compile once.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import statistics
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

PREFIX = "RESULT "
READY, DONE = "READY", "DONE"


def allow_missing_packages() -> None:
    """Lets bert_jax be imported without google_crc32c, which few machines with a GPU have.

    It checks records, which nothing reads that is timed or checked there.
    """
    if importlib.util.find_spec("google_crc32c") is None:
        sys.modules["google_crc32c"] = types.SimpleNamespace(value=None)  # type: ignore[assignment]


def emit(**result) -> None:
    print(PREFIX + json.dumps(result), flush=True)


def timed(call: Callable[[], object], repeats: int, warm_up: int = 2) -> list[float]:
    """Returns the seconds of each call after the warm-up; `call` waits for its result."""
    seconds = []
    for _ in range(warm_up + repeats):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return seconds[warm_up:]


@dataclasses.dataclass(frozen=True)
class Case:
    """What a process times.

    Attributes:
        what: see the module.
        unit: of the rate.
        amount: what a call processes, in that unit times seconds.
        call: makes one step and waits for it.
        fields: of the result, beside the rate.
    """

    what: Mapping[str, Any]
    unit: str
    amount: float
    call: Callable[[], object]
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def take_turns(args, side: str, cases: Sequence[Case], after: Callable[[], object] = lambda: None) -> None:
    """Times all cases, once or with --in_turn as often as the runner asks, and emits their results.

    Args:
        args: arguments with `in_turn` and `steps`, the number of calls.
        side: who computes.
        cases: what is timed.
        after: called after each turn, when others compute.
    """
    for case in cases:
        timed(case.call, 0)
    after()
    if args.in_turn:
        print(READY, flush=True)
    for _ in sys.stdin if args.in_turn else itertools.repeat(None, 1):
        for case in cases:
            seconds = timed(case.call, args.steps, warm_up=1)
            emit(what=case.what, side=side, unit=case.unit, **rates(case.amount, seconds), **case.fields)
        after()
        if args.in_turn:
            print(DONE, flush=True)


def rates(amount: float, seconds: list[float]) -> dict[str, float]:
    """Returns the best and the median rate of calls that process `amount` each."""
    return {"best": amount / min(seconds), "median": amount / statistics.median(seconds)}


def durations(seconds: list[float]) -> dict[str, float]:
    return {"best": min(seconds), "median": statistics.median(seconds)}


def variant(text: str) -> dict:
    """Returns the fields of ROWS:DROPOUT:ATTENTION_DROPOUT:DTYPE."""
    rows, dropout, attention_dropout, dtype = text.split(":")
    rates = {"dropout": float(dropout), "attention_dropout": float(attention_dropout)}
    return {"rows": rows, **rates, "dtype": dtype}


def case(kind: str, args, variant: Mapping = MappingProxyType({})) -> dict:
    """Returns the case `what` of a result, from the arguments of a process."""
    return {"kind": kind, "model": args.model, "batch": args.batch, "length": args.length, **variant}


def add_parts(parts) -> None:
    """Adds the arguments of the parts that all sides have to subparsers of argparse."""
    part = parts.add_parser("matrix")
    part.add_argument("--dtype", choices=["bfloat16", "float32"], default="float32")
    part.add_argument("--size", type=int, default=2048)
    part.add_argument("--steps", type=int, default=10)
    part.add_argument("--in_turn", action="store_true")
    for name in ("train", "finetune", "forward", "first_step", "checkpoint"):
        part = parts.add_parser(name)
        part.add_argument("model")
        part.add_argument("batch", type=int)
        part.add_argument("length", type=int)
        part.add_argument("variants", nargs="+", metavar="VARIANT")
        part.add_argument("--steps", type=int, default=10)
        part.add_argument("--in_turn", action="store_true", help="see measure.py")
        part.add_argument("--scratch", default=None, help="a directory for files that are deleted again")
        part.add_argument("--folder", help="what `ours.py prepare` wrote for this model")
