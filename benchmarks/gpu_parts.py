"""What gpu_table.py measures, each in a process of its own.

    python benchmarks/gpu_parts.py matrix jax|torch [--dtype=float32] [--size=8192]
    python benchmarks/gpu_parts.py attention
    python benchmarks/gpu_parts.py gradients
    python benchmarks/gpu_parts.py tasks SIZE
    python benchmarks/gpu_parts.py train SIZE BATCH LENGTH VARIANT...

A VARIANT is ROWS:DROPOUT:ATTENTION_DROPOUT[:DTYPE[:scan]]; without a dtype it is bfloat16 on a GPU, and
layers are unrolled unless "scan" is said. A part prints its results as lines of JSON that start with RESULT.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
import types


def emit(**result) -> None:
    print("RESULT " + json.dumps(result), flush=True)


def best_matrix_rate(product, size: int, repeats: int = 30) -> float:
    """FLOP/s of the best of `repeats` products of size x size matrices; `product` waits for its result."""
    return 2 * size**3 / min(timed(product, repeats))


def timed(call, repeats: int, warm_up: int = 3) -> list[float]:
    """Seconds of each call; `call` waits for its result."""
    seconds = []
    for _ in range(warm_up + repeats):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return seconds[warm_up:]


def matrix(args) -> None:
    """What the device reaches at all: products of random matrices, several a call so that launching costs
    nothing. Constant ones take less power, and reach more than any model does."""
    inner, scale = 10, args.size**-0.5  # so that the numbers stay as large as they are
    if args.framework == "jax":
        import jax
        import jax.numpy as jnp

        a, b = (
            jax.random.normal(key, (args.size, args.size)).astype(args.dtype)
            for key in jax.random.split(jax.random.key(0))
        )
        a = a * jnp.asarray(scale, args.dtype)
        product = jax.jit(lambda a, b: jax.lax.fori_loop(0, inner, lambda _, c: a @ c, b))
        rate = best_matrix_rate(lambda: product(a, b).block_until_ready(), args.size, args.repeats)
        device = jax.devices()[0].device_kind
    else:
        import torch

        on = "cuda" if torch.cuda.is_available() else "cpu"
        torch.backends.cuda.matmul.allow_tf32 = True  # as jax does by default
        a, b = (torch.randn(args.size, args.size, device=on).to(getattr(torch, args.dtype)) for _ in "ab")
        a = a * scale

        def product():
            y = b
            for _ in range(inner):
                y = a @ y
            if on == "cuda":
                torch.cuda.synchronize()

        rate = best_matrix_rate(product, args.size, args.repeats)
        device = torch.cuda.get_device_name() if on == "cuda" else "cpu"
    emit(
        framework=args.framework,
        dtype=args.dtype,
        size=args.size,
        flops_per_second=inner * rate,
        device=device,
    )


def attention(args) -> None:
    """Fused attention beside the plain one, on packed rows: results and gradients, for each kernel.

    The Triton kernel also with dropout on the probabilities, whose mask is the plain one's, and in windows.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from bert_jax.kernels.attention import attention as attend
    from bert_jax.models import row_inputs
    from bert_jax.runs import benchmark

    if jax.default_backend() != "gpu":
        emit(skipped=f"no GPU: jax runs on {jax.default_backend()}")
        return

    @functools.partial(jax.jit, static_argnums=(0, 1, 2))
    def gradients(name, rate, window, qkv, weights, ids):
        def loss(qkv):
            options = dict(dropout_rate=rate, dropout_key=jax.random.key(2), window=window)
            out = attend(*qkv, ids, implementation=name, **options) * (ids > 0)[:, :, None, None].astype(
                qkv.dtype
            )
            return jnp.sum((out * weights).astype(jnp.float32)), out

        return jax.grad(loss, has_aux=True)(qkv)

    worst: dict[str, float] = {}
    for length in (128, 512):
        batch = benchmark.synthetic_batch("packed", 4, length, 30522)
        ids = row_inputs.packed_inputs({name: jnp.asarray(x) for name, x in batch.items()})["sequence_ids"]
        keys = jax.random.split(jax.random.key(0))
        qkv = jax.random.normal(keys[0], (3, 4, length, 12, 64), jnp.bfloat16)
        weights = jax.random.normal(keys[1], (4, length, 12, 64), jnp.bfloat16)
        cases = [("cudnn", 0.0, 0), ("triton", 0.1, 0)]
        for name, rate, window in cases + [("triton", 0.0, 64)] * (length > 128):
            case = f"{name}, dropout {rate}, window {window}, {length} tokens"
            for plain, fused in zip(
                *(gradients(which, rate, window, qkv, weights, ids) for which in ("xla", name)), strict=True
            ):
                plain, fused = np.asarray(plain, np.float32), np.asarray(fused, np.float32)
                difference = float(np.abs(plain - fused).max() / np.abs(plain).max())
                worst[case] = max(worst.get(case, 0.0), difference)
    emit(largest_difference=worst, ok=all(value < 0.03 for value in worst.values()))


