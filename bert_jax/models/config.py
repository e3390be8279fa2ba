"""Configuration of an encoder (`EncoderConfig`) and how it is computed (`Execution`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io import json_files
from bert_jax.kernels import dispatch
from bert_jax.kernels.dispatch import AttentionCase, ResidualCase, Target

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")
POSITIONS = ("learned", "none", "sinusoid", "scaled_sinusoid", "rotary", "alibi")
NORM_PLACEMENTS = ("post", "pre")
NORMS = ("layernorm", "rmsnorm")
FEED_FORWARDS = ("mlp", "glu")
INITIALIZERS = ("truncated_normal", "megatron", "normal")
ATTENTION_IMPLEMENTATIONS = ("auto", "xla", "cudnn", "pallas", "splash")
RESIDUAL_IMPLEMENTATIONS = ("auto", "xla", "pallas")
REMAT_POLICIES = ("none", "full", "dots")

# Other names of the same activations: google-research/bert after February 2019 calls the tanh version
# "gelu_new".
_ACTIVATION_SYNONYMS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_erf": "gelu"}

_RATE: dict[str, Any] = {"minimum": 0, "below": 1, "dropout": True}
_SIZE: dict[str, Any] = {"shape": True, "size": True}
_COUNT = range(-1, 1 << 31)  # no size of a model comes near the limit


def _field(
    default: Any, meaning: str, *, choices: tuple[str, ...] = (), resume: str = "same", **metadata: Any
) -> Any:
    """Returns a dataclass field with the metadata for validation, docs/config.md, and the lists below.

    Args:
        default: the default value; its type is the type of the field, unless `optional` is given.
        meaning: the description in docs/config.md.
        choices: the allowed values of a string field.
        resume: whether the field may change when a run resumes; see `bert_jax.settings.config_fields.Field`.
        metadata: `minimum`, `maximum`, `below`, `above`: bounds. `shape`: whether the set or shapes of the
            parameters depend on the field. `size`: whether the field is printed as one of the model's sizes.
            `of_run`: whether a run sets the value regardless of the checkpoint that it starts from.
            `optional`: the type of a field whose default is None. `dropout`: whether the field is a dropout
            rate, which affects training only. `of_head`: whether only a head reads the field, if its family
            says so.
    """
    resume = "fixed" if metadata.get("shape") else resume
    metadata |= {"meaning": meaning, "choices": choices, "resume": resume}
    return dataclasses.field(default=default, metadata=metadata)


def _check_fields(config: Any) -> None:
    """Raises UserError for the first field whose value has the wrong type or is out of bounds."""
    for field in dataclasses.fields(config):
        if field.name == "execution":
            continue
        value, metadata = getattr(config, field.name), field.metadata
        if value is None and metadata.get("optional"):
            continue
        _check_type(field.name, value, metadata.get("optional") or type(field.default))
        if metadata["choices"] and value not in metadata["choices"]:
            raise UserError(
                f"{field.name}={value!r} is unknown; choose one of {', '.join(metadata['choices'])}"
            )
        minimum, below, above = (metadata.get(bound) for bound in ("minimum", "below", "above"))
        if below is not None and not minimum <= value < below:
            raise UserError(f"{field.name}={value} must be in [{minimum}, {below})")
        if minimum is not None and value < minimum:
            raise UserError(f"{field.name}={value} must be at least {minimum}")
        if value > (field.metadata.get("maximum") or value):
            raise UserError(f"{field.name}={value} must be at most {field.metadata['maximum']}")
        if above is not None and value <= above:
            raise UserError(f"{field.name}={value} must be more than {above}")


def _check_type(name: str, value: Any, expected: type) -> None:
    if not json_files.is_of(value, _COUNT if expected is int else expected):
        what = "a whole number below 2^31" if expected is int else json_files.describe(expected)
        raise UserError(f"{name}={value!r:.60}: expected {what}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name}={value}: expected a finite number")


@dataclasses.dataclass(frozen=True)
class Execution:
    """Settings for how a model is computed; none of them changes the parameters or the function."""

    dtype: str = _field(
        "auto",
        "of activations and matrix products: `bfloat16` on TPU and GPU, `float32` on CPU and on GPUs before "
        "Ampere; `config.json` records what it became, and a run that resumes on another platform keeps it. "
        "Parameters are float32. On NVIDIA GPUs XLA computes float32 products in TF32, on TPUs in one "
        "bfloat16 pass",
        choices=dispatch.DTYPES,
    )
    attention: str = _field(
        "auto",
        "`xla`, `cudnn` (NVIDIA from Ampere on; bfloat16, rows of an even length, heads of a multiple of 8 "
        "up to 128), `pallas` (TPU, rows of a multiple of 128 up to 512 tokens), `splash` (TPU, rows of a "
        "multiple of 128 tokens); cuDNN and splash have no attention dropout, cuDNN and pallas no "
        "`local_window`, and none of the three has `alibi`. `auto` takes the first that can compute the "
        "case, else `xla`; one that is named and cannot is refused",
        choices=ATTENTION_IMPLEMENTATIONS,
        resume="free",
    )
    residual: str = _field(
        "auto",
        "dropout, sum and LayerNorm at the end of each half of a layer: `xla`, or `pallas`, one kernel "
        "(TPU, rows of a multiple of 128 tokens, `norm_placement=post`, `norm=layernorm`)",
        choices=RESIDUAL_IMPLEMENTATIONS,
        resume="free",
    )
    remat: str = _field(
        "none",
        "rematerialization, which trades time for memory: `full` keeps only the input of each layer for the "
        "backward pass, `dots` also the results of matrix products",
        choices=REMAT_POLICIES,
        resume="free",
    )
    scan_unroll: int = _field(
        1,
        "layers that are compiled as one block; 0 is all: faster steps, longer compilation",
        minimum=0,
        maximum=10_000,
        resume="free",
    )

    def __post_init__(self):
        _check_fields(self)

    def for_inference(self, target: Target, dtype: str = "auto") -> Execution:
        """Returns the settings for computing a checkpoint on a device, wherever it was trained.

        Kernels are chosen again for the device, unless the checkpoint was trained without kernels, and there
        is no rematerialization. By default the dtype is the one used in training, or the device's default if
        that was "auto"; CPUs and GPUs without bfloat16 products always compute in float32.

        Args:
            target: the device.
            dtype: "auto", "float32" or "bfloat16".
        """
        if dtype == "auto":
            dtype = dispatch.resolve_dtype("auto", target)
            if dtype != "float32" and self.dtype != "auto":
                dtype = self.dtype
        attention, residual = ("xla" if name == "xla" else "auto" for name in (self.attention, self.residual))
        return dataclasses.replace(self, dtype=dtype, remat="none", attention=attention, residual=residual)


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """Definition of what an encoder computes; the defaults are BERT's (Devlin et al. 2019, section 3).

    Fields that BERT has are named as in a released `bert_config.json`.

    Attributes:
        execution: how the model is computed.
    """

    vocab_size: int = _field(
        30522, "rows of the word embeddings; 0: those of the vocabulary", minimum=1, maximum=10**8, **_SIZE
    )
    hidden_size: int = _field(768, "H, the width of the layers", minimum=1, maximum=2**20, **_SIZE)
    num_hidden_layers: int = _field(12, "layers", minimum=1, maximum=10_000, **_SIZE)
    num_attention_heads: int = _field(12, "attention heads of a layer", minimum=1, maximum=2**20, **_SIZE)
    intermediate_size: int = _field(
        3072, "width of the feed-forward block", minimum=1, maximum=2**24, **_SIZE
    )
    hidden_act: str = _field(
        "gelu",
        "activation of the feed-forward block: `gelu` (exact, by erf), `gelu_tanh` (its approximation), "
        "`relu`, `silu`",
        choices=ACTIVATIONS,
    )
    hidden_dropout_prob: float = _field(
        0.1, "dropout rate wherever no other rate is given", **_RATE, of_run=True
    )
    attention_probs_dropout_prob: float = _field(
        0.1, "dropout rate of the attention probabilities", **_RATE, of_run=True
    )
    max_position_embeddings: int = _field(
        512,
        "rows of the learned position embeddings, or the length of the longest sequence",
        minimum=1,
        maximum=2**24,
        **_SIZE,
    )
    type_vocab_size: int = _field(
        2,
        "rows of the token type embeddings; 0: no token types; 1: every token has the same",
        minimum=0,
        maximum=10**6,
        **_SIZE,
    )
    initializer_range: float = _field(
        0.02, "standard deviation of the untrained weights, before truncation", minimum=0, maximum=1000
    )
    layer_norm_eps: float = _field(
        1e-12,
        "added to the variance, or to the mean square, by every norm",
        minimum=1e-37,
        maximum=1,
    )
    causal: bool = _field(False, "left-to-right attention, the paper's ablation (section 5.1)")

    model_type: str = _field(
        "bert",
        "the family whose file format the model is read from and written to; it does not affect the "
        "computation",
    )
    embedding_size: int = _field(
        0,
        "E, width of the embedding tables, projected to `hidden_size`; 0: `hidden_size` itself",
        minimum=0,
        maximum=2**20,
        shape=True,
    )
    embedding_projection: bool = _field(
        False, "a dense layer from E to H after the embeddings even if E equals H", shape=True
    )
    position: str = _field(
        "learned",
        "`learned`, `sinusoid` (Vaswani et al. 2017) and `scaled_sinusoid` (with one learned factor) are "
        "added to the embeddings, `rotary` (Su et al. 2021) rotates queries and keys, `alibi` (Press et al. "
        "2022) adds a bias to the attention logits that depends on the distance in either direction; `none`",
        choices=POSITIONS,
        shape=True,
    )
    position_offset: int = _field(
        0,
        "row of the position embeddings that the first token of a sequence uses; RoBERTa: 2",
        minimum=0,
        maximum=2**24,
    )
    rotary_theta: float = _field(
        10_000.0, "base of the rotary angles in global layers", above=0, maximum=10**12
    )
    local_rotary_theta: float = _field(
        10_000.0, "base of the rotary angles in local layers", above=0, maximum=10**12
    )
    local_window: int = _field(
        0,
        "a token of a local layer attends to the tokens at most this far to each side; 0: no layer is local. "
        "ModernBERT: 64",
        minimum=0,
        maximum=2**24,
    )
    global_every: int = _field(
        1,
        "layers whose index (from 0) is divisible by this number are global. ModernBERT: 3",
        minimum=1,
        maximum=10_000,
    )
    attention_pattern: str = _field(
        "",
        "`g` for a global and `l` for a local layer, one letter per layer, if `global_every` does not "
        "describe them",
    )
    norm_placement: str = _field(
        "post", "`post`: norm(x + f(x)); `pre`: x + f(norm(x))", choices=NORM_PLACEMENTS
    )
    final_norm: bool = _field(False, "a norm after the last layer", shape=True)
    embedding_norm: bool = _field(True, "a norm after the sum of the embeddings", shape=True)
    first_attention_norm: bool = _field(True, "a norm before the attention of the first layer", shape=True)
    norm: str = _field(
        "layernorm", "`layernorm` (Ba et al. 2016) or `rmsnorm` (Zhang and Sennrich 2019)", choices=NORMS
    )
    norm_bias: bool = _field(True, "norms add a bias", shape=True)
    attention_bias: bool = _field(True, "the dense layers of attention have a bias", shape=True)
    inner_bias: bool = _field(True, "the first dense layer of the feed-forward block has a bias", shape=True)
    output_bias: bool = _field(
        True, "the second dense layer of the feed-forward block has a bias", shape=True
    )
    feed_forward: str = _field(
        "mlp",
        "`mlp`, or `glu`: one half of the first dense layer's output is activated and multiplied by the "
        "other half (Shazeer 2020)",
        choices=FEED_FORWARDS,
        shape=True,
    )
    layer_groups: int = _field(
        0,
        "groups of layers that share their parameters; 0: no layers share parameters. ALBERT (Lan et al. "
        "2020): 1",
        minimum=0,
        maximum=10_000,
        shape=True,
    )
    layers_per_group: int = _field(
        1,
        "layers of a group, which are applied one after the other",
        minimum=1,
        maximum=10_000,
        shape=True,
    )
    embedding_dropout: float | None = _field(
        None,
        "dropout rate after the embeddings; None for `hidden_dropout_prob`",
        **_RATE,
        of_run=True,
        optional=float,
    )
    inner_dropout: float | None = _field(
        None,
        "dropout rate after the feed-forward block; None for `hidden_dropout_prob`",
        **_RATE,
        of_run=True,
        optional=float,
    )
    classifier_dropout: float | None = _field(
        None,
        "dropout rate in a classification head; None for that of the model family",
        **_RATE,
        of_head=True,
        optional=float,
    )
    classifier_pooling: str | None = _field(
        None,
        "the state that a classification head for sequences reads: `cls`, or the `mean` over all tokens; "
        "None for that of the model family",
        choices=("cls", "mean"),
        of_head=True,
        optional=str,
    )
    qa_dropout: float | None = _field(
        None,
        "dropout rate before the answer spans; None for that of the model family",
        **_RATE,
        of_head=True,
        optional=float,
    )
    initializer: str = _field(
        "truncated_normal",
        "`truncated_normal` at two standard deviations, `normal`, or `megatron`: truncated, with a standard "
        "deviation divided by sqrt(2 layers) for the last product of each half of a layer",
        choices=INITIALIZERS,
    )

    execution: Execution = Execution()

    def __post_init__(self):
        if isinstance(self.hidden_act, str):
            act = _ACTIVATION_SYNONYMS.get(self.hidden_act, self.hidden_act)
            object.__setattr__(self, "hidden_act", act)
        _check_fields(self)
        for refusal in _REFUSALS:
            if problem := refusal(self):
                raise UserError(problem)
        execution = self.execution
        dispatch.check_case("attention", execution.attention, self.attention_case())
        dispatch.check_case("residual", execution.residual, self.residual_case())

    @property
    def head_dim(self) -> int:
        """Returns D, the features of an attention head."""
        return self.hidden_size // self.num_attention_heads

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
        return self.embedding_projection or self.embedding_width != self.hidden_size

    @property
    def embedding_dropout_rate(self) -> float:
        """Returns the dropout rate after the embeddings."""
        return self.hidden_dropout_prob if self.embedding_dropout is None else self.embedding_dropout

    @property
    def inner_dropout_rate(self) -> float:
        """Returns the dropout rate after the feed-forward block."""
        return self.hidden_dropout_prob if self.inner_dropout is None else self.inner_dropout

    @property
    def computed_layers(self) -> int:
        """Returns the number of layers that are applied: in a group of several, each of its layers counts."""
        return self.num_hidden_layers * self.layers_per_group

    def spelled_out(self) -> EncoderConfig:
        """Returns an equal configuration where `embedding_size` and `embedding_projection` imply nothing."""
        return self.replace(
            embedding_size=self.embedding_width, embedding_projection=self.projects_embeddings
        )

    def is_local(self, layer: int) -> bool:
        """Returns whether a layer, counted from 0, has a local window."""
        if self.attention_pattern:
            return self.attention_pattern[layer] == "l"
        return layer % self.global_every > 0

    def attention_case(self) -> AttentionCase:
        """Returns what is known about the attention of every layer before a program is traced."""
        dtype = self.execution.dtype
        return AttentionCase(
            dtype=None if dtype == "auto" else dtype,
            head_size=self.head_dim,
            dropout_rate=self.attention_probs_dropout_prob,
            window=bool(self.local_window),
            bias=self.position == "alibi",
        )

    def residual_case(self) -> ResidualCase:
        """Returns what is known about the end of each half of a layer before a program is traced."""
        return ResidualCase(features=self.hidden_size, placement=self.norm_placement, norm=self.norm)

    def replace(self, **changes: Any) -> EncoderConfig:
        """Returns the configuration with some fields replaced, including those of `execution`."""
        execution = {name: changes.pop(name) for name in EXECUTION_FIELDS if name in changes}
        if execution:
            changes["execution"] = dataclasses.replace(changes.get("execution", self.execution), **execution)
        return dataclasses.replace(self, **changes)

    def resolve(self, target: Target) -> EncoderConfig:
        """Returns the configuration with the dtype "auto" resolved for a device."""
        return self.replace(dtype=dispatch.resolve_dtype(self.execution.dtype, target))

    def for_inference(self, target: Target, dtype: str = "auto") -> EncoderConfig:
        """Returns the configuration for using a checkpoint on a device; see `Execution.for_inference`."""
        return self.replace(execution=self.execution.for_inference(target, dtype))

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields, including those of `execution`, in one mapping; the inverse of `from_dict`."""
        fields = {name: getattr(self, name) for name in ENCODER_FIELDS}
        return fields | dataclasses.asdict(self.execution)


