"""Where the time of a step goes on an NVIDIA GPU, and how the blocks of the attention kernels change theirs.

    python benchmarks/gpu_kernels.py step base 64 512 packed:0.1:0.1:bfloat16 --output=DIR
    python benchmarks/gpu_kernels.py blocks --output=DIR [--after=FILE]

`step` profiles the pre-training step: it writes the times of its operations, STEP.operations.json, and the
compiled program, STEP.hlo.gz, and prints the sums by kernel. `blocks` writes the time of each size beside
cuDNN's, blocks.json, and prints the fastest; with --after it compiles and then waits for a file. With --small
it runs on a CPU, whose times mean nothing. benchmarks/gpu.sh calls both.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import glob
import gzip
import itertools
import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "compare"))  # a folder that Python runs, and no package
import measure

_STEPS = 4  # of a profile
_CALLS = 20  # of a kernel, one after the other
_PATIENCE = 150.0  # seconds to wait for the file of --after


def step(args) -> None:
    """Times the pre-training step and profiles a few."""
    import jax
    import ours

    from bert_jax.kernels import check, dispatch

    variant = measure.variant(args.variant)
    name = f"{args.model.replace('/', '-')}-{args.batch}x{args.length}{args.suffix}"
    with dispatch.record() as choices:
        began = time.perf_counter()
        made, of_row, _ = ours.pretraining(args, variant, ours.one_device())
        took = time.perf_counter() - began
    print(f"{name}: {', '.join(sorted(map(str, choices)))}")
    for result in check.results():
        print(f"  {result.kernel}: {result.problem or 'as XLA'}, {result.difference}, {result.seconds:.1f} s")
    print(f"  made in {took:.1f} s, of which compiling {made.fields['compile_seconds']:.1f} s", flush=True)
    (args.output / f"{name}.hlo.gz").write_bytes(gzip.compress(made.program.as_text().encode()))
    seconds = measure.timed(made.call, 10, warm_up=3)
    best, median = min(seconds), sorted(seconds)[len(seconds) // 2]
    rate = of_row * args.batch / best / 1e12
    peak = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 2**30
    program = made.fields["memory_bytes"] / 2**30
    print(
        f"  {best * 1e3:.2f} ms (median {median * 1e3:.2f}), {rate:.1f} TFLOP/s of the model, memory "
        f"{program:.1f} GiB by the compiler, {peak:.1f} GiB at most in this process",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(_STEPS):
                made.call()
        (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        operations = _operations(jax.profiler.ProfileData.from_file(path))
    (args.output / f"{name}.operations.json").write_text(json.dumps(operations))
    print(f"  busy for {sum(one['us'] for one in operations) / 1e3:.2f} ms of a step:")
    kernels: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    for one in operations:
        kernel = re.sub(r"[_.]?\d+$", "", one["kernel"].split("(")[0][:70])
        kernels[kernel][0] += one["us"] / 1e3
        kernels[kernel][1] += one["calls"]
    for kernel, (milliseconds, calls) in sorted(kernels.items(), key=lambda one: -one[1][0])[:20]:
        print(f"  {milliseconds:8.3f} ms {calls:7.1f} x {kernel}")


def _operations(profile) -> list[dict]:
    """Returns what ran on the GPU in a step of a profile: the longest in all first."""
    found: dict[tuple[str, str], dict] = {}
    for plane in profile.planes:
        lines = [line for line in plane.lines if "Stream" in line.name] if "GPU" in plane.name else []
        for event in (event for line in lines for event in line.events):
            about = {name: str(value) for name, value in event.stats if name in ("hlo_op", "tf_op", "name")}
            key = about.get("hlo_op", ""), event.name
            one = found.setdefault(key, dict(operation=key[0], kernel=key[1], us=0.0, calls=0.0))
            one["us"] += event.duration_ns / 1e3 / _STEPS
            one["calls"] += 1 / _STEPS
            one["scope"] = about.get("tf_op") or about.get("name", "")
    return sorted(found.values(), key=lambda one: -one["us"])


def blocks(args) -> None:
    """Times the attention kernels in blocks of many sizes, and cuDNN's attention."""
    import jax

    cases = list(_cases(args.small))
    for _, length, rate, _ in cases:
        _inputs(length, rate, args.small)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        compiled = list(pool.map(lambda case: _compiled(case, args.small), cases))
    print(f"{len(cases)} kernels compiled", flush=True)
    began = time.monotonic()
    while args.after and not args.after.exists() and time.monotonic() - began < _PATIENCE:
        time.sleep(0.2)
    results = []
    for case, function in zip(cases, compiled, strict=True):
        result = _timed(function, _inputs(case[1], case[2], args.small))
        direction, length, rate, sizes = case
        about = [sizes.block, sizes.step, sizes.warps, sizes.stages]
        results.append(dict(direction=direction, length=length, rate=rate, blocks=about, **result))
    if jax.default_backend() == "gpu":
        results += _cudnn_times()
    (args.output / "blocks.json").write_text(json.dumps(results))
    for key, group in itertools.groupby(results, lambda one: (one["direction"], one["length"], one["rate"])):
        every = list(group)
        fastest = sorted((one for one in every if "us" in one), key=lambda one: one["us"])
        times = ", ".join(f"{one['blocks']} {one['us']:.0f}" for one in fastest[:6])
        print(f"{key}: us of the fastest: {times}; {len(every) - len(fastest)} of {len(every)} failed")


