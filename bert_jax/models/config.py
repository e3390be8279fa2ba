"""Configuration of an encoder: its architecture, and the dtype, kernels, rematerialization and loops."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.kernels import dispatch
from bert_jax.kernels.dispatch import Target
from bert_jax.models.config_checks import check, option

# Synonyms of activations. The tanh version is "gelu_new" in google-research/bert after February 2019.
_ACTIVATION_SYNONYMS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_erf": "gelu"}

_RATE: dict[str, Any] = {"minimum": 0, "below": 1}


def _field(
    default: Any, meaning: str, *marks: str, bounds: tuple[float, float] | None = None, **limits: Any
) -> Any:
    """Returns a field with marks.

    The marks are: `shape`, the set or shapes of parameters depend on the field; `size`, the field is printed
    as one of the model's sizes; `of_run`, the field comes from the run's config and not from the initial
    checkpoint; `dropout`, it is a dropout rate; and `of_head`, only heads of some families read the field.
    """
    if bounds:
        limits |= {"minimum": bounds[0], "maximum": bounds[1]}
    if "shape" in marks:
        limits["resume"] = "fixed"
    metadata = option(default, meaning, **limits).metadata
    return dataclasses.field(default=default, metadata={**metadata, **dict.fromkeys(marks, True)})


def _optional_rate(meaning: str, *marks: str) -> Any:
    return _field(None, meaning, "dropout", *marks, **_RATE, type="float", optional=True)


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Architecture of an encoder; the defaults are BERT's (Devlin et al. 2019, section 3).

    BERT's fields have the same names as in a released `bert_config.json`.
    """

    vocab_size: int = _field(30522, "Rows of the word embeddings.", "shape", "size", bounds=(1, 10**8))
    hidden_size: int = _field(768, "Width H of the layers.", "shape", "size", bounds=(1, 2**20))
    num_hidden_layers: int = _field(12, "Number of layers.", "shape", "size", bounds=(1, 10_000))
    num_attention_heads: int = _field(12, "Attention heads per layer.", "shape", "size", bounds=(1, 2**20))
    intermediate_size: int = _field(
        3072, "Width of the feed-forward block.", "shape", "size", bounds=(1, 2**24)
    )
    hidden_act: str = _field(
        "gelu",
        "Activation of the feed-forward block: `gelu` (exact), `gelu_tanh` (approximate), `relu` or `silu`.",
        choices=("gelu", "gelu_tanh", "relu", "silu", *_ACTIVATION_SYNONYMS),
    )
    hidden_dropout_prob: float = _field(
        0.1, "Dropout rate wherever no other rate applies.", "dropout", "of_run", **_RATE
    )
    attention_probs_dropout_prob: float = _field(
        0.1, "Dropout rate of the attention probabilities.", "dropout", "of_run", **_RATE
    )
    max_position_embeddings: int = _field(
        512,
        "Maximum sequence length in tokens, and rows of learned position embeddings.",
        "shape",
        "size",
        bounds=(1, 2**24),
    )
    type_vocab_size: int = _field(
        2,
        "Rows of the token type embeddings. 0: none; 1: every token has the same type.",
        "shape",
        "size",
        bounds=(0, 10**6),
    )
    initializer_range: float = _field(
        0.02, "Standard deviation of the initial weights, before truncation.", bounds=(0, 1000)
    )
    layer_norm_eps: float = _field(
        1e-12, "Constant that every norm adds to the variance or mean square.", bounds=(1e-37, 1)
    )
    causal: bool = _field(False, "Use left-to-right attention.")

    model_type: str = _field("bert", "Model family, which sets file format, heads and special tokens.")
    embedding_size: int = _field(
        0,
        "Width of the embedding tables, projected to `hidden_size`. 0: `hidden_size`.",
        "shape",
        bounds=(0, 2**20),
    )
    projection_placement: str = _field(
        "after_norm",
        "Where embeddings are projected to `hidden_size`: `after_norm`, `before_norm` (without bias), or "
        "`always` (after the norm, also at equal widths).",
        "shape",
        choices=("after_norm", "before_norm", "always"),
    )
    position: str = _field(
        "learned",
        "Position encoding: `learned`, `sinusoid`, `scaled_sinusoid`, `rotary`, `alibi` (symmetric), "
        "`disentangled` (DeBERTa) or `none`.",
        "shape",
        choices=("learned", "none", "sinusoid", "scaled_sinusoid", "rotary", "alibi", "disentangled"),
    )
    position_buckets: int = _field(
        0,
        "Distance embeddings per direction (`disentangled`): half for one distance each, half for ranges. "
        "0: one per distance; DeBERTa: 256.",
        "shape",
        bounds=(0, 2**24),
    )
    max_relative_positions: int = _field(
        0,
        "Distances of this value or more share one embedding (`disentangled`). 0: `max_position_embeddings`.",
        "shape",
        bounds=(0, 2**24),
    )
    position_attention: str = _field(
        "c2p|p2c",
        "Terms of disentangled attention: `c2p` (content to position), `p2c` (position to content), or both.",
        "shape",
        choices=("c2p", "p2c", "c2p|p2c"),
    )
    share_attention_key: bool = _field(
        True, "Project the distance embeddings with the query and key weights of the content.", "shape"
    )
    relative_norm: bool = _field(True, "Normalize the distance embeddings.", "shape")
    conv_kernel_size: int = _field(
        0,
        "Kernel width of a convolution of the embeddings, added to the first layer's output. 0: none; "
        "DeBERTa: 3.",
        "shape",
        bounds=(0, 1023),
    )
    conv_act: str = _field(
        "tanh",
        "Activation of the convolution: `tanh`, `gelu`, `gelu_tanh`, `relu` or `silu`.",
        choices=("tanh", "gelu", "gelu_tanh", "relu", "silu", *_ACTIVATION_SYNONYMS),
    )
    mask_decoder: bool = _field(
        False,
        "Predict masked tokens with DeBERTa's enhanced mask decoder, which adds absolute positions.",
        "shape",
    )
    position_offset: int = _field(
        0, "Row of the position embeddings for the first token. RoBERTa: 2.", bounds=(0, 2**24)
    )
    rotary_theta: float = _field(
        10_000.0, "Base of the rotary angles in global layers.", above=0, maximum=10**12
    )
    local_rotary_theta: float = _field(
        10_000.0, "Base of the rotary angles in local layers.", above=0, maximum=10**12
    )
    local_window: int = _field(
        0,
        "Tokens to each side that a token of a local layer attends to. 0: no local layers; ModernBERT: 64.",
        bounds=(0, 2**24),
    )
    global_every: int = _field(
        1, "Every n-th layer is global, starting with the first. ModernBERT: 3.", bounds=(1, 10_000)
    )
    norm_placement: str = _field(
        "post",
        "Where a sublayer f is normalized: `post`, norm(x + f(x)), or `pre`, x + f(norm(x)).",
        choices=("post", "pre"),
    )
    final_norm: bool = _field(False, "Normalize the output of the last layer.", "shape")
    embedding_norm: bool = _field(True, "Normalize the sum of the embeddings.", "shape")
    first_attention_norm: bool = _field(
        True, "Normalize the input of the first layer's attention (`norm_placement=pre`).", "shape"
    )
    norm: str = _field(
        "layernorm", "Kind of norm: `layernorm` or `rmsnorm`.", choices=("layernorm", "rmsnorm")
    )
    norm_bias: bool = _field(True, "Norms have a bias.", "shape")
    attention_bias: bool = _field(True, "The dense layers of attention have a bias.", "shape")
    inner_bias: bool = _field(True, "The first feed-forward layer has a bias.", "shape")
    output_bias: bool = _field(True, "The second feed-forward layer has a bias.", "shape")
    feed_forward: str = _field(
        "mlp", "Feed-forward block: `mlp`, or `glu` (gated linear unit).", "shape", choices=("mlp", "glu")
    )
    layer_groups: int = _field(
        0, "Groups of layers that share parameters. 0: no layers do; ALBERT: 1.", "shape", bounds=(0, 10_000)
    )
    embedding_dropout: float | None = _optional_rate(
        "Dropout rate after the embeddings. None: `hidden_dropout_prob`.", "of_run"
    )
    inner_dropout: float | None = _optional_rate(
        "Dropout rate after the feed-forward block. None: `hidden_dropout_prob`.", "of_run"
    )
    classifier_dropout: float | None = _optional_rate(
        "Dropout rate in a classification head. None: the model family's rate.", "of_head"
    )
    classifier_pooling: str | None = _field(
        None,
        "State that a sequence head reads: `cls`, `last` or `mean`. None: the model family's; if `causal` "
        "is set, `last` instead of `cls`.",
        "of_head",
        choices=("cls", "last", "mean"),
        type="str",
        optional=True,
    )
    attention_adapter: int = _field(
        0,
        "Width of an adapter after each attention. 0: none. `adapter.kind` sets it.",
        "shape",
        bounds=(0, 2**20),
    )
    output_adapter: int = _field(
        0,
        "Width of an adapter after each feed-forward block. 0: none. `adapter.kind` sets it.",
        "shape",
        bounds=(0, 2**20),
    )
    tie_word_embeddings: bool = _field(
        True, "Use the word embeddings as the output matrix of the masked LM head.", "shape"
    )
    initializer: str = _field(
        "truncated_normal",
        "Distribution of initial weights: `truncated_normal`, `normal`, or `megatron` (last matrix of a "
        "sublayer divided by sqrt(2 `num_hidden_layers`)).",
        choices=("truncated_normal", "megatron", "normal"),
    )


