"""Model FLOPs from the shapes of the parameters, and the rate that the device can reach."""

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
from bert_jax.training import peaks


def train_flops_per_row(config: EncoderConfig, length: int, predictions: int, sequences: int = 1) -> float:
    """Forward and backward FLOPs of one row of pre-training.

    Counts what the model needs: look-ups and rematerialisation are free, the masked LM head runs on the
        predicted positions, attention is counted whole also where packed sequences do not see each other,
        but local layers for their windows only.

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
    """Multiplications of the matrix products of a forward pass: for each token, prediction and sequence."""

    token: int
    prediction: int
    sequence: int


@functools.lru_cache(maxsize=64)
def _products(config: EncoderConfig) -> _Products:
    """Returns the sizes of all kernels, those of layers that share one as often as they use it."""
    boxed = parameters.abstract(PretrainingModel(config), 6)
    numbers, axes = parameters.layer_numbers(boxed, config), parameters.layer_axes(boxed)
    counts = collections.Counter()
    for name, shape in parameters.parameter_shapes(boxed).items():
        if name.endswith("/kernel"):
            uses = len(numbers[name].numbers) if name in numbers and name not in axes else 1
            counts[name.split("/")[0]] += uses * math.prod(shape)
    decoder = config.embedding_width * config.vocab_size
    # The next-sentence head's two rows are not counted, as in the usual formula.
    return _Products(counts["encoder"], counts["mlm"] + decoder, counts["pooler"])


def peak_flops(device: jax.Device, dtype: str) -> float:
    """FLOP/s of matrix products that one device can reach.

    Args:
      device: where `bert_jax.training.peaks` knows its kind, the data sheet's figure is taken, else the best
          of a few large matrix products is measured.
      dtype: "float32", "bfloat16" or "auto", of the products.
    """
    dtype = dispatch.resolve_dtype(dtype, platform.target_of(device))
    peak = peaks.find(device.device_kind)
    if peak is not None:
        return peak.of(dtype)
    return measured_matrix_rate(device.platform, dtype) / max(
        1, len(jax.local_devices(backend=device.platform))
    )


def share_of_peak(rate: float, peak: float) -> float | None:
    """The model FLOPs utilization (MFU): `rate` by `peak`, both in FLOP/s.

    None where no peak is known, and where the rate is above it: a peak that was measured while other programs
    ran is too low, and no share of it is right.
    """
    return rate / peak if 0 < rate <= peak else None


@functools.cache
def measured_matrix_rate(platform: str, dtype: str) -> float:
    """FLOP/s of the best of ten products of 2048 x 2048 matrices; on a CPU, of the whole host."""
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