def _check_heads(c: EncoderConfig) -> str | None:
    if c.hidden_size % c.num_attention_heads:
        return (
            f"hidden_size={c.hidden_size} must be a multiple of num_attention_heads={c.num_attention_heads}"
        )
    if c.position == "rotary" and c.head_dim % 2:
        return f"position=rotary needs heads of an even size, not {c.head_dim}; set num_attention_heads"
    return None


def _check_positions(c: EncoderConfig) -> str | None:
    if c.position in ("sinusoid", "scaled_sinusoid") and c.embedding_width % 2:
        return f"position={c.position} needs embeddings of an even width, not {c.embedding_width}"
    if c.position_offset and c.position != "learned":
        return f"position_offset={c.position_offset} needs position=learned, not {c.position}; leave it at 0"
    if c.position_offset >= c.max_position_embeddings:
        return (
            f"position_offset={c.position_offset} leaves none of max_position_embeddings="
            f"{c.max_position_embeddings}"
        )
    if c.rotary_theta != EncoderConfig.rotary_theta and c.position != "rotary":
        return f"rotary_theta={c.rotary_theta:g} needs position=rotary, not {c.position}"
    if c.local_rotary_theta != EncoderConfig.local_rotary_theta and not (
        c.position == "rotary" and c.local_window
    ):
        return f"local_rotary_theta={c.local_rotary_theta:g} needs position=rotary and a local_window"
    return None