# Fields that only `position=disentangled` reads.
DISENTANGLED_FIELDS = (
    *("position_buckets", "max_relative_positions", "position_attention", "share_attention_key"),
    *("relative_norm", "mask_decoder", "conv_kernel_size", "conv_act", "projection_placement"),
)


@dataclasses.dataclass(frozen=True)
class Execution:
    """Execution settings of a model. They do not change the parameters or the function."""

    dtype: str = option(
        "auto",
        "Type of activations and matmuls: `float32`, `bfloat16`, or `auto`, bfloat16 where the device "
        "supports it.",
        choices=dispatch.DTYPES,
    )
    attention: str = option(
        "auto",
        "Implementation of attention: `xla`, `cudnn` (NVIDIA GPU), `pallas` or `splash` (TPU). `auto` uses a "
        "kernel if one supports the case.",
        choices=dispatch.ATTENTIONS,
        resume="free",
    )
    remat: str = option(
        "none",
        "Rematerialization, which saves memory: `full` recomputes layers in the backward pass, `dots` all "
        "but matmuls.",
        choices=("none", "full", "dots"),
        resume="free",
    )
    scan_unroll: int = option(
        1,
        "Layers compiled as one block. 0 is all: faster steps, longer compilation.",
        maximum=10_000,
        resume="free",
    )