# (dtype, precision of float32 products, tokens a row, how far the gradient may be from the CPU's, as a part
# of its length). 127 is odd, and 24 shorter than any tile.
GRADIENTS = (
    ("float32", "highest", 128, 1e-4),
    ("float32", "default", 128, 1e-2),
    ("float32", "default", 127, 1e-2),
    ("bfloat16", "default", 128, 5e-2),
    ("bfloat16", "default", 127, 5e-2),
    ("bfloat16", "default", 24, 5e-2),
)


def gradients(args) -> None:
    """The loss and the gradient of a pre-training batch on the default device beside the CPU's in float32."""
    import jax
    import numpy as np
    import optax

    from bert_jax.models.config import EncoderConfig, Execution
    from bert_jax.parallel import sharding
    from bert_jax.runs import benchmark

    def of(dtype, precision, length, device):
        model = EncoderConfig(
            num_hidden_layers=2,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            execution=Execution(dtype),
            **(dict(vocab_size=1000, hidden_size=128, num_attention_heads=2) if args.small else {}),
        )
        task = benchmark.make_task(model, length)
        mesh = sharding.make_mesh(devices=[device])
        batch = sharding.global_batch(benchmark.synthetic_batch("packed", 8, length, model.vocab_size), mesh)

        def mean_loss(params, batch):
            losses, _ = task.loss(params, task.prepare(batch, jax.random.key(1), True), None)
            return sum(total / weight for total, weight in losses.values())

        with sharding.on_mesh(mesh), jax.default_matmul_precision(precision):
            # Drawn on the CPU, so that both start from the very same numbers.
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


def train(args) -> None:
    """The pre-training step in the given variants, one after the other."""
    import jax

    from bert_jax.models.sizes import named
    from bert_jax.parallel import sharding
    from bert_jax.runs import benchmark

    mesh = sharding.make_mesh(devices=jax.devices()[:1])
    peak = 0
    for variant in args.variants:
        rows, dropout, attention_dropout, dtype, layers = split_variant(variant, jax.default_backend())
        model = named(
            args.model_size,
            dtype=dtype,
            scan_unroll=1 if layers == "scan" else 0,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=attention_dropout,
        )
        batch = benchmark.synthetic_batch(rows, args.batch, args.length, model.vocab_size)
        task = benchmark.make_task(model, args.length)
        optimizer, schedule = _optimizer(task)
        result = benchmark.time_train_step(task, optimizer, schedule, batch, mesh=mesh, steps=args.steps)
        before, peak = peak, _peak_bytes()
        # The device counts from the start of the process: of a variant that needs less than one before it,
        # nothing is known.
        emit(variant=variant, dtype=dtype, peak_bytes=peak if peak and peak > before else None, **result)


def split_variant(variant: str, platform: str) -> tuple[str, float, float, str, str]:
    """(rows, dropout on hidden states, on attention probabilities, dtype, "unrolled" or "scan")."""
    rows, dropout, attention_dropout, *rest = variant.split(":")
    dtype = rest[0] if rest else ("float32" if platform == "cpu" else "bfloat16")
    return rows, float(dropout), float(attention_dropout), dtype, rest[1] if len(rest) > 1 else "unrolled"


