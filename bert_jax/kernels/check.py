"""Checks that the fused kernels give the same results on this device as the plain XLA programs.

A process that uses a TPU or GPU runs each kernel that its model may use once, on a small input, forward and
backward, before it traces anything. If a kernel raises or differs, `dispatch` does not use it for the rest of
the process and one warning is logged. If it was requested by name, the run ends. The processes of a run share
their results, so that all of them compile the same programs. A check takes about as long as compilation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from bert_jax.errors import UserError
from bert_jax.io.wording import first_line
from bert_jax.kernels import disentangled, dispatch, platform
from bert_jax.kernels.attention import attention
from bert_jax.kernels.dispatch import LANES, AttentionCase, KernelSpec
from bert_jax.kernels.dropout import dropout
from bert_jax.kernels.layer_norm import layer_norm
from bert_jax.kernels.tpu.residual import residual_norm

# Largest allowed difference of the output and of each gradient, relative to its norm. Two correct programs
# differ by the rounding of bfloat16, in which a TPU also multiplies float32: by 0.7% to 1.3% if the kernels
# are interpreted. A wrong mask, or one wrong row in a hundred, exceeds this bound.
BOUND = 0.03

# Models of long rows are checked with rows of several blocks, or segments, of each kernel.
_ROWS, _SHORT, _LONG = 2, 512, 1152

_checked: set[tuple[str, str]] = set()  # kernels and models of `ensure` in this process


def ensure(config, log: Callable[[str], None] = print) -> None:
    """Checks the kernels that a model may use on this process's device, unless they were already checked.

    Every process of a run has to call it, outside of tracing and before the model of this `EncoderConfig` is
    traced. `log` gets one line for each kernel that fails. If the configuration requests it by name,
    UserError is raised.
    """
    for name, difference in candidates(config).items():
        if (name, repr(config)) in _checked:
            continue
        _checked.add((name, repr(config)))
        problem, _ = run(difference)
        if jax.process_count() > 1 and multihost_utils.process_allgather(np.array(bool(problem))).any():
            problem = problem or "on another process of this run"
        if not problem:
            continue
        dispatch.disable_kernel(name, problem)
        if name == f"attention={config.attention}":
            raise UserError(f"model.{name} gives wrong results on this device: {problem}")
        log(f"warning: {name} failed its check on this device and is not used: {problem}")


def candidates(config) -> dict[str, Callable[[], float]]:
    """Returns the kernels that a model may use on this device, in any layer and at any length.

    The result has a function by the name of each kernel, which compares the kernel with its XLA form, in the
    sizes of the `EncoderConfig`, and returns the largest relative difference of the results and gradients.
    """
    target = platform.target()
    case = AttentionCase(_dtype(config), head_size=config.head_dim, position=config.position)
    kernels = dispatch.kernels(config.attention, target.platform)
    checks: dict[str, Callable[[], float]] = {
        kernel.name: functools.partial(_attention_difference, kernel, config)
        for kernel in kernels
        if kernel.why_not(case, target) is None
    }
    sizes = config.norm, None, config.hidden_size
    if config.norm_placement == "post" and dispatch.fuses_norm(config.attention, *sizes, target):
        checks[dispatch.NORM_KERNEL] = functools.partial(_norm_difference, config)
    return checks


def run(difference: Callable[[], float]) -> tuple[str, float | None]:
    """Returns the problem that a check of `candidates` finds, or "", and the difference or None."""
    try:
        value = difference()
    except Exception as error:  # whatever a compiler or a driver raises
        return first_line(error), None
    # NaN also counts as a problem, because the comparison is then False.
    return "" if value <= BOUND else f"it differs from the XLA form by {value:.1%}", value


def _attention_difference(kernel: KernelSpec, config) -> float:
    """Compares a kernel in global and in local layers."""
    # There is no kernel for disentangled attention in long rows.
    is_short = (
        config.position == "disentangled" or config.max_position_embeddings <= dispatch.LONGEST_WHOLE_ROW
    )
    length = _SHORT if is_short else _LONG
    # XLA computes local attention in blocks, which have different dropout masks.
    rates = {config.local_window: 0.0, 0: config.attention_probs_dropout_prob}
    differences = [0.0]
    for window, rate in rates.items():
        if kernel.why_not(AttentionCase(dropout_rate=rate), platform.target()) is not None:
            rate = 0.0
        case = AttentionCase(_dtype(config), length, None, config.head_dim, rate, window)
        if kernel.why_not(case, platform.target()) is None:
            differences.append(_difference_of_case(kernel.implementation, config, case))
    return float(np.max(differences))


def _dtype(config):
    return dispatch.resolve_dtype(config.dtype, platform.target())


def _difference_of_case(implementation, config, case) -> float:
    rng = np.random.default_rng(0)
    # Two blocks of lanes, since the Pallas kernel computes in blocks of lanes.
    shape = (_ROWS, case.length, max(2, 2 * LANES // config.head_dim), config.head_dim)
    query, key, value = (jnp.asarray(rng.normal(size=shape), _dtype(config)) for _ in range(3))
    # The biases are one array, because the gradient of the key's bias alone is 0 except for rounding errors.
    biases = jnp.asarray(rng.normal(size=(3, *shape[2:])), jnp.float32)
    # The first row has two sequences and padding, whose outputs do not matter; the second has one sequence.
    ids = np.ones(shape[:2], np.int32)
    ids[0, 150:], ids[0, 330:] = 2, 0
    weights = jnp.asarray(rng.normal(size=shape) * (ids > 0)[:, :, None, None], jnp.float32)
    angles = rng.uniform(0, 9, (_ROWS, case.length, 1, config.head_dim // 2))
    dropping = dict(
        dropout_rate=case.dropout_rate, dropout_key=jax.random.key(1) if case.dropout_rate else None
    )
    if config.position == "disentangled":
        tables = (
            jnp.asarray(rng.normal(size=(2 * case.length - 1, *shape[2:])), query.dtype) for _ in range(2)
        )
        forms = [
            functools.partial(
                disentangled.attend, sequence_ids=jnp.asarray(ids), implementation=one, **dropping
            )
            for one in (implementation, "xla")
        ]
        return _compare(forms, (query, key, value, *tables), weights)
    options = dict(
        angles=(jnp.cos(angles), jnp.sin(angles)) if config.position == "rotary" else None,
        causal=config.causal,
        window=case.window,
        **dropping,
        # The range of slopes in a model with eight heads.
        slopes=np.float32(2.0 ** -(1 + np.arange(shape[2]) % 8)) if config.position == "alibi" else None,
    )

    def attend(query, key, value, biases, *, implementation):
        biases = tuple(biases)
        return attention(query, key, value, ids, implementation=implementation, biases=biases, **options)

    forms = [functools.partial(attend, implementation=one) for one in (implementation, "xla")]
    return _compare(forms, (query, key, value, biases), weights)


def _norm_difference(config) -> float:
    rng = np.random.default_rng(0)
    shape = (_ROWS, _SHORT, config.hidden_size)
    x, h = (jnp.asarray(rng.normal(size=shape), _dtype(config)) for _ in range(2))
    bias, scale, offset = (jnp.asarray(rng.normal(size=shape[2:]), jnp.float32) for _ in range(3))
    dropping = dict(rate=config.hidden_dropout_prob, key=jax.random.key(1))

    def plain(x, h, bias, scale, offset):
        summed = x + dropout(h + bias.astype(h.dtype), **dropping)
        return layer_norm(summed, scale, offset, config.layer_norm_eps)

    fused = functools.partial(residual_norm, epsilon=config.layer_norm_eps, **dropping)
    weights = jnp.asarray(rng.normal(size=shape), jnp.float32)
    return _compare([fused, plain], (x, h, bias, scale, offset), weights)


def _compare(forms, inputs, weights) -> float:
    """Returns the largest difference of two functions and their gradients, where weights are nonzero."""

    def differentiate(form, inputs):
        def loss(*inputs):
            out = form(*inputs).astype(jnp.float32)
            return jnp.sum(weights * jnp.sin(out)), out * (weights != 0)

        (_, out), gradients = jax.value_and_grad(loss, range(len(inputs)), has_aux=True)(*inputs)
        return out, *gradients

    @jax.jit  # one program, so that only one has to be compiled
    def compare(inputs):
        pairs = zip(*(differentiate(form, inputs) for form in forms), strict=True)
        pairs = [(one.astype(jnp.float32).ravel(), other.astype(jnp.float32).ravel()) for one, other in pairs]
        return [jnp.linalg.norm(one - other) / jnp.linalg.norm(other) for one, other in pairs]

    return float(np.max(compare(inputs)))