@dataclasses.dataclass(frozen=True)
class EncoderConfig(Execution, Architecture):
    """An architecture and its execution settings."""

    def __post_init__(self):
        for name in ("hidden_act", "conv_act"):
            if isinstance(act := getattr(self, name), str):
                object.__setattr__(self, name, _ACTIVATION_SYNONYMS.get(act, act))
        for declared in dataclasses.fields(self):
            check(declared.name, getattr(self, declared.name), declared.metadata["field"])
        self._check_combinations()

    def _check_combinations(self) -> None:
        """Raises UserError if fields contradict each other."""
        is_rotary = self.position == "rotary"
        is_changed = {
            name: getattr(self, name) != getattr(EncoderConfig, name)
            for name in (
                *("position_offset", "rotary_theta", "local_rotary_theta", "first_attention_norm"),
                *DISENTANGLED_FIELDS,
            )
        }
        is_changed["projection_placement"] = self.projection_placement == "before_norm"
        contradictions = {
            "hidden_size must be a multiple of num_attention_heads": (
                self.hidden_size % self.num_attention_heads
            ),
            "position=rotary needs heads of an even size": is_rotary and self.head_dim % 2,
            "position=sinusoid needs embeddings of an even width": (
                "sinusoid" in self.position and self.embedding_width % 2
            ),
            "position_offset needs position=learned and must be less than max_position_embeddings": (
                is_changed["position_offset"]
                and not (self.position == "learned" and self.position_offset < self.max_position_embeddings)
            ),
            "rotary_theta needs position=rotary": is_changed["rotary_theta"] and not is_rotary,
            "local_rotary_theta needs position=rotary and a local_window": (
                is_changed["local_rotary_theta"] and not (is_rotary and self.local_window)
            ),
            "local_window needs a global layer every 2 layers or more, such as local_window=64 with "
            "global_every=3": bool(self.local_window) != (self.global_every > 1),
            "first_attention_norm=False needs norm_placement=pre": (
                is_changed["first_attention_norm"] and self.norm_placement != "pre"
            ),
            **{
                f"{name} needs position=disentangled": (is_changed[name] and self.position != "disentangled")
                for name in DISENTANGLED_FIELDS
            },
            "position=disentangled needs causal=False, local_window=0 and norm_placement=post": (
                self.position == "disentangled"
                and (self.causal or self.local_window or self.norm_placement != "post")
            ),
            "position_buckets must be even, and half of it less than max_relative_positions - 1": (
                self.position_buckets
                and (self.position_buckets % 2 or self.position_buckets // 2 >= self.longest_distance - 1)
            ),
            "layer_groups=0 is needed by mask_decoder and conv_kernel_size, an odd number": (
                (self.layer_groups and (self.mask_decoder or self.conv_kernel_size))
                or (self.conv_kernel_size and not self.conv_kernel_size % 2)
            ),
            "mask_decoder needs num_hidden_layers of at least 2": (
                self.mask_decoder and self.num_hidden_layers < 2
            ),
            "layer_groups must be at most num_hidden_layers, without local_window and with "
            "first_attention_norm=True": (
                self.layer_groups > self.num_hidden_layers
                or (self.layer_groups and (self.local_window or not self.first_attention_norm))
            ),
        }
        for requirement, is_violated in contradictions.items():
            if is_violated:
                names = [name for name in re.findall(r"[a-z_]+", requirement) if hasattr(self, name)]
                values = ", ".join(f"{name}={getattr(self, name)}" for name in dict.fromkeys(names))
                raise UserError(f"{requirement}; the model has {values}")

    @property
    def head_dim(self) -> int:
        """Returns D, the features of an attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def longest_distance(self) -> int:
        """Returns the distance from which all longer distances share a row of the table of distances."""
        return self.max_relative_positions or self.max_position_embeddings

    @property
    def max_seq_length(self) -> int:
        """Returns the number of tokens of the longest sequence."""
        return self.max_position_embeddings - self.position_offset

    @property
    def embedding_width(self) -> int:
        """Returns E, the width of the embedding tables."""
        return self.embedding_size or self.hidden_size

    @property
    def projects_embeddings(self) -> bool:
        """Returns whether a dense layer follows the embeddings."""
        return self.embedding_width != self.hidden_size or self.projection_placement == "always"

    @property
    def embedding_dropout_rate(self) -> float:
        return self.hidden_dropout_prob if self.embedding_dropout is None else self.embedding_dropout

    @property
    def inner_dropout_rate(self) -> float:
        return self.hidden_dropout_prob if self.inner_dropout is None else self.inner_dropout

    def spelled_out(self) -> EncoderConfig:
        """Returns an equal configuration whose `embedding_size` is not 0."""
        return self.replace(embedding_size=self.embedding_width)

    def is_local(self, layer: int) -> bool:
        """Returns whether a layer, counted from 0, has a local window."""
        return layer % self.global_every > 0

    def replace(self, **changes: Any) -> EncoderConfig:
        return dataclasses.replace(self, **changes)

    def resolve(self, target: Target) -> EncoderConfig:
        """Returns the configuration with the dtype "auto" resolved for a device."""
        return self.replace(dtype=dispatch.resolve_dtype(self.dtype, target))

    def for_inference(self, target: Target, dtype: str = "auto") -> EncoderConfig:
        """Returns the configuration for inference on a device, which may differ from the training device.

        Kernels are chosen again for the device, unless the checkpoint was trained without kernels.
        Rematerialization is off. With `dtype="auto"`, the dtype is as in training, or the device's default if
        training used "auto". CPUs and GPUs without bfloat16 matmuls then always compute in float32.
        """
        if dtype == "auto":
            dtype = "float32" if target.platform == "cpu" else dispatch.resolve_dtype("auto", target)
            if dtype != "float32" and self.dtype != "auto":
                dtype = self.dtype
        return self.replace(dtype=dtype, remat="none", attention="xla" if self.attention == "xla" else "auto")

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields; the inverse of `from_dict`."""
        return dataclasses.asdict(self)


ENCODER_FIELDS = tuple(declared.name for declared in dataclasses.fields(Architecture))
EXECUTION_FIELDS = tuple(declared.name for declared in dataclasses.fields(Execution))

# Fields that come from the run's config; the others come from the initial checkpoint.
RUN_FIELDS = (
    *EXECUTION_FIELDS,
    *(declared.name for declared in dataclasses.fields(EncoderConfig) if declared.metadata.get("of_run")),
)

# Fields that determine the set and the shapes of the parameters, BERT's sizes, dropout rates, and fields that
# only heads read.
SHAPE_FIELDS, SIZE_FIELDS, DROPOUT_FIELDS, HEAD_FIELDS = (
    tuple(declared.name for declared in dataclasses.fields(EncoderConfig) if declared.metadata.get(kind))
    for kind in ("shape", "size", "dropout", "of_head")
)


def from_dict(fields: Mapping[str, Any]) -> EncoderConfig:
    """Returns a configuration from a mapping of fields; raises UserError for an unknown field."""
    if unknown := fields.keys() - {*ENCODER_FIELDS, *EXECUTION_FIELDS}:
        raise UserError(f"model has no field {', '.join(sorted(unknown))}")
    return EncoderConfig(**fields)
