"""Times forward passes of evaluation on a CPU: a whole batch at once, and in parts, in turn.

    GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1 JAX_PLATFORMS=cpu taskset -c 1 \
        python benchmarks/row_parts.py --config=pretrain/mini --rows=32 --length=128 [--predict]

The evaluation step is that of pre-training; with --predict, the outputs of a classifier on the same encoder.
"now" is what a run computes. The rates are rows per second of process time, and of wall time.
"""

from __future__ import annotations

import argparse
import functools
import runpy
import time

import jax
import numpy as np

from bert_jax.kernels import platform
from bert_jax.objectives.classification import Classification
from bert_jax.parallel import host, row_parts, sharding
from bert_jax.runs import benchmark
from bert_jax.settings import config_files
from bert_jax.settings.typed import pretrain_config
from bert_jax.training.step import make_eval_step


def parts_of(tokens, batch, mesh):
    if tokens == "now":
        return row_parts.of_forward_pass(batch, mesh)
    return 1 if tokens == "whole" else max(1, batch["input_ids"].size // int(tokens))


def programs(args, mesh):
    """{tokens at a time: (compiled program, arguments)}."""
    given = runpy.run_path(config_files.find(args.config))["get_config"]()
    given.model.vocab_size, given.model.dtype = args.vocab_size, "float32"
    config = pretrain_config.pretraining(given)
    model = config.model.encoder().resolve(platform.target())
    batch = benchmark.synthetic_batch("padded", args.rows, args.length, args.vocab_size)
    if args.predict:
        objective = Classification(model, 2)
        batch = {name: batch[name] for name in ("input_ids", "lengths")} | {
            "first_lengths": batch["lengths"], "weights": np.ones(args.rows, np.float32),
        }  # fmt: skip
    else:
        masking = config.masking.options(args.length)
        objective = benchmark.make_task(model, args.length, masking, next_sentence=model.type_vocab_size > 1)
    params = sharding.unbox(objective.init(jax.random.key(0)))
    batch = sharding.global_batch(batch, mesh)
    for tokens in ("whole", "now", *args.tokens):
        split = functools.partial(parts_of, tokens, mesh=mesh)
        if args.predict:
            arguments = params, batch

            def function(params, batch, split=split):
                predict = functools.partial(objective.predict, params)
                return row_parts.mapped(predict, batch, split(batch))
        else:
            arguments = params, batch, np.int32(0), np.uint32(0)
            function = make_eval_step(objective, split)
        with sharding.on_mesh(mesh):
            yield tokens, (jax.jit(function).lower(*arguments).compile(), arguments)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default="pretrain/mini")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--vocab_size", type=int, default=30522)
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--tokens", nargs="*", default=[], help="other numbers of tokens at a time")
    args = parser.parse_args()
    mesh = sharding.make_mesh(devices=jax.devices()[:1])
    found = dict(programs(args, mesh))
    largest = max(
        (each for each, _ in found.values()), key=lambda each: each.memory_analysis().temp_size_in_bytes
    )
    host.keep_activations(largest, 1)
    seconds = {name: [] for name in found}
    for turn in range(args.pairs + 1):
        for name, (program, arguments) in found.items():
            began = time.process_time(), time.perf_counter()
            jax.block_until_ready(program(*arguments))
            if turn:  # the first one warms up
                seconds[name].append((time.process_time() - began[0], time.perf_counter() - began[1]))
    for name, each in seconds.items():
        best, median = (args.rows / function(each, axis=0) for function in (np.min, np.median))
        print(
            f"{name:>6}: {best[0]:.1f} ({median[0]:.1f}) rows/s of process time, {best[1]:.1f} "
            f"({median[1]:.1f}) of wall time, best (median)"
        )


if __name__ == "__main__":
    main()
