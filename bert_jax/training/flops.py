"""Model FLOPs computed from the parameter shapes, and the peak FLOP/s of devices."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.kernels import dispatch, matmul, platform
from bert_jax.models import parameters
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import LSTM, TOKEN_VECTORS
from bert_jax.models.parameters import layer_slices
from bert_jax.objectives.adapters import PartlyFrozen, encoder_config
from bert_jax.objectives.base import Objective
from bert_jax.objectives.causal_lm import CausalLM, CausalThenMasked
from bert_jax.objectives.classification import ClassificationAndLM
from bert_jax.objectives.distillation import LOGITS, Distillation
from bert_jax.objectives.embedding.denoising import DECODER, DenoisingAutoEncoder
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.replaced_tokens import GENERATOR, ReplacedTokens

# The inputs of each group's dense layers. As usual, output layers of a few classes are not counted.
_APPLIED_TO = {
    "encoder": "token",
    "mlm": "prediction",
    "pooler": "sequence",
    "head": "sequence",
    "discriminator": "token",
    DECODER: "sequence",
    LSTM: "token",
    TOKEN_VECTORS.name: "token",
}
_FACTORS = ("/kernel", "/recurrent")  # suffixes of the names of weights in matmuls


# Approximate compile time of a train step, fraction of an accelerator's peak, and FLOP/s on CPUs.
_COMPILE_SECONDS, _REACHED, _CPU_RATE = 10.0, 0.3, 5e10

# The order in which the parts of a layer are computed.
_ORDER = {
    "query": 1, "key": 1, "value": 1, "scores": 2, "attention_output": 3, "attention_adapter": 4,
    "intermediate": 6, "output": 7, "output_adapter": 8, "position_key": 1, "position_query": 1,
    "convolution": 10,
}  # fmt: skip
_NORMS = {"post": {"attention_norm": 5, "output_norm": 9}, "pre": {"attention_norm": 0, "output_norm": 5}}


@dataclasses.dataclass(frozen=True)
class RowFlops:
    """FLOPs of the forward and backward pass for one row, which a call returns.

    Only the FLOPs that the model requires are counted. Embedding lookups and rematerialization are free, and
    the masked LM head runs on the predicted positions only. Attention is counted over the whole row, even if
    packed sequences do not attend to each other, or tokens of a causal model to later ones. Local layers are
    counted for their windows only. Disentangled attention has a matmul of all pairs for each of its terms.
    The table of distances is multiplied once for all rows, which is not counted.

    A matmul has three parts of equal cost: the forward pass, and the gradients of its input and its weights.
    Frozen weights have no gradient, nor has an input if no parameter below it is trained.

    `token`, `prediction` and `sequence` are the multiplications in the matmuls of a forward pass for each
    token, predicted position and [CLS] token, each weighted by the fraction of the three parts that is
    computed. `scores` has this fraction for the matmuls of attention in each layer.
    """

    config: EncoderConfig
    token: float
    prediction: float
    sequence: float
    scores: tuple[float, ...]

    @classmethod
    def of(cls, objective: Objective, trains: Callable[[str], bool] | None = None) -> RowFlops:
        """Returns the FLOPs of an objective's model; a kernel that layers share counts once for each use.

        `trains` maps a parameter's name in a layer to whether it has a gradient; by default the objective
        decides.
        """
        config = encoder_config(objective)
        assert config is not None
        trains = trains or _weight_gradients(objective)
        boxed = objective.init_model_shapes
        numbers, axes = parameters.parameter_slices(boxed, config), parameters.layer_axes(boxed)
        shapes = parameters.parameter_shapes(boxed)
        names = {name: numbers[name].names if name in numbers else (name,) for name in shapes}
        everything = [each for every in names.values() for each in every]
        lowest = min((_place(each, config) for each in everything if trains(each)), default=(math.inf, 0))

        def share(name: str, weights: str) -> float:
            return (1 + (_place(name, config) > lowest) + trains(weights)) / 3

        predicts = "mlm" in boxed or isinstance(objective, MaskedLM | CausalLM | CausalThenMasked)
        decoder = config.num_hidden_layers - 1 if config.mask_decoder and predicts else None

        def uses(name: str) -> int:
            # The mask decoder is the last layer, applied to two sets of queries and one set of keys.
            layer, parts = _place(name, config)[0], name.split("/")
            return 2 if layer == decoder and "key" not in parts and "value" not in parts else 1

        counts = dict.fromkeys(("token", "prediction", "sequence"), 0.0)
        for name, shape in shapes.items():
            applied_to = _APPLIED_TO.get(name.split("/")[0])
            if applied_to and name.endswith(_FACTORS) and "/position_" not in name:
                size = math.prod(shape) / (len(names[name]) if name in axes else 1)
                counts[applied_to] += size * sum(uses(each) * share(each, each) for each in names[name])
        if predicts and "decoder" not in boxed.get("mlm", {}):  # the transposed word embeddings
            size = config.embedding_width * config.vocab_size
            counts["prediction"] += size * share("mlm", "encoder/embeddings/word_embeddings")
        layers = [f"encoder/layers/{layer}/scores" for layer in range(config.num_hidden_layers)]
        # Both operands of these matmuls are activations. A BiLSTM has no encoder layers and no attention.
        scores = tuple(
            bool(numbers) * uses(each) * (1 + 2 * (_place(each, config) > lowest)) / 3 for each in layers
        )
        return cls(config, **counts, scores=scores)

    def __call__(self, length: int, predictions: int = 0, sequences: int = 1) -> float:
        """Returns the FLOPs of a row of `length` tokens, padding included.

        `predictions` counts the predicted positions in the row, `sequences` the [CLS] tokens.
        """
        scores, terms = 0.0, 2
        if self.config.position == "disentangled":
            terms += len(self.config.position_attention.split("|"))
        for each in layer_slices(self.config):
            seen = min(length, 2 * each.window + 1) if each.window else length
            uses = sum(self.scores[layer] for layer in each.numbers)
            scores += uses * terms * self.config.hidden_size * length * seen
        products = self.token * length + self.prediction * predictions + self.sequence * sequences
        return 6.0 * (products + scores)


def row_flops(objective: Objective, left_to_right: bool = False) -> Callable[..., float]:
    """Returns the function (length, predictions=0, sequences=1) that returns the model FLOPs of one row.

    They include all models that a step computes. A model without a backward pass counts for one third. With
    `left_to_right`, it is a step of the causal phase of `CausalThenMasked`.
    """
    trains = _weight_gradients(objective)
    while isinstance(objective, PartlyFrozen):
        objective = objective.objective
    if isinstance(objective, CausalThenMasked):
        objective = objective.causal if left_to_right else objective.masked
    if isinstance(objective, Distillation):
        teacher = RowFlops.of(objective.teacher, lambda name: True)
    if isinstance(objective, ReplacedTokens):
        generator = RowFlops.of(objective.generator, lambda name: trains(f"{GENERATOR}/{name}"))
    model = RowFlops.of(objective.student if isinstance(objective, Distillation) else objective, trains)

    def of_row(length: int, predictions: int = 0, sequences: int = 1) -> float:
        if isinstance(objective, Distillation):
            predictions = length if objective.predicts_everywhere else predictions
            of_teacher = teacher(length, predictions * (LOGITS in objective.factors), sequences)
            return model(length, predictions * objective.uses_heads, sequences) + of_teacher / 3
        if isinstance(objective, ReplacedTokens):
            return model(length, 0, 0) + generator(length, predictions, 0)
        if isinstance(objective, DenoisingAutoEncoder):  # the decoder, and the encoder
            return model(length, length, sequences) + model(length, 0, 0)
        if isinstance(objective, CausalLM):
            return model(length, length, 0)
        if isinstance(objective, ClassificationAndLM):
            return model(length, length, sequences)
        return model(length, predictions, sequences)

    return of_row


def _weight_gradients(objective: Objective) -> Callable[[str], bool]:
    return objective.has_gradient if isinstance(objective, PartlyFrozen) else lambda name: True


def _place(name: str, config: EncoderConfig) -> tuple[float, int]:
    group, *parts = name.split("/")
    if group != "encoder" or parts[0] == "final_norm":
        return config.num_hidden_layers, 0
    if parts[0] != "layers":
        return -1, int(parts[-1] == "kernel")  # the projection of the embeddings follows their sum
    return int(parts[1]), (_ORDER | _NORMS[config.norm_placement])[parts[2]]


class Peak(NamedTuple):
    """Peak FLOP/s of one JAX device, without sparsity, in matmuls of bfloat16 and of float32 operands.

    The two cores of a TPU v4 or v5p chip are one JAX device. Each of the two cores of a TPU v2, v3 or TPU7x
    chip is a device, with half of the chip's peak (https://cloud.google.com/tpu/docs/v3, docs/tpu7x).
    """

    bfloat16: float
    float32: float


def _tpu(bfloat16: float) -> Peak:
    return Peak(bfloat16, bfloat16)


# With JAX's default precision, XLA rounds float32 operands to bfloat16 on TPUs, and to TF32 on NVIDIA GPUs
# since Ampere. Older GPUs support neither TF32 nor bfloat16 matmuls, so XLA computes both in float32.
PEAKS = {
    "TPU v2": _tpu(45e12 / 2),
    "TPU v3": _tpu(123e12 / 2),
    "TPU v4": _tpu(275e12),
    "TPU v5 lite": _tpu(197e12),
    "TPU v5e": _tpu(197e12),
    "TPU v5": _tpu(459e12),
    "TPU v5p": _tpu(459e12),
    "TPU v6 lite": _tpu(918e12),
    "TPU v6e": _tpu(918e12),
    "TPU7x": _tpu(2307e12 / 2),
    "T4": Peak(8.1e12, 8.1e12),
    "V100": Peak(15.7e12, 15.7e12),
    "A10": Peak(125e12, 62.5e12),
    "A10G": Peak(70e12, 35e12),
    "A100": Peak(312e12, 156e12),
    "L4": Peak(121e12, 60.5e12),
    "L40": Peak(181e12, 90.5e12),
    "L40S": Peak(362e12, 183e12),
    "H100": Peak(989e12, 494.5e12),
    "H100 PCIe": Peak(756e12, 378e12),
    "H100 NVL": Peak(835e12, 417.5e12),
    "H200": Peak(989e12, 494.5e12),
    "GH200": Peak(989e12, 494.5e12),
    "B200": Peak(2250e12, 1125e12),
}


@functools.cache
def find_peak(device_kind: str) -> Peak | None:
    """Returns the peak for a `jax.Device.device_kind`, such as "NVIDIA A100-SXM4-40GB", or None."""
    for name in sorted(PEAKS, key=len, reverse=True):
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", device_kind, re.IGNORECASE):
            return PEAKS[name]
    return None


def peak_flops(device: jax.Device, dtype: str) -> float:
    """Returns the peak FLOP/s of one device in matmuls of "float32", "bfloat16" or "auto" operands.

    It is taken from the vendor's data sheet if `PEAKS` has the device's kind, and is otherwise measured with
    a few large matmuls.
    """
    dtype = dispatch.resolve_dtype(dtype, platform.target_of(device))
    if peak := find_peak(device.device_kind):
        return getattr(peak, dtype)
    return measured_matrix_rate(device.platform, dtype) / len(jax.local_devices(backend=device.platform))


def compilation_flops(mesh: jax.sharding.Mesh, dtype: str) -> float:
    """Returns an estimate, the same in each start of a run, of the FLOPs in a train step's compile time."""
    device = mesh.devices.flat[0]
    if find_peak(device.device_kind) is None:
        return _COMPILE_SECONDS * _CPU_RATE
    return _COMPILE_SECONDS * _REACHED * mesh.size * peak_flops(device, dtype)


def share_of_peak(rate: float, peak: float) -> float | None:
    """Returns `rate / peak`, both in FLOP/s; None if the peak is 0, not known, or measured too low."""
    return rate / peak if 0 < rate <= peak else None


@functools.cache
def measured_matrix_rate(platform: str, dtype: str) -> float:
    """Returns the FLOP/s of the fastest of ten matmuls of 2048 x 2048 matrices on the host's CPUs."""
    size = 2048
    x = jax.device_put(jnp.ones((size, size), dtype), jax.local_devices(backend=platform)[0])
    product = jax.jit(lambda x: matmul.matmul(x, x, (1, 0)))
    product(x).block_until_ready()
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        product(x).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