def _cases(small: bool) -> Iterator[tuple]:
    """Yields (direction, tokens, dropout rate, `Blocks`)."""
    from bert_jax.kernels.gpu.attention import Blocks

    if small:
        yield from ((direction, 128, 0.1, Blocks(64, 64, 4, 2)) for direction in ("forward", "backward"))
        return

    def sizes(least, most, all_stages):
        for block, step in itertools.product((32, 64, 128), repeat=2):
            if least <= block * step <= most:
                yield from itertools.starmap(Blocks, itertools.product([block], [step], (4, 8), all_stages))

    for length, rate in ((512, 0.1), (512, 0.0), (128, 0.1)):
        main = (length, rate) == (512, 0.1)
        for one in sizes(64 * 32, 128 * 128, (2, 3, 4) if main else (3,)):
            yield "forward", length, rate, one
        for one in sizes(32 * 64, 64 * 128, (1, 2) if main else (2,)):
            yield "backward", length, rate, one


_given: dict[tuple, tuple] = {}


def _inputs(length: int, rate: float, small: bool) -> tuple:
    """Returns what the kernels take, of as many rows of one sequence as have 32,768 tokens."""
    if (length, rate) in _given:
        return _given[length, rate]
    import jax
    import jax.numpy as jnp

    from bert_jax.kernels.dropout import kernel_words

    rows, heads = (1, 1) if small else (32768 // length, 12)
    keys = jax.random.split(jax.random.key(0), 4)
    arrays = [jax.random.normal(key, (rows, length, heads, 64), jnp.bfloat16) for key in keys]
    # About what a forward pass gives, so that the probabilities are numbers and not all 0.
    totals, inner = jnp.full((rows, heads, length), math.log2(length) + 1.0), jnp.zeros((rows, heads, length))
    words = kernel_words(jax.random.key(1) if rate else None, rows)
    words = jnp.concatenate([words, jnp.zeros((rows, 1), words.dtype)], axis=1)
    return _given.setdefault(
        (length, rate), (*arrays, totals, inner, words, jnp.ones((rows, length), jnp.int32))
    )


def _compiled(case: tuple, small: bool) -> Callable | str:
    """Returns a kernel, or why it does not compile."""
    import jax

    from bert_jax.kernels.gpu import attention as kernels

    direction, length, rate, sizes = case
    how = kernels.How(causal=False, window=0, rate=rate, has_slopes=False, interpret=small)

    def forward(q, k, v, g, totals, inner, words, ids):
        return kernels.forward(how, sizes, (q, k, v), (words, ids, None))

    def backward(q, k, v, g, totals, inner, words, ids):
        return kernels.backward(how, sizes, (q, k, v, g), (words, ids, None), totals, inner)

    function = forward if direction == "forward" else backward
    try:
        return jax.jit(function).lower(*_inputs(length, rate, small)).compile()
    except Exception as error:  # such as too much shared memory
        return str(error).strip().splitlines()[0][:150]


def _timed(function: Callable | str, inputs: tuple, rounds: int = 3) -> dict:
    """Returns the shortest mean time of several calls in microseconds, or why there is none."""
    import jax

    if isinstance(function, str):
        return dict(problem=function)
    times = []
    try:
        jax.block_until_ready(function(*inputs))
        for _ in range(rounds):
            began = time.perf_counter()
            # The calls are queued, so that starting them costs nothing.
            jax.block_until_ready([function(*inputs) for _ in range(_CALLS)][-1])
            times.append((time.perf_counter() - began) / _CALLS)
    except Exception as error:
        return dict(problem=str(error).strip().splitlines()[0][:150])
    return dict(us=round(min(times) * 1e6, 1))


def _cudnn_times() -> list[dict]:
    import jax
    import jax.numpy as jnp

    results = []
    for length, is_masked in itertools.product((512, 128), (False, True)):
        q, k, v, g = _inputs(length, 0.1, False)[:4]
        mask = jnp.ones((q.shape[0], 1, length, length), bool) if is_masked else None

        def attend(q, k, v, mask):
            return jax.nn.dot_product_attention(q, k, v, mask=mask, implementation="cudnn")

        def both(q, k, v, mask, g):
            return jax.vjp(lambda *qkv: attend(*qkv, mask), q, k, v)[1](g)

        for direction, function, given in (
            ("cudnn forward", attend, (q, k, v, mask)),
            ("cudnn forward and backward", both, (q, k, v, mask, g)),
        ):
            about = dict(direction=direction, length=length, rate=0.0, blocks="masked" if is_masked else "")
            results.append(about | _timed(jax.jit(function), given))
    return sorted(results, key=lambda one: (one["direction"], one["length"]))


def main() -> None:
    measure.allow_missing_packages()
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("step")
    command.add_argument("model")
    command.add_argument("batch", type=int)
    command.add_argument("length", type=int)
    command.add_argument("variant", help="ROWS:DROPOUT:ATTENTION_DROPOUT:DTYPE")
    command.add_argument("--suffix", default="", help="of the names of the files, such as that of a flag")
    command.add_argument("--output", type=Path, required=True)
    command = commands.add_parser("blocks")
    command.add_argument("--output", type=Path, required=True)
    command.add_argument("--after", type=Path, default=None)
    command.add_argument("--small", action="store_true")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    {"step": step, "blocks": blocks}[args.command](args)


if __name__ == "__main__":
    main()
