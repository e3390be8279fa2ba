"""Whether a GPU computes what a CPU computes; benchmarks/gpu.sh runs this before it times anything.

    python benchmarks/gpu_checks.py attention
    python benchmarks/gpu_checks.py residual [--small]
    python benchmarks/gpu_checks.py gradients [--small]

Each result is a line of JSON.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "compare"))  # a folder that Python runs, and no package
import measure


def emit(**result) -> None:
    print(json.dumps(result), flush=True)


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


def residual(args) -> None:
    """The sum, dropout and norm of half a layer as a kernel beside the plain form: results, gradients, time.

    With --small it also runs on a CPU, where the kernel is interpreted.
    """
    import jax
    import jax.numpy as jnp

    from bert_jax.kernels import residual as kernels
    from bert_jax.kernels.dropout import dropout
    from bert_jax.kernels.layer_norm import layer_norm, rms_norm

    if jax.default_backend() != "gpu" and not args.small:
        emit(skipped=f"no GPU: jax runs on {jax.default_backend()}")
        return
    rate, key, epsilon = 0.1, jax.random.key(3), 1e-12
    rows, length, widths = (2, 32, (128,)) if args.small else (64, 512, (768, 1024))
    norms = {"layernorm": layer_norm, "rmsnorm": rms_norm}

    def after(name, x, h, bias, scale, offset):
        if name == "xla":
            return layer_norm(x + dropout(h + bias.astype(h.dtype), key, rate), scale, offset, epsilon)
        return kernels.residual_norm(name, x, h, bias, scale, offset, epsilon=epsilon, rate=rate, key=key)

    def before(kind, name, x, h, bias, scale, offset):
        if name == "xla":
            return x * h + norms[kind](x, scale, offset, epsilon)
        normed, x = kernels.norm_beside(name, kind, x, scale, offset, epsilon)
        return x * h + normed

    forms = {"end of a half": after} | {
        f"start of a half, {kind}": functools.partial(before, kind) for kind in norms
    }
    for width in widths:
        keys = jax.random.split(jax.random.key(width), 6)
        states = [jax.random.normal(one, (rows, length, width), jnp.bfloat16) for one in keys[:3]]
        parameters = [jax.random.normal(one, (width,)) for one in keys[3:]]
        for name, form in forms.items():

            @functools.partial(jax.jit, static_argnums=0)
            def run(which, gradient, *arrays, form=form):
                out, pull = jax.vjp(functools.partial(form, which), *arrays)
                return out, *pull(gradient)

            given = states[2], *states[:2], *parameters
            (plain, slow), (fused, fast) = (_timed(run, which, *given) for which in ("xla", "triton"))
            worst = max(map(_apart, fused, plain))
            seconds = dict(xla=slow, triton=fast)
            emit(
                what=f"{name}, {rows} x {length} x {width}",
                seconds=seconds,
                apart=worst,
                ok=worst < 0.03,
            )


def _apart(mine, theirs) -> float:
    """Returns the distance of two arrays, relative to the length of the second one."""
    import jax.numpy as jnp

    mine, theirs = (x.astype(jnp.float32).ravel() for x in (mine, theirs))
    return float(jnp.linalg.norm(mine - theirs) / jnp.maximum(jnp.linalg.norm(theirs), 1e-30))


def _timed(function, *arguments, repetitions=20):
    """Returns the results of a function, and the shortest time of several calls in seconds."""
    import jax

    results, times = jax.block_until_ready(function(*arguments)), []
    for _ in range(repetitions):
        began = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - began)
    return results, min(times)


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

    from bert_jax.models.config import EncoderConfig
    from bert_jax.models.execution import Execution
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


def main() -> None:
    measure.allow_missing_packages()
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("attention")
    for name in ("residual", "gradients"):
        commands.add_parser(name).add_argument("--small", action="store_true")
    args = parser.parse_args()
    {"attention": attention, "residual": residual, "gradients": gradients}[args.command](args)


if __name__ == "__main__":
    main()
