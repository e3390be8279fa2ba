"""The architecture of a BERT encoder, the named sizes, and how many parameters each has."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io import json_files
from bert_jax.kernels import dispatch
from bert_jax.kernels.dispatch import AttentionCase, ResidualCase, Target

ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
ATTENTION_IMPLEMENTATIONS = ("auto", "xla", "cudnn", "pallas", "splash")
RESIDUAL_IMPLEMENTATIONS = ("auto", "xla", "pallas")
REMAT_POLICIES = ("none", "full", "dots")

# Other spellings of the same activations: google-research/bert after February 2019 means tanh by "gelu_new".
_ACTIVATION_SYNONYMS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_erf": "gelu"}


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """Architecture (Devlin et al. 2019, section 3) and how it is executed.

    The first group of fields has the names of a released `bert_config.json` and decides the parameters and
    the function; the second decides only how that function is computed.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"  # "gelu" is the exact one (erf), "gelu_tanh" its approximation
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    causal: bool = False  # left-to-right attention, the paper's ablation (section 5.1)

    # Of activations and matrix products; parameters are always float32. "auto" is bfloat16 on TPU and GPU and
    # float32 on CPU.
    dtype: str = "auto"
    # "xla", "cudnn" (NVIDIA), "pallas" or "splash" (TPU); "auto" chooses, see kernels/dispatch.py.
    attention: str = "auto"
    residual: str = "auto"  # dropout, sum and LayerNorm: "xla", "pallas" (TPU); "auto" chooses
    remat: str = "none"  # "full" keeps only each layer's input for the backward pass, "dots" the products too
    scan_unroll: int = 1  # layers per iteration of the scan; 0 unrolls all of them

    def __post_init__(self):
        for field in dataclasses.fields(self):
            _check_type(field.name, getattr(self, field.name), _TYPES[field.type])
        object.__setattr__(self, "hidden_act", _ACTIVATION_SYNONYMS.get(self.hidden_act, self.hidden_act))
        for name, allowed in (
            ("hidden_act", ACTIVATIONS),
            ("attention", ATTENTION_IMPLEMENTATIONS),
            ("residual", RESIDUAL_IMPLEMENTATIONS),
            ("remat", REMAT_POLICIES),
            ("dtype", dispatch.DTYPES),
        ):
            if getattr(self, name) not in allowed:
                raise UserError(
                    f"{name}={getattr(self, name)!r} is unknown; choose one of {', '.join(allowed)}"
                )
        for name in (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "type_vocab_size",
        ):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be in [0, 1)")
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"hidden_size={self.hidden_size} must be a multiple of "
                f"num_attention_heads={self.num_attention_heads}"
            )
        if self.scan_unroll < 0:
            raise UserError(f"scan_unroll={self.scan_unroll} must be 0 (all layers) or more")
        dispatch.check_case(
            "attention",
            self.attention,
            AttentionCase(
                dtype=None if self.dtype == "auto" else self.dtype,
                head_size=self.head_dim,
                dropout_rate=self.attention_probs_dropout_prob,
            ),
        )
        dispatch.check_case("residual", self.residual, ResidualCase(features=self.hidden_size))

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def replace(self, **changes: Any) -> EncoderConfig:
        return dataclasses.replace(self, **changes)

    def resolve(self, target: Target) -> EncoderConfig:
        """The configuration with the dtype that "auto" means on a device."""
        return self.replace(dtype=dispatch.resolve_dtype(self.dtype, target))

    def for_inference(self, target: Target, dtype: str = "auto") -> EncoderConfig:
        """The configuration that a checkpoint is used with on a device, wherever it was trained.

        Kernels are chosen anew, unless the checkpoint was trained without any. By default the dtype is the
        one of training, except that a CPU computes in float32.

        Args:
            target: the device.
            dtype: "auto", "float32" or "bfloat16".
        """
        if dtype == "auto":
            dtype = dispatch.resolve_dtype("auto", target)
            if dtype != "float32" and self.dtype != "auto":
                dtype = self.dtype
        kernels = {
            name: "xla" if getattr(self, name) == "xla" else "auto" for name in ("attention", "residual")
        }
        return self.replace(dtype=dtype, remat="none", **kernels)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


