"""Checks that the fused kernels compute on this device what the plain XLA programs compute.

A process that uses a TPU or GPU runs each kernel that its model may use once, on a small input, forward and
backward, before it traces anything. If a kernel raises or differs, `dispatch` does not use it for the rest of
the process and there is one warning; if it was requested by name, the run ends. The processes of a run decide
together, so that all of them compile the same programs. A check takes about as long as compiling the kernel.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from bert_jax.errors import UserError
from bert_jax.io.wording import first_line
from bert_jax.kernels import dispatch, platform
from bert_jax.kernels.attention import attention
from bert_jax.kernels.dispatch import LANES, AttentionCase, KernelSpec, ResidualCase
from bert_jax.kernels.dropout import dropout
from bert_jax.kernels.layer_norm import layer_norm, rms_norm
from bert_jax.kernels.tpu.residual import norm_and_input, residual_norm

# Largest allowed difference of the output and of each gradient, relative to its norm. Two correct programs
# differ by the rounding of bfloat16, in which a TPU also multiplies float32: by 0.7% to 1.3% where the
# kernels are interpreted. A wrong mask, or one wrong row in a hundred, differs by more than this bound.
BOUND = 0.03

# The longest rows have several blocks, or segments, of each kernel.
_ROWS, _LENGTH, _LONG, _LONGER = 2, 128, 384, 1152
_EPSILON = 1e-12


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


_results: dict[tuple[str, str], Result] = {}  # of the checks that `ensure` has made in this process


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
    missing = [kernel for kernel in candidates(config) if (kernel.name, repr(config)) not in _results]
    if not missing:
        return
    results = [run(kernel, config) for kernel in missing]
    failed = np.array([bool(result.problem) for result in results])
    if jax.process_count() > 1:
        failed = multihost_utils.process_allgather(failed).reshape(-1, len(failed)).any(axis=0)
    for result, has_failed in zip(results, failed, strict=True):
        _results[result.kernel, repr(config)] = result
        if not has_failed:
            continue
        problem = result.problem or "on another process of this run"
        dispatch.disable_kernel(result.kernel, problem)
        if result.kernel == f"attention={config.execution.attention}":
            raise UserError(f"{result.kernel} failed its check on this device: {problem}; use attention=auto")
        log(f"warning: {result.kernel} failed its check on this device and is not used: {problem}")


def candidates(config) -> list[KernelSpec]:
    """Returns the kernels that a model may use on this device, in any layer and at any length."""
    target = platform.target()
    attention_case = AttentionCase(_dtype(config), head_size=config.head_dim, bias=config.position == "alibi")
    residual_case = ResidualCase(None, config.hidden_size, config.norm_placement, config.norm)
    return [
        kernel
        for operation, case in (("attention", attention_case), ("residual", residual_case))
        for kernel in dispatch.kernels(operation, config.execution.attention, target.platform)
        if kernel.why_not(case, target) is None
    ]


def run(kernel: KernelSpec, config) -> Result:
    """Compares a kernel with its XLA form for the dtype, sizes and dropout rates of an `EncoderConfig`."""
    began = time.monotonic()
    differences = {"attention": _attention_differences, "residual": _residual_differences}[kernel.operation]
    try:
        difference = max(float(x) for x in differences(kernel, config))
        # A difference of NaN is a problem too, because the comparison is then False.
        problem = "" if difference <= BOUND else f"it differs from the XLA form by {difference:.1%}"
    except Exception as error:  # whatever a compiler or a driver raises
        difference, problem = None, first_line(error)
    return Result(kernel.name, problem, difference, time.monotonic() - began)


def _dtype(config):
    return dispatch.resolve_dtype(config.execution.dtype, platform.target())


def _differences(fused, plain, arguments, weights):
    """Returns the relative differences of the results and the gradients of two functions of `arguments`."""

    def value_and_gradients(form, arguments):
        def loss(*arguments):
            out = form(*arguments).astype(jnp.float32)
            return jnp.sum(weights * jnp.sin(out)), out * (weights != 0)

        (_, out), gradients = jax.value_and_grad(loss, tuple(range(len(arguments))), has_aux=True)(*arguments)
        return out, *gradients

    @jax.jit  # one program, so that only one has to be compiled
    def compare(arguments):
        both = (value_and_gradients(form, arguments) for form in (fused, plain))
        return [_relative(*pair) for pair in zip(*both, strict=True)]

    return compare(arguments)


def _relative(left, right):
    left, right = left.astype(jnp.float32), right.astype(jnp.float32)
    return jnp.linalg.norm((left - right).ravel()) / jnp.maximum(jnp.linalg.norm(right.ravel()), 1e-30)


def _attention_differences(kernel, config):
    """Yields the differences in global layers, and in local ones of rows of one and of several segments."""
    longest = _LONGER if config.max_position_embeddings > dispatch.LONGEST_WHOLE_ROW else _LENGTH
    cases = [(longest, 0, config.attention_probs_dropout_prob)]
    if window := config.local_window:
        # Without dropout, whose masks are others where XLA computes local attention in blocks.
        cases += [(length, window, 0.0) for length in sorted({_LONG, max(_LONG, longest)})]
    for length, window, rate in cases:
        case = AttentionCase(_dtype(config), length, None, config.head_dim, rate, window)
        if kernel.why_not(case, platform.target()) is not None:
            if window or kernel.why_not(dataclasses.replace(case, dropout_rate=0.0), platform.target()):
                continue
            rate = 0.0
        yield from _differences(*_attention_forms(kernel.implementation, config, length, window, rate))


def _attention_forms(implementation, config, length, window, rate):
    rng = np.random.default_rng(0)
    # Two blocks of lanes, since the Pallas kernel computes in blocks of lanes.
    heads = max(2, 2 * LANES // config.head_dim)
    shape = (_ROWS, length, heads, config.head_dim)
    arrays = [jnp.asarray(rng.normal(size=shape), _dtype(config)) for _ in range(3)]
    # The biases are one array, because the gradient of a key's bias alone is 0 up to rounding.
    biases = jnp.asarray(rng.normal(size=(3, *shape[2:])), jnp.float32)
    # The first row has two sequences and padding, whose outputs do not matter; the second has one sequence.
    ids = np.ones(shape[:2], np.int32)
    ids[0, 50:], ids[0, 110:] = 2, 0
    weights = jnp.asarray(rng.normal(size=shape) * (ids > 0)[:, :, None, None], jnp.float32)
    angles = rng.uniform(0, 9, (_ROWS, length, 1, config.head_dim // 2))

    def form(implementation):
        return lambda query, key, value, biases: attention(
            query,
            key,
            value,
            jnp.asarray(ids),
            implementation=implementation,
            biases=tuple(biases),
            angles=(jnp.cos(angles), jnp.sin(angles)) if config.position == "rotary" else None,
            causal=config.causal,
            window=window,
            # As steep as the slopes of a model of eight heads.
            slopes=np.float32(2.0 ** -(1 + np.arange(heads) % 8)) if config.position == "alibi" else None,
            dropout_rate=rate,
            dropout_key=jax.random.key(1) if rate else None,
        )

    return form(implementation), form("xla"), (*arrays, biases), weights


def _residual_differences(kernel, config):
    rng = np.random.default_rng(0)
    shape = (_ROWS, _LENGTH, config.hidden_size)
    x, h = (jnp.asarray(rng.normal(size=shape), _dtype(config)) for _ in range(2))
    bias, scale, offset = (jnp.asarray(rng.normal(size=shape[2:]), jnp.float32) for _ in range(3))
    weights = jnp.asarray(rng.normal(size=shape), jnp.float32)
    rate, key = config.hidden_dropout_prob, jax.random.key(1)

    def fused_pre(x, h, scale, offset):
        normed, x = norm_and_input(config.norm, x, scale, offset, _EPSILON)
        return x + h * normed

    def plain_pre(x, h, scale, offset):
        norm = {"layernorm": layer_norm, "rmsnorm": rms_norm}[config.norm]
        return x + h * norm(x, scale, offset, _EPSILON)

    def fused_post(x, h, bias, scale, offset):
        return residual_norm(x, h, bias, scale, offset, epsilon=_EPSILON, rate=rate, key=key)

    def plain_post(x, h, bias, scale, offset):
        return layer_norm(x + dropout(h + bias.astype(h.dtype), key, rate), scale, offset, _EPSILON)

    if config.norm_placement == "pre":
        return _differences(fused_pre, plain_pre, (x, h, scale, offset), weights)
    return _differences(fused_post, plain_post, (x, h, bias, scale, offset), weights)