def _check_windows(c: EncoderConfig) -> str | None:
    if pattern := c.attention_pattern:
        if len(pattern) != c.num_hidden_layers or not {"l"} <= set(pattern) <= {"g", "l"}:
            return (
                f"attention_pattern={pattern}: expected one letter for each of the {c.num_hidden_layers} "
                "layers, g for a global and l for a local one, and a local one among them"
            )
        if not c.local_window or c.global_every > 1:
            return (
                f"attention_pattern={pattern} needs a local_window, not {c.local_window}, and "
                f"global_every=1, not {c.global_every}"
            )
        return None
    if bool(c.local_window) != (c.global_every > 1):
        return (
            f"local_window={c.local_window} and global_every={c.global_every}: expected a window and a "
            "global layer every 2 layers or more, as 64 and 3, or 0 and 1 for global layers alone"
        )
    return None


def _check_norms(c: EncoderConfig) -> str | None:
    if not c.first_attention_norm and c.norm_placement != "pre":
        return (
            f"first_attention_norm=False needs norm_placement=pre, not {c.norm_placement}: the norm behind "
            "the attention cannot be left out"
        )
    return None


def _check_groups(c: EncoderConfig) -> str | None:
    if c.layer_groups > c.num_hidden_layers:
        return f"layer_groups={c.layer_groups} must be at most num_hidden_layers={c.num_hidden_layers}"
    if c.layers_per_group > 1 and not c.layer_groups:
        return f"layers_per_group={c.layers_per_group} needs layer_groups of 1 or more"
    if c.layer_groups and (c.local_window or not c.first_attention_norm):
        field = "local_window" if c.local_window else "first_attention_norm"
        return (
            f"layer_groups={c.layer_groups} and {field}={getattr(c, field)}: layers that share their "
            "parameters are all alike; set one of the two"
        )
    return None