# By the annotation of a field; no size of a model is near the limit.
_TYPES = {"int": range(-1, 1 << 31), "float": float, "str": str, "bool": bool}


def _check_type(name: str, value: Any, expected: Any) -> None:
    if not json_files.is_of(value, expected):
        what = "a whole number below 2^31" if isinstance(expected, range) else json_files.describe(expected)
        raise UserError(f"{name}={value!r:.60}: expected {what}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name}={value}: expected a finite number")


EXECUTION_FIELDS = ("dtype", "attention", "residual", "remat", "scan_unroll")

# Fields that a run decides, whatever checkpoint it starts from; the others are the checkpoint's.
RUN_FIELDS = (*EXECUTION_FIELDS, "hidden_dropout_prob", "attention_probs_dropout_prob")

# Fields that decide the shapes of the parameters.
SIZE_FIELDS = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "vocab_size",
)


def _size(layers: int, hidden: int, heads: int | None = None) -> dict[str, int]:
    return dict(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads or hidden // 64,
        intermediate_size=4 * hidden,
    )


# Base and Large: the paper, section 3. The 24 small ones: Turc et al. 2019, named L-<layers>_H-<hidden>.
SIZES: dict[str, dict[str, int]] = {
    "tiny": _size(2, 128),
    "mini": _size(4, 256),
    "small": _size(4, 512),
    "medium": _size(8, 512),
    "base": _size(12, 768),
    "large": _size(24, 1024),
    "base_cased": _size(12, 768) | dict(vocab_size=28996),
    "large_cased": _size(24, 1024) | dict(vocab_size=28996),
    "base_multilingual_cased": _size(12, 768) | dict(vocab_size=119547),
    "base_multilingual_uncased": _size(12, 768) | dict(vocab_size=105879),
    "base_chinese": _size(12, 768) | dict(vocab_size=21128),
} | {
    f"L-{layers}_H-{hidden}": _size(layers, hidden)
    for layers in (2, 4, 6, 8, 10, 12)
    for hidden in (128, 256, 512, 768)
}


def named(size: str, **overrides: Any) -> EncoderConfig:
    """The configuration of a named size, with fields overridden. Raises UserError for an unknown name or
    field.
    """
    if size not in SIZES:
        near = difflib.get_close_matches(size, SIZES, n=1)
        hint = f"did you mean {near[0]}? The sizes are" if near else "choose one of"
        raise UserError(f"model size {size!r} is unknown; {hint} {', '.join(SIZES)}")
    return from_dict(SIZES[size] | overrides)


def from_dict(fields: Mapping[str, Any], *, ignore_unknown: bool = False) -> EncoderConfig:
    """A configuration from a mapping; unknown fields are refused unless `ignore_unknown`."""
    known = {field.name for field in dataclasses.fields(EncoderConfig)}
    unknown = sorted(set(fields) - known)
    if unknown and not ignore_unknown:
        raise UserError(f"model has no field {', '.join(unknown)}; its fields are {', '.join(sorted(known))}")
    return EncoderConfig(**{name: value for name, value in fields.items() if name in known})


def from_json(text: str) -> EncoderConfig:
    """Reads a released `bert_config.json`. Unknown keys are ignored, as google-research/bert does."""
    return from_dict(json_files.parse(text, "the model configuration"), ignore_unknown=True)


def parameter_count(config: EncoderConfig, *, heads: bool = False) -> int:
    """Parameters of encoder and pooler; with `heads`, also of the masked LM and next-sentence heads.

    The masked LM decoder is tied to the word embeddings and adds only its output bias.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    embeddings = (config.vocab_size + config.max_position_embeddings + config.type_vocab_size + 2) * hidden
    attention = 4 * (hidden * hidden + hidden) + 2 * hidden
    feed_forward = 2 * hidden * inner + inner + hidden + 2 * hidden
    pooler = hidden * hidden + hidden
    count = embeddings + config.num_hidden_layers * (attention + feed_forward) + pooler
    if heads:
        count += hidden * hidden + 3 * hidden + config.vocab_size + 2 * hidden + 2
    return count
