"""Model FLOPs computed from the parameter shapes, and the peak FLOP/s of devices."""

from __future__ import annotations

import dataclasses
import functools
import math
import time

import jax
import jax.numpy as jnp

from bert_jax.kernels import dispatch, platform
from bert_jax.models import parameters
from bert_jax.models.config import EncoderConfig
from bert_jax.models.runs import layer_runs
from bert_jax.objectives.adapters import encoder_config
from bert_jax.objectives.base import Objective
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.training.metrics import peaks

# What the dense layers of a parameter group are applied to. As usual, output layers of a few classes are not
# counted.
_APPLIED_TO = {
    "encoder": "token",
    "mlm": "prediction",
    "pooler": "sequence",
    "head": "sequence",
    "discriminator": "token",
}


@dataclasses.dataclass(frozen=True)
class RowFlops:
    """FLOPs of the forward and backward pass for one row, which a call returns.

    Only the FLOPs that the model requires are counted. Embedding lookups and rematerialization are free, and
    the masked LM head runs on the predicted positions only. Attention is counted over the whole row, even if
    packed sequences do not attend to each other; local layers are counted for their windows only.

    Attributes:
        config: the architecture of the encoder.
        token: multiplications in the matrix products of a forward pass for each token.
        prediction: those for each masked position.
        sequence: those for each [CLS] token.
    """

    config: EncoderConfig
    token: int
    prediction: int
    sequence: int

    @classmethod
    def of(cls, objective: Objective) -> RowFlops:
        """Returns the FLOPs of an objective's model, from the shapes of its parameters.

        A kernel that layers share counts once for each use.

        Args:
            objective: an objective with the configuration of its encoder, before parameters are frozen.
        """
        config = encoder_config(objective)
        assert config is not None
        boxed = jax.eval_shape(objective.init, jax.random.key(0))
        numbers, axes = parameters.layer_numbers(boxed, config), parameters.layer_axes(boxed)
        counts = dict.fromkeys(("token", "prediction", "sequence"), 0)
        for name, shape in parameters.parameter_shapes(boxed).items():
            applied_to = _APPLIED_TO.get(name.split("/")[0])
            if applied_to and name.endswith("/kernel"):
                uses = len(numbers[name].numbers) if name in numbers and name not in axes else 1
                counts[applied_to] += uses * math.prod(shape)
        predicts = "mlm" in boxed or isinstance(objective, MaskedLM)
        if predicts and "decoder" not in boxed.get("mlm", {}):  # the transposed word embeddings
            counts["prediction"] += config.embedding_width * config.vocab_size
        return cls(config, **counts)

    def __call__(self, length: int, predictions: int = 0, sequences: int = 1) -> float:
        """Returns the FLOPs of a row.

        Args:
            length: tokens in the row, padding included.
            predictions: masked positions in the row.
            sequences: [CLS] tokens in the row.
        """
        scores = 0
        for run in layer_runs(self.config):
            for spec in run.layers:
                seen = min(length, 2 * spec.window + 1) if spec.window else length
                scores += run.repeats * 2 * self.config.hidden_size * length * seen
        products = self.token * length + self.prediction * predictions + self.sequence * sequences
        return 6.0 * (products + scores)


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
