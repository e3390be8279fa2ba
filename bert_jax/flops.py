"""Model FLOPs by formula, and the rate that the device can reach."""

from __future__ import annotations

import functools
import time

import jax
import jax.numpy as jnp

from bert_jax.config import BertConfig

# Dense bf16 peaks by the vendors' data sheets, FLOP/s a device (a TensorCore pair counts as one v4 or v5p
# chip).
_PEAK_BF16 = {
    "TPU v2": 45e12,
    "TPU v3": 123e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "V100": 125e12,
    "A100": 312e12,
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
    "L4": 121e12,
    "A10G": 70e12,
    "T4": 65e12,
}


def train_flops_per_row(config: BertConfig, length: int, predictions: int, sequences: int = 1) -> float:
    """Forward and backward FLOPs of one row of pre-training.

    Counts what the model needs: look-ups and rematerialisation are free, the masked LM head runs on the
        predicted positions, attention is counted whole also where packed sequences do not see each other.

    Args:
      config: the architecture.
      length: tokens in the row, padding included.
      predictions: masked positions in the row.
      sequences: [CLS] tokens in the row.
    """
    hidden, layers = config.hidden_size, config.num_hidden_layers
    products = layers * (4 * hidden * hidden + 2 * hidden * config.intermediate_size) * length
    scores = 2 * layers * hidden * length * length
    head = predictions * (hidden * hidden + hidden * config.vocab_size)
    pooler = sequences * hidden * hidden
    return 6.0 * (products + scores + head + pooler)


def peak_flops(device: jax.Device, dtype: str) -> float:
    """FLOP/s that one device can reach: the data sheet's where known, else the best of a few large matrix
    products."""
    for name in sorted(_PEAK_BF16, key=len, reverse=True):
        if name.lower() in device.device_kind.lower():
            return _PEAK_BF16[name]
    return measured_matrix_rate(device.platform, dtype) / max(
        1, len(jax.local_devices(backend=device.platform))
    )


@functools.cache
def measured_matrix_rate(platform: str, dtype: str) -> float:
    """Best of ten products of 2048 x 2048 matrices, in FLOP/s of the whole host when the platform is its
    CPU."""
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
