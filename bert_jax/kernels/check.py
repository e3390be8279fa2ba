"""Checks that the fused kernels compute on this device what the plain XLA programs compute.

A process that uses a TPU or GPU runs each kernel that its model may use once, on a small input, forward and
backward, before it traces anything. If a kernel raises, differs or hangs, `dispatch` does not use it for the
rest of the process and there is one warning; if it was requested by name, the run ends. The processes of a
run decide together, so that all of them compile the same programs. A check takes about as long as compiling
the kernel: a second or two.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from bert_jax.errors import UserError
from bert_jax.io.wording import first_line
from bert_jax.kernels import dispatch, platform
from bert_jax.kernels.attention import attention
from bert_jax.kernels.dispatch import LANES, AttentionCase, Kernel
from bert_jax.kernels.dropout import dropout
from bert_jax.kernels.layer_norm import layer_norm, rms_norm
from bert_jax.kernels.residual import norm_beside, residual_norm

# Largest allowed difference of the output and of each gradient, relative to its norm. Two correct programs
# differ by the rounding of bfloat16, in which a TPU also multiplies float32: by 0.7% to 1.3% where the
# kernels are interpreted. A wrong mask, or one wrong row in a hundred, differs by more than this bound.
BOUND = 0.03
# Time after which a kernel is given up, because its compilation or an import does not finish.
LIMIT_SECONDS = 60.0

# The longest rows have several blocks, or segments, of each kernel.
_ROWS, _LENGTH, _LONG, _LONGER = 2, 128, 384, 1152
_EPSILON = 1e-12


@dataclasses.dataclass(frozen=True)
class Variant:
    """The properties of a model that the kernels depend on."""

    dtype: str
    head_size: int
    features: int
    attention_dropout: float
    hidden_dropout: float
    local_window: int
    long_rows: bool
    rotary: bool
    alibi: bool
    norm_placement: str
    norm: str

    @classmethod
    def of(cls, config) -> Variant:
        """Returns the variant of an `EncoderConfig`."""
        return cls(
            dispatch.resolve_dtype(config.execution.dtype, platform.target()),
            config.head_dim,
            config.hidden_size,
            config.attention_probs_dropout_prob,
            config.hidden_dropout_prob,
            config.local_window,
            config.max_position_embeddings > dispatch.LONGEST_WHOLE_ROW,
            config.position == "rotary",
            config.position == "alibi",
            config.norm_placement,
            config.norm,
        )


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of the check of one kernel.

    Attributes:
        kernel: name of the kernel, such as "attention=pallas".
        problem: what is wrong, in one line; "" if nothing is wrong.
        difference: largest relative difference; None if the kernel gave no result.
        seconds: duration of the check, including compilation.
    """

    kernel: str
    problem: str
    difference: float | None
    seconds: float


_results: dict[tuple[str, Variant], Result] = {}  # of the checks that `ensure` has made in this process


def results() -> list[Result]:
    """Returns the results of the checks that `ensure` has made in this process, in their order."""
    return list(_results.values())


def ensure(config, log: Callable[[str], None] = print) -> None:
    """Checks the kernels that a model may use on this process's device and that were not checked before.

    Every process of a run has to call it, outside of tracing and before the model is traced.

    Args:
        config: the `EncoderConfig`.
        log: called with one line for each kernel that fails.

    Raises:
        UserError: a kernel failed that the configuration requests by name.
    """
    variant = Variant.of(config)
    names = [kernel.name for kernel in candidates(config, variant)]
    missing = [name for name in names if (name, variant) not in _results]
    if not missing:
        return
    results = run(missing, variant)
    failed = np.array([bool(result.problem) for result in results])
    if jax.process_count() > 1:
        failed = multihost_utils.process_allgather(failed).reshape(-1, len(failed)).any(axis=0)
    for result, has_failed in zip(results, failed, strict=True):
        _results[result.kernel, variant] = result
        if not has_failed:
            continue
        problem = result.problem or "on another process of this run"
        dispatch.distrust(result.kernel, problem)
        operation, implementation = result.kernel.split("=")
        if getattr(config.execution, operation) == implementation:
            raise UserError(
                f"{result.kernel} failed its check on this device: {problem}; use {operation}=auto, or xla"
            )
        log(f"warning: {result.kernel} failed its check on this device and is not used: {problem}")


