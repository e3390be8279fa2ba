"""Model FLOPs computed from the parameter shapes, and the peak FLOP/s of devices."""

from __future__ import annotations

import collections
import functools
import math
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.kernels import dispatch, platform
from bert_jax.models import PretrainingModel, parameters
from bert_jax.models.config import EncoderConfig, Execution
from bert_jax.models.runs import layer_runs
from bert_jax.training.metrics import peaks


def train_flops_per_row(config: EncoderConfig, length: int, predictions: int, sequences: int = 1) -> float:
    """Returns the FLOPs of the forward and backward pass for one row of pre-training.

    Only the FLOPs that the model requires are counted. Embedding lookups and rematerialization are free, and
    the masked LM head runs on the predicted positions only. Attention is counted over the whole row, even if
    packed sequences do not attend to each other; local layers are counted for their windows only.

    Args:
        config: the architecture.
        length: tokens in the row, padding included.
        predictions: masked positions in the row.
        sequences: [CLS] tokens in the row.
    """
    products = _products(config.replace(execution=Execution()))
    scores = 0
    for run in layer_runs(config):
        for spec in run.layers:
            seen = min(length, 2 * spec.window + 1) if spec.window else length
            scores += run.repeats * 2 * config.hidden_size * length * seen
    total = products.token * length + products.prediction * predictions + products.sequence * sequences
    return 6.0 * (total + scores)


class _Products(NamedTuple):
    """Multiplications in the matrix products of a forward pass, per token, prediction and sequence."""

    token: int
    prediction: int
    sequence: int


@functools.lru_cache(maxsize=64)
def _products(config: EncoderConfig) -> _Products:
    """Returns the total sizes of the kernels. A kernel that layers share counts once for each use."""
    boxed = parameters.abstract(PretrainingModel(config), 6)
    numbers, axes = parameters.layer_numbers(boxed, config), parameters.layer_axes(boxed)
    counts: collections.Counter[str] = collections.Counter()
    for name, shape in parameters.parameter_shapes(boxed).items():
        if name.endswith("/kernel"):
            uses = len(numbers[name].numbers) if name in numbers and name not in axes else 1
            counts[name.split("/")[0]] += uses * math.prod(shape)
    decoder = config.embedding_width * config.vocab_size
    # As usual, the next-sentence head's kernel of [hidden_size, 2] is not counted.
    return _Products(counts["encoder"], counts["mlm"] + decoder, counts["pooler"])


def peak_flops(device: jax.Device, dtype: str) -> float:
    """Returns the peak FLOP/s of one device in matrix products.

    Args:
        device: the device. The peak is that of the vendor's data sheet if `training.metrics.peaks` has the
            device's kind, and is measured with a few large matrix products otherwise.
        dtype: the dtype of the products: "float32", "bfloat16" or "auto".
    """
    dtype = dispatch.resolve_dtype(dtype, platform.target_of(device))
    peak = peaks.find(device.device_kind)
    if peak is not None:
        return peak.of(dtype)
    return measured_matrix_rate(device.platform, dtype) / max(
        1, len(jax.local_devices(backend=device.platform))
    )


def share_of_peak(rate: float, peak: float) -> float | None:
    """Returns the model FLOPs utilization (MFU), `rate / peak`, both in FLOP/s.

    The result is None if the peak is not known (0), or if the rate exceeds it. The latter happens if the peak
    was measured while other programs ran, and is therefore too low to be used.
    """
    return rate / peak if 0 < rate <= peak else None


@functools.cache
def measured_matrix_rate(platform: str, dtype: str) -> float:
    """Returns the FLOP/s of the fastest of ten products of 2048 x 2048 matrices.

    On a CPU, this is the rate of the whole host.
    """
    size = 2048
    x = jax.device_put(jnp.ones((size, size), dtype), jax.local_devices(backend=platform)[0])
    product = jax.jit(jnp.dot)
    product(x, x).block_until_ready()
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        product(x, x).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