# Checks of field combinations that make no sense: each returns the problem in one line, or None.
_REFUSALS = (_check_heads, _check_positions, _check_windows, _check_norms, _check_groups)


ENCODER_FIELDS = tuple(field.name for field in dataclasses.fields(EncoderConfig) if field.name != "execution")
EXECUTION_FIELDS = tuple(field.name for field in dataclasses.fields(Execution))

# Fields that a run sets regardless of the checkpoint it starts from; the others come from the checkpoint.
RUN_FIELDS = (
    *EXECUTION_FIELDS,
    *(field.name for field in dataclasses.fields(EncoderConfig) if field.metadata.get("of_run")),
)

# Fields that determine the set and the shapes of the parameters, BERT's sizes, dropout rates, and fields that
# only heads read.
SHAPE_FIELDS, SIZE_FIELDS, DROPOUT_FIELDS, HEAD_FIELDS = (
    tuple(field.name for field in dataclasses.fields(EncoderConfig) if field.metadata.get(kind))
    for kind in ("shape", "size", "dropout", "of_head")
)


def from_dict(fields: Mapping[str, Any], *, ignore_unknown: bool = False) -> EncoderConfig:
    """Returns a configuration from a mapping of fields.

    Raises:
        UserError: a field is unknown and `ignore_unknown` is False.
    """
    known = {*ENCODER_FIELDS, *EXECUTION_FIELDS}
    unknown = sorted(set(fields) - known)
    if unknown and not ignore_unknown:
        raise UserError(f"model has no field {', '.join(unknown)}; its fields are {', '.join(sorted(known))}")
    own, execution = (
        {name: fields[name] for name in names if name in fields}
        for names in (ENCODER_FIELDS, EXECUTION_FIELDS)
    )
    return EncoderConfig(**own, execution=Execution(**execution))


def from_json(text: str) -> EncoderConfig:
    """Returns the configuration in the text of a released `bert_config.json`.

    Unknown keys are ignored, as in google-research/bert.
    """
    return from_dict(json_files.parse(text, "the model configuration"), ignore_unknown=True)