def candidates(config, variant: Variant) -> list[Kernel]:
    """Returns the kernels that a model may use on this device, in any layer and at any length."""
    target = platform.target()
    cases = {
        "attention": dataclasses.replace(
            config.attention_case(), dtype=variant.dtype, dropout_rate=None, window=0
        ),
        "residual": config.residual_case(),
    }
    return [
        kernel
        for kernel in dispatch.kernels_of(target.platform)
        if getattr(config.execution, kernel.operation) in ("auto", kernel.implementation)
        and kernel.why_not(cases[kernel.operation], target) is None
    ]


def run(names: Sequence[str], variant: Variant) -> list[Result]:
    """Runs the checks in parallel, because most of their time is compilation."""
    results: dict[str, Result] = {}

    def check(name):
        began = time.monotonic()
        try:
            difference = float(_difference(name, variant))
            # A difference of NaN is a problem too, because the comparison is then False.
            problem = "" if difference <= BOUND else f"it differs from the XLA form by {difference:.1%}"
        except Exception as error:  # whatever a compiler or a driver raises
            difference, problem = None, first_line(error)
        results[name] = Result(name, problem, difference, time.monotonic() - began)

    began = time.monotonic()
    # Daemon threads, for which the interpreter does not wait at exit: a compilation cannot be interrupted.
    threads = [threading.Thread(target=check, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, began + LIMIT_SECONDS - time.monotonic()))
    late = Result("", f"it gave no result within {LIMIT_SECONDS:g} s", None, LIMIT_SECONDS)
    return [results.get(name, dataclasses.replace(late, kernel=name)) for name in names]


def _difference(name: str, variant: Variant) -> jax.Array:
    operation, implementation = name.split("=")
    make = {"attention": _attention_forms, "residual": _residual_forms}[operation]
    fused, plain, arguments, weights = make(implementation, variant)

    def value_and_gradients(form, arguments):
        def loss(*arguments):
            out = form(*arguments).astype(jnp.float32)
            return jnp.sum(weights * jnp.sin(out)), out * (weights != 0)

        (_, out), gradients = jax.value_and_grad(loss, tuple(range(len(arguments))), has_aux=True)(*arguments)
        return out, *gradients

    @jax.jit
    def compare(arguments):
        both = (value_and_gradients(form, arguments) for form in (fused, plain))
        # All comparisons are in one program, so that only one has to be compiled.
        return jnp.max(jnp.stack([_relative(*pair) for pair in zip(*both, strict=True)]))

    return compare(arguments)


def _relative(mine: jax.Array, theirs: jax.Array) -> jax.Array:
    mine, theirs = mine.astype(jnp.float32), theirs.astype(jnp.float32)
    return jnp.linalg.norm((mine - theirs).ravel()) / jnp.maximum(jnp.linalg.norm(theirs.ravel()), 1e-30)


def _attention_sizes(implementation: str, variant: Variant) -> tuple[int, float, int, list[int]]:
    """Returns the length of rows, the dropout rate, the window, and the lengths of rows with the window.

    The rate and the window are 0 where the kernel cannot compute those of the model.
    """

    def computes(**case):
        kernel = dispatch.find("attention", implementation)
        return kernel.why_not(AttentionCase(**case), platform.target()) is None

    # Local layers are checked too, in rows of which the kernel does not multiply all pairs.
    window = variant.local_window if computes(window=variant.local_window) else 0
    rate = variant.attention_dropout if computes(dropout_rate=variant.attention_dropout) else 0.0
    # The Triton kernel divides all rows into blocks, the Pallas kernel those of local layers and long ones.
    length = _LONG if window or implementation == "triton" else _LENGTH
    if implementation == "pallas" and variant.long_rows and computes(length=_LONGER):
        length = _LONGER
    # Local layers of rows that are one segment, and of longer ones.
    local_lengths = [n for n in sorted({_LONG, length}) if window and computes(length=n, window=window)]
    return length, rate, window, local_lengths


