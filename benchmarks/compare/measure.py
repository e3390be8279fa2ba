"""Code shared by the processes of all sides: arguments, timing, and passing results to the runner.

It imports only the standard library, because each side runs in a separate Python. A process prints each
result as a line of JSON after `PREFIX`, with these fields:

- `what`: the case, equal on all sides: `kind`, `model`, `batch`, `length` and the fields of a variant.
- `side`: the library, such as "bert_jax" or "PyTorch, compiled".
- `unit`: the unit of `best` and `median`: "s", or a rate such as "sequences/s", where higher is better.
- `flops`: model FLOPs per sequence; `memory_bytes` and `compile_seconds`, if known.

A process with --in_turn compiles and warms up, prints `READY`, and times its cases once for each line on its
standard input. It prints `DONE` after each such turn. The sides can thus alternate, and each compiles once.
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
    """Makes bert_jax importable without google_crc32c, which few machines with a GPU have.

    The package checksums records, and nothing that is timed or checked there reads records.
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
    """A case that a process times.

    Attributes:
        what: the case, as in the module docstring.
        unit: the unit of the rate.
        amount: the work of one call, in that unit times seconds.
        call: runs one step and waits for its result.
        fields: additional fields of the result.
    """

    what: Mapping[str, Any]
    unit: str
    amount: float
    call: Callable[[], object]
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def take_turns(args, side: str, cases: Sequence[Case], after: Callable[[], object] = lambda: None) -> None:
    """Times all cases and emits the results, once or, with --in_turn, as often as the runner requests.

    Args:
        args: arguments with `in_turn` and `steps`, the number of calls.
        side: the library that computes.
        cases: the cases to time.
        after: called after each turn, before another process computes.
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
    """Returns the field `what` of a result, from the arguments of a process."""
    return {"kind": kind, "model": args.model, "batch": args.batch, "length": args.length, **variant}


def add_parts(parts) -> None:
    """Adds the subcommands that all sides have to argparse subparsers."""
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
