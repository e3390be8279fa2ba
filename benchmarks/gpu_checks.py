"""Compares the results of a GPU and a CPU, and profiles a pre-training step; see benchmarks/gpu.sh.

    python benchmarks/gpu_checks.py attention
    python benchmarks/gpu_checks.py gradients [--small]
    python benchmarks/gpu_checks.py step base 64 512 packed:0.1:0.1:bfloat16 --output=DIR

`attention` and `gradients` print each result as a line of JSON. `step` writes the operation times of a
pre-training step to STEP.operations.json and the compiled program to STEP.hlo.gz, and prints sums by kernel.
"""

from __future__ import annotations

import argparse
import collections
import functools
import glob
import gzip
import json
import re
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "compare"))  # a folder that Python runs, not a package
import measure

_STEPS = 4  # in a profile


def emit(**result) -> None:
    print(json.dumps(result), flush=True)


def attention(args) -> None:
    """Compares results and gradients of cuDNN attention with plain attention on packed rows."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from bert_jax.kernels.attention import attention as attend
    from bert_jax.models import row_inputs
    from bert_jax.runs import benchmark

    if jax.default_backend() != "gpu":
        emit(skipped=f"no GPU: jax runs on {jax.default_backend()}")
        return

    @functools.partial(jax.jit, static_argnums=0)
    def gradients(name, qkv, weights, ids):
        def loss(qkv):
            out = attend(*qkv, ids, implementation=name) * (ids > 0)[:, :, None, None].astype(qkv.dtype)
            return jnp.sum((out * weights).astype(jnp.float32)), out

        return jax.grad(loss, has_aux=True)(qkv)

    worst: dict[str, float] = {}
    for length in (128, 512):
        batch = benchmark.synthetic_batch("packed", 4, length, 30522)
        ids = row_inputs.packed_inputs({name: jnp.asarray(x) for name, x in batch.items()})["sequence_ids"]
        keys = jax.random.split(jax.random.key(0))
        qkv = jax.random.normal(keys[0], (3, 4, length, 12, 64), jnp.bfloat16)
        weights = jax.random.normal(keys[1], (4, length, 12, 64), jnp.bfloat16)
        both = (gradients(name, qkv, weights, ids) for name in ("xla", "cudnn"))
        for plain, fused in zip(*both, strict=True):
            plain, fused = np.asarray(plain, np.float32), np.asarray(fused, np.float32)
            difference = float(np.abs(plain - fused).max() / np.abs(plain).max())
            case = f"{length} tokens"
            worst[case] = max(worst.get(case, 0.0), difference)
    emit(largest_difference=worst, ok=all(value < 0.03 for value in worst.values()))


# (dtype, float32 matmul precision, tokens per row, bound of the gradient's distance from the CPU's, relative
# to its norm). 127 is odd, and 24 is shorter than any tile.
GRADIENTS = (
    ("float32", "highest", 128, 1e-4),
    ("float32", "default", 128, 1e-2),
    ("float32", "default", 127, 1e-2),
    ("bfloat16", "default", 128, 5e-2),
    ("bfloat16", "default", 127, 5e-2),
    ("bfloat16", "default", 24, 5e-2),
)


def gradients(args) -> None:
    """Compares loss and gradient of a pre-training batch on the default device with the CPU in float32."""
    import jax
    import numpy as np
    import optax

    from bert_jax.models.config import EncoderConfig
    from bert_jax.parallel import sharding
    from bert_jax.runs import benchmark

    def of(dtype, precision, length, device):
        model = EncoderConfig(
            num_hidden_layers=2,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            dtype=dtype,
            **(dict(vocab_size=1000, hidden_size=128, num_attention_heads=2) if args.small else {}),
        )
        task = benchmark.make_masked_lm(model, length)
        mesh = sharding.make_mesh(devices=[device])
        batch = sharding.global_batch(benchmark.synthetic_batch("packed", 8, length, model.vocab_size), mesh)

        def mean_loss(params, batch):
            losses, _ = task.loss(params, task.prepare(batch, jax.random.key(1), True), None)
            return sum(total / weight for total, weight in losses.values())

        with sharding.on_mesh(mesh), jax.default_matmul_precision(precision):
            # Initialized on the CPU, so that both devices start from identical parameters.
            with jax.default_device(jax.devices("cpu")[0]):
                params = jax.tree.map(np.asarray, sharding.unbox(task.init(jax.random.key(0))))
            loss, gradient = jax.jit(jax.value_and_grad(mean_loss))(jax.device_put(params, device), batch)
            return float(loss), jax.tree.map(np.asarray, gradient)

    on = jax.devices()[0]
    expected = {}
    for dtype, precision, length, bound in GRADIENTS:
        if length not in expected:
            expected[length] = of("float32", "highest", length, jax.devices("cpu")[0])
        loss, gradient = of(dtype, precision, length, on)
        reference, direction = expected[length]
        apart = float(optax.tree.norm(optax.tree.sub(gradient, direction)) / optax.tree.norm(direction))
        emit(
            dtype=dtype,
            precision=precision,
            length=length,
            device=on.device_kind,
            loss=loss,
            loss_on_cpu=reference,
            gradient_apart=apart,
            ok=apart < bound and abs(loss - reference) < bound * abs(reference),
        )


def step(args) -> None:
    """Times the pre-training step and profiles a few."""
    import jax
    import ours

    from bert_jax.kernels import dispatch

    args.output.mkdir(parents=True, exist_ok=True)
    variant = measure.variant(args.variant)
    name = f"{args.model.replace('/', '-')}-{args.batch}x{args.length}{args.suffix}"
    with dispatch.record() as choices:
        began = time.perf_counter()
        made, of_row, _ = ours.pretraining(args, variant, ours.one_device())
        took = time.perf_counter() - began
    print(f"{name}: {', '.join(sorted(map(str, choices)))}")
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
    """Returns the GPU operations of a step of a profile, ordered by total time, longest first."""
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


def main() -> None:
    measure.allow_missing_packages()
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("attention")
    commands.add_parser("gradients").add_argument("--small", action="store_true")
    command = commands.add_parser("step")
    command.add_argument("model")
    command.add_argument("batch", type=int)
    command.add_argument("length", type=int)
    command.add_argument("variant", help="ROWS:DROPOUT:ATTENTION_DROPOUT:DTYPE")
    command.add_argument("--suffix", default="", help="of the names of the files, such as that of a flag")
    command.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    {"attention": attention, "gradients": gradients, "step": step}[args.command](args)


if __name__ == "__main__":
    main()
