"""The timed workloads of bert_jax. `python benchmarks/compare` runs each one in a separate process.

MODEL is a size such as "base" or a pre-training config such as "pretrain/albert:base"; a VARIANT is
ROWS:DROPOUT:ATTENTION_DROPOUT:DTYPE.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import measure
import numpy as np

SIDE = "bert_jax"
_VOCABULARY = 30522  # for a config that takes it from the records
_CLASSES = 2


def config_of(model: str, variant: dict | None = None):
    """Returns the `EncoderConfig` of a model, with the dropout rates and the dtype of a variant."""
    from bert_jax.models import config, sizes

    if "/" in model:
        from bert_jax.settings import config_files  # with ml_collections, which few machines with a GPU have

        fields = config_files.load(model, "pretrain").model.to_dict()
        fields["vocab_size"] = fields["vocab_size"] or _VOCABULARY
    else:
        fields = sizes.named(model).to_dict()
    if variant:
        fields["hidden_dropout_prob"] = variant["dropout"]
        fields["attention_probs_dropout_prob"] = variant["attention_dropout"]
        fields["dtype"] = variant["dtype"]
    return config.from_dict(fields)


def batch_of(args, rows: str) -> dict[str, np.ndarray]:
    from bert_jax.runs import benchmark

    return benchmark.synthetic_batch(rows, args.batch, args.length, config_of(args.model).vocab_size)


def one_device():
    import jax

    from bert_jax.parallel import sharding

    return sharding.make_mesh(devices=jax.devices()[:1])


def prepare(args) -> None:
    """Writes the peers' input: config.json, batches, and with --onnx a graph with random weights."""
    from bert_jax.convert import families
    from bert_jax.objectives.masking import default_max_predictions

    args.folder.mkdir(parents=True, exist_ok=True)
    config = config_of(args.model)
    family = families.of(config)
    (args.folder / "config.json").write_text(json.dumps(family.write_config(config, "none")))
    if args.onnx:
        _export(args.folder, family, config)
    for batch, length in (map(int, shape.split("x")) for shape in args.rows):
        shape = types.SimpleNamespace(model=args.model, batch=batch, length=length)
        for rows in ("full", "padded"):
            made = batch_of(shape, rows)
            arrays = {name: made[name] for name in ("input_ids", "lengths")}
            predictions = default_max_predictions(length, 0.15)  # as `benchmark.make_masked_lm` has them
            np.savez(args.folder / f"{rows}-{batch}x{length}.npz", predictions=predictions, **arrays)


def _export(folder, family, config) -> None:
    """Writes an ONNX graph with random weights; this needs more packages than timing bert_jax does."""
    from bert_jax.convert.model import Model
    from bert_jax.export import folder as export
    from bert_jax.models import assembled

    module = family.module(config, ("encoder",), "none", 0)
    rng = np.random.default_rng(0)
    params = {
        name: 0.02 * rng.standard_normal(one.shape, np.float32) + np.float32(name.endswith("scale"))
        for name, one in assembled.parameters(module).items()
    }
    export.write(Model(config, params), str(folder), export.ONNX, log=print)


def matrix(args) -> None:
    """Measures the peak rate of the device with matmuls of random matrices. Each call has several, to hide
    launch costs. Constant matrices would draw less power and run faster than any model."""
    import jax
    import jax.numpy as jnp

    from bert_jax.kernels.matmul import matmul

    size, inner = args.size, 10
    a, b = (
        jax.random.normal(key, (size, size)).astype(args.dtype) for key in jax.random.split(jax.random.key(0))
    )
    a = a * jnp.asarray(size**-0.5, args.dtype)  # keeps the scale of the values
    products = jax.jit(lambda a, b: jax.lax.fori_loop(0, inner, lambda _, c: matmul(a, c, (1, 0)), b))
    case = measure.Case(
        what={"kind": "matrix", "size": size, "dtype": args.dtype},
        unit="FLOP/s",
        amount=2 * size**3 * inner,
        call=lambda: products(a, b).block_until_ready(),
        fields={"device": jax.devices()[0].device_kind},
    )
    measure.take_turns(args, SIDE, [case])


def train(args) -> None:
    """The pre-training step in the given variants."""
    mesh, cases = one_device(), []
    for variant in map(measure.variant, args.variants):
        step, of_row, sequences = pretraining(args, variant, mesh)
        cases.append(
            measure.Case(
                what=measure.case("train", args, variant),
                unit="sequences/s",
                amount=sequences,
                call=step.call,
                fields={**step.fields, "flops": of_row * args.batch / sequences},
            )
        )
    measure.take_turns(args, SIDE, cases)