def _attention_forms(implementation: str, variant: Variant):
    rng = np.random.default_rng(0)
    length, rate, window, local_lengths = _attention_sizes(implementation, variant)
    # Two blocks of lanes, since the Pallas kernel computes in blocks of lanes.
    heads = max(2, 2 * LANES // variant.head_size)
    shape = (_ROWS, length, heads, variant.head_size)
    arrays = [jnp.asarray(rng.normal(size=shape), variant.dtype) for _ in range(3)]
    # The biases are one array, because the gradient of a key's bias alone is 0 up to rounding.
    biases = jnp.asarray(rng.normal(size=(3, *shape[2:])), jnp.float32)
    # The first row has two sequences and padding, whose outputs do not matter; the second has one sequence.
    ids = np.ones(shape[:2], np.int32)
    ids[0, 50:], ids[0, 110:] = 2, 0
    weights = rng.normal(size=shape) * (ids > 0)[:, :, None, None]
    weights = np.concatenate([x.ravel() for x in (weights, *[weights[:, :n] for n in local_lengths])])
    angles = None
    if variant.rotary:
        turned = rng.uniform(0, 9, (_ROWS, length, 1, variant.head_size // 2))
        angles = jnp.cos(turned), jnp.sin(turned)
    # As steep as the slopes of a model of eight heads.
    slopes = np.float32(2.0 ** -(1 + np.arange(heads) % 8)) if variant.alibi else None

    def form(implementation, query, key, value, biases):
        def attend(tokens, **options):
            return attention(
                *(x[:, :tokens] for x in (query, key, value, jnp.asarray(ids))),
                biases=tuple(biases),
                angles=angles and tuple(x[:, :tokens] for x in angles),
                slopes=slopes,
                implementation=implementation,
                **options,
            ).ravel()

        out = attend(length, dropout_rate=rate, dropout_key=jax.random.key(1) if rate else None)
        # Without dropout, whose masks are others where XLA computes local attention in blocks.
        return jnp.concatenate([out, *(attend(tokens, window=window) for tokens in local_lengths)])

    fused, plain = (functools.partial(form, name) for name in (implementation, "xla"))
    return fused, plain, (*arrays, biases), jnp.asarray(weights, jnp.float32)


def _residual_forms(implementation: str, variant: Variant):
    rng = np.random.default_rng(0)
    shape = (_ROWS, _LENGTH, variant.features)
    x, h = (jnp.asarray(rng.normal(size=shape), variant.dtype) for _ in range(2))
    bias, scale, offset = (jnp.asarray(rng.normal(size=shape[2:]), jnp.float32) for _ in range(3))
    weights = jnp.asarray(rng.normal(size=shape), jnp.float32)
    rate, key = variant.hidden_dropout, jax.random.key(1)

    def fused_before(x, h, scale, offset):
        normed, x = norm_beside(implementation, variant.norm, x, scale, offset, _EPSILON)
        return x + h * normed

    def plain_before(x, h, scale, offset):
        norm = {"layernorm": layer_norm, "rmsnorm": rms_norm}[variant.norm]
        return x + h * norm(x, scale, offset, _EPSILON)

    def fused_after(x, h, bias, scale, offset):
        return residual_norm(implementation, x, h, bias, scale, offset, epsilon=_EPSILON, rate=rate, key=key)

    def plain_after(x, h, bias, scale, offset):
        return layer_norm(x + dropout(h + bias.astype(h.dtype), key, rate), scale, offset, _EPSILON)

    if variant.norm_placement == "pre":
        return fused_before, plain_before, (x, h, scale, offset), weights
    return fused_after, plain_after, (x, h, bias, scale, offset), weights