def tasks(args) -> None:
    """Fine-tuning, prediction and embedding of single texts of 128 tokens, in float32 and bfloat16."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from bert_jax.inference import embedding
    from bert_jax.models.sizes import named
    from bert_jax.objectives.classification import Classification
    from bert_jax.parallel import sharding
    from bert_jax.training.state import init_state
    from bert_jax.training.step import make_train_step

    rows, length, few = args.batch, args.length, max(2, args.steps)
    mesh = sharding.make_mesh(devices=jax.devices()[:1])
    rng = np.random.default_rng(0)
    for dtype in args.dtypes.split(","):
        model = named(args.model_size, dtype=dtype, attention_probs_dropout_prob=0.0, scan_unroll=0)
        task = Classification(model, 2)
        arrays = {
            "input_ids": rng.integers(1000, model.vocab_size, (rows, length), np.int32),
            "lengths": np.full(rows, length, np.int32),
            "first_lengths": np.full(rows, length, np.int32),
            "targets": rng.integers(0, 2, rows).astype(np.int32),
            "weights": np.ones(rows, np.float32),
        }
        batch = sharding.global_batch(arrays, mesh)
        optimizer, schedule = _optimizer(task)
        state = init_state(task, optimizer, mesh, 0)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
        predict = jax.jit(task.predict)
        embed = functools.partial(
            embedding.features,
            config=model,
            layers=(model.num_hidden_layers,),
            pooling="mean",
            normalize=False,
        )
        step = sharding.jit_train_step(make_train_step(task, optimizer, schedule), mesh, shardings)

        held = {"state": state}

        def fine_tune(step=step, batch=batch, held=held):
            held["state"], metrics = step(held["state"], batch, np.uint32(0))
            jax.block_until_ready((held["state"], metrics))

        def forward(function, batch=batch, held=held):
            with sharding.on_mesh(mesh):
                jnp.asarray(function(held["state"].params, batch)).block_until_ready()

        calls = {
            "fine-tune": fine_tune,
            "predict": functools.partial(forward, predict),
            "embed": functools.partial(forward, embed),
        }
        for what, call in calls.items():
            first = timed(call, 1, warm_up=0)[0]
            seconds = timed(call, few)
            emit(
                what=what,
                dtype=dtype,
                model=args.model_size,
                rows=rows,
                length=length,
                texts_per_second={"best": rows / min(seconds), "median": rows / float(np.median(seconds))},
                compile_seconds=first - min(seconds),
                peak_bytes=_peak_bytes(),
            )


def _optimizer(objective):
    from bert_jax.settings.typed.optimizer_config import OptimizerConfig
    from bert_jax.training.optimization.optimizers import make_optimizer

    return make_optimizer(OptimizerConfig(warmup_steps=10), 1000, objective)


def _peak_bytes() -> int | None:
    """Most that was allocated on the first device since the process began; None where it does not count."""
    import jax

    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def main() -> None:
    try:
        import google_crc32c  # noqa: F401
    except ImportError:  # it checks records, of which none are read here
        sys.modules["google_crc32c"] = types.SimpleNamespace(value=None)
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    commands = parser.add_subparsers(dest="command", required=True)
    part = commands.add_parser("matrix")
    part.add_argument("framework", choices=["jax", "torch"])
    part.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    part.add_argument("--size", type=int, default=8192)
    part.add_argument("--repeats", type=int, default=30)
    commands.add_parser("attention")
    part = commands.add_parser("gradients")
    part.add_argument("--small", action="store_true")
    part = commands.add_parser("tasks")
    part.add_argument("model_size")
    part.add_argument("--batch", type=int, default=128)
    part.add_argument("--length", type=int, default=128)
    part.add_argument("--steps", type=int, default=10)
    part.add_argument("--dtypes", default="bfloat16,float32")
    part = commands.add_parser("train")
    part.add_argument("model_size")
    part.add_argument("batch", type=int)
    part.add_argument("length", type=int)
    part.add_argument("variants", nargs="+")
    part.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    parts = {"matrix": matrix, "attention": attention, "gradients": gradients, "tasks": tasks, "train": train}
    parts[args.command](args)


if __name__ == "__main__":
    main()