def finetune(args) -> None:
    """The step of fine-tuning a classifier."""
    from bert_jax.objectives.classification import Classification
    from bert_jax.training import flops

    mesh, cases = one_device(), []
    for variant in map(measure.variant, args.variants):
        task = Classification(config_of(args.model, variant).replace(scan_unroll=0), _CLASSES)
        made = batch_of(args, variant["rows"])
        arrays = {name: made[name] for name in ("input_ids", "lengths")} | {
            "first_lengths": made["lengths"],
            "targets": np.arange(args.batch, dtype=np.int32) % _CLASSES,
            "weights": np.ones(args.batch, np.float32),
        }
        step = _step(task, arrays, mesh)
        cases.append(
            measure.Case(
                what=measure.case("finetune", args, variant),
                unit="sequences/s",
                amount=args.batch,
                call=step.call,
                fields={**step.fields, "flops": flops.row_flops(task)(args.length)},
            )
        )
    measure.take_turns(args, SIDE, cases)


def forward(args) -> None:
    """Computes last hidden states of rows with one text; on a CPU in parts, as in `bert-jax predict`."""
    import jax

    from bert_jax.checkpoint.leaves import flatten, nest
    from bert_jax.convert import families
    from bert_jax.kernels import check, platform
    from bert_jax.models.parameters import layer_axes
    from bert_jax.models.row_inputs import INPUTS, row_inputs
    from bert_jax.objectives.classification import Classification
    from bert_jax.parallel import microbatches, placement, sharding
    from bert_jax.training import flops

    mesh, cases = one_device(), []
    for variant in map(measure.variant, args.variants):
        config = config_of(args.model, variant)
        config = config.for_inference(platform.target(), variant["dtype"]).replace(scan_unroll=0)
        check.ensure(config)
        module = families.of(config).module(config, ("encoder",), "none", 0)
        made = batch_of(args, variant["rows"])
        inputs = jax.device_put(row_inputs(made["input_ids"], made["lengths"]))
        with sharding.on_mesh(mesh):
            boxed = jax.jit(module.init)(jax.random.key(0), *(inputs[name] for name in INPUTS))["params"]
            arrays = flatten(sharding.unbox(boxed)), layer_axes(boxed)
            params = nest(placement.place(*arrays, mesh, config.dtype))
            parts = microbatches.for_forward_pass(inputs, mesh)

            @jax.jit
            def apply(params, inputs, module=module, parts=parts):
                def of_part(rows):
                    together = {"params": placement.restack(params)}
                    return module.apply(together, *(rows[name] for name in INPUTS))["hidden"]

                return microbatches.mapped(of_part, inputs, parts)

            def call(apply=apply, params=params, inputs=inputs):
                apply(params, inputs).block_until_ready()

            first, second = measure.timed(call, 2, warm_up=0)
        of_row = flops.row_flops(Classification(config, _CLASSES))(args.length) / 3
        cases.append(
            measure.Case(
                what=measure.case("forward", args, variant),
                unit="sequences/s",
                amount=args.batch,
                call=call,
                fields={"flops": of_row, "compile_seconds": first - second},
            )
        )
    measure.take_turns(args, SIDE, cases)


def first_step(args) -> None:
    """One pre-training step in a new process; the runner takes the time of the whole process."""
    from bert_jax.parallel import compiler_options
    from bert_jax.runs import benchmark

    (variant,) = map(measure.variant, args.variants)
    compiler_options.enable_compilation_cache()
    task = benchmark.make_masked_lm(config_of(args.model, variant), args.length)
    _step(task, batch_of(args, variant["rows"]), one_device()).call()


def checkpoint(args) -> None:
    """Times how long a checkpoint of model and optimizer blocks training, and how long storing it takes."""
    from bert_jax.checkpoint.saving import Checkpointer
    from bert_jax.runs import benchmark
    from bert_jax.training.state import init_state

    (variant,) = map(measure.variant, args.variants)
    task = benchmark.make_masked_lm(config_of(args.model, variant), args.length)
    optimizer, *_ = _optimizer(task)
    state = init_state(task, optimizer, one_device(), 0)
    stalls, stored = [], []
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        saver = Checkpointer(folder, keep=1)
        for step in range(1 + args.steps):
            began = time.perf_counter()
            saver.save(step, state)
            stalls.append(time.perf_counter() - began)
            saver.wait()
            stored.append(time.perf_counter() - began)
        saver.close()
    for kind, seconds in (("checkpoint, training waits", stalls), ("checkpoint, stored", stored)):
        measure.emit(what=measure.case(kind, args), side=SIDE, unit="s", **measure.durations(seconds[1:]))


def records(args) -> None:
    """Times `bert-jax data` on a text, and the loader on the resulting records."""
    import subprocess

    from bert_jax.data import records as stored
    from bert_jax.runs import benchmark
    from data_pipelines import readers

    size = sum(Path(path).stat().st_size for path in readers.list_inputs(args.input))
    command = [sys.executable, "-m", "bert_jax", "data", f"--input={args.input}"]
    command += [f"--input_format={args.input_format}", f"--vocab={args.vocab}", "--max_seq_length=128"]
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        seconds = []
        for number in range(args.steps):
            began = time.perf_counter()
            subprocess.run([*command, f"--output={folder}/{number}"], check=True, stdout=sys.stderr)
            seconds.append(time.perf_counter() - began)
        dataset = stored.open_dataset(f"{folder}/0", "train")
        loaded = [benchmark.time_loader(dataset, 32)["tokens_per_second"] for _ in range(args.steps)]
    measure.emit(
        what={"kind": "records"}, side=SIDE, unit="MB of text/s", **measure.rates(size / 1e6, seconds)
    )
    measure.emit(
        what={"kind": "loader", "batch": 32, "length": 128},
        side=SIDE,
        unit="real tokens/s",
        best=max(loaded),
        median=float(np.median(loaded)),
    )


class _Step(NamedTuple):
    """A training step: a call that runs it and waits, the fields of its result, and its compiled program."""

    call: Callable[[], None]
    fields: dict[str, Any]
    program: Any


def pretraining(args, variant: dict, mesh):
    """Returns the pre-training step of a variant, the model FLOPs of a row, and the batch's sequences."""
    import jax

    from bert_jax.runs import benchmark
    from bert_jax.training import flops

    config = config_of(args.model, variant)
    if jax.default_backend() == "gpu":
        config = config.replace(scan_unroll=0)
    task = benchmark.make_masked_lm(config, args.length)
    batch = batch_of(args, variant["rows"])
    sequences = np.count_nonzero(batch["first_lengths"])
    predictions = task.masking.max_predictions
    of_row = flops.row_flops(task)(args.length, predictions, round(sequences / args.batch))
    return _step(task, batch, mesh), of_row, sequences


def _step(objective, arrays, mesh):
    """Returns one step of training, compiled, on the given rows."""
    import jax

    from bert_jax.kernels import check as kernel_check
    from bert_jax.parallel import device_memory, host, sharding
    from bert_jax.training.state import abstract_state, init_state
    from bert_jax.training.step import make_train_step

    kernel_check.ensure(objective.config)
    optimizer, schedule, check = _optimizer(objective)
    abstract = abstract_state(objective, optimizer, mesh)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    # As in training, the parameters are initialized while the step is traced and compiled.
    state = init_state(objective, optimizer, mesh, 0)
    batch, seed = sharding.global_batch(arrays, mesh), np.uint32(0)
    train_step = make_train_step(objective, optimizer, schedule, check=check)
    jitted = sharding.jit_train_step(train_step, mesh, shardings)
    lowered, began = jitted.lower(abstract, batch, seed), time.perf_counter()
    step = lowered.compile()
    compile_seconds = time.perf_counter() - began
    host.keep_activations(step, mesh.size)

    def call():
        nonlocal state
        state, metrics = step(state, batch, seed)
        jax.block_until_ready((state, metrics))

    memory = step.memory_analysis()
    taken = None if memory is None else device_memory.program_bytes(memory, jax.default_backend())
    return _Step(call, {"compile_seconds": compile_seconds, "memory_bytes": taken}, step)


def _optimizer(objective):
    from bert_jax.settings.run_config import OptimizerConfig
    from bert_jax.training.optimizers import finite_check, make_optimizer

    config = OptimizerConfig(warmup_steps=10)
    return *make_optimizer(config, 1000, objective), finite_check(config)


def main() -> None:
    measure.allow_missing_packages()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("prepare")
    part.add_argument("model")
    part.add_argument("folder", type=Path)
    part.add_argument("rows", nargs="*", help="BATCHxLENGTH")
    part.add_argument("--onnx", action="store_true")
    measure.add_parts(parts)
    part = parts.add_parser("records")
    for name in ("input", "input_format", "vocab"):
        part.add_argument(name)
    part.add_argument("--steps", type=int, default=3)
    part.add_argument("--scratch", default=None)
    args = parser.parse_args()
    if args.part in ("train", "finetune", "first_step"):
        from bert_jax.parallel import host

        host.use_huge_pages()  # as `bert-jax pretrain` and `bert-jax finetune` do
        host.use_one_heap()
    functions = (prepare, matrix, train, finetune, forward, first_step, checkpoint, records)
    {function.__name__: function for function in functions}[args.part](args)


if __name__ == "__main__":
    main()
