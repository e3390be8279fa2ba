"""Configuration of an encoder: what it computes. How it is computed is in `execution`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.kernels import dispatch
from bert_jax.kernels.dispatch import Target
from bert_jax.models.config_checks import check_fields, field, validate
from bert_jax.models.execution import Execution

# Other names of the same activations: google-research/bert after February 2019 calls the tanh version
# "gelu_new".
_ACTIVATION_SYNONYMS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_erf": "gelu"}

_RATE: dict[str, Any] = {"minimum": 0, "below": 1, "dropout": True}
_SIZE: dict[str, Any] = {"shape": True, "size": True}


def _optional_rate(where: str, **metadata: Any) -> Any:
    return field(None, f"dropout rate {where}", **_RATE, optional=float, **metadata)


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """Definition of what an encoder computes; the defaults are BERT's (Devlin et al. 2019, section 3).

    Fields that BERT has are named as in a released `bert_config.json`.

    Attributes:
        execution: how the model is computed.
    """

    vocab_size: int = field(
        30522, "rows of the word embeddings; 0: those of the vocabulary", bounds=(1, 10**8), **_SIZE
    )
    hidden_size: int = field(768, "H, the width of the layers", bounds=(1, 2**20), **_SIZE)
    num_hidden_layers: int = field(12, "layers", bounds=(1, 10_000), **_SIZE)
    num_attention_heads: int = field(12, "attention heads of a layer", bounds=(1, 2**20), **_SIZE)
    intermediate_size: int = field(3072, "width of the feed-forward block", bounds=(1, 2**24), **_SIZE)
    hidden_act: str = field(
        "gelu",
        "activation of the feed-forward block: `gelu` (exact, by erf), `gelu_tanh` (its approximation), "
        "`relu`, `silu`",
        choices=("gelu", "gelu_tanh", "relu", "silu"),
    )
    hidden_dropout_prob: float = field(
        0.1, "dropout rate wherever no other rate is given", **_RATE, of_run=True
    )
    attention_probs_dropout_prob: float = field(
        0.1, "dropout rate of the attention probabilities", **_RATE, of_run=True
    )
    max_position_embeddings: int = field(
        512,
        "rows of the learned position embeddings, or the length of the longest sequence",
        bounds=(1, 2**24),
        **_SIZE,
    )
    type_vocab_size: int = field(
        2,
        "rows of the token type embeddings; 0: no token types; 1: every token has the same",
        bounds=(0, 10**6),
        **_SIZE,
    )
    initializer_range: float = field(
        0.02, "standard deviation of the untrained weights, before truncation", bounds=(0, 1000)
    )
    layer_norm_eps: float = field(
        1e-12, "added to the variance, or to the mean square, by every norm", bounds=(1e-37, 1)
    )
    causal: bool = field(False, "left-to-right attention, the paper's ablation (section 5.1)")

    model_type: str = field(
        "bert",
        "the model family, which determines the format of the files, the heads and the form of a row; the "
        "other fields determine what the encoder computes",
    )
    embedding_size: int = field(
        0,
        "E, width of the embedding tables, projected to `hidden_size`; 0: `hidden_size` itself",
        bounds=(0, 2**20),
        shape=True,
    )
    position: str = field(
        "learned",
        "`learned`, `sinusoid` (Vaswani et al. 2017) and `scaled_sinusoid` (with one learned factor) are "
        "added to the embeddings, `rotary` (Su et al. 2021) rotates queries and keys, `alibi` (Press et al. "
        "2022) adds a bias to the attention logits that depends on the distance in either direction; `none`",
        choices=("learned", "none", "sinusoid", "scaled_sinusoid", "rotary", "alibi"),
        shape=True,
    )
    position_offset: int = field(
        0,
        "row of the position embeddings that the first token of a sequence uses; RoBERTa: 2",
        bounds=(0, 2**24),
    )
    rotary_theta: float = field(
        10_000.0, "base of the rotary angles in global layers", above=0, maximum=10**12
    )
    local_rotary_theta: float = field(
        10_000.0, "base of the rotary angles in local layers", above=0, maximum=10**12
    )
    local_window: int = field(
        0,
        "a token of a local layer attends to the tokens at most this far to each side; 0: no layer is local. "
        "ModernBERT: 64",
        bounds=(0, 2**24),
    )
    global_every: int = field(
        1,
        "layers whose index (from 0) is divisible by this number are global. ModernBERT: 3",
        bounds=(1, 10_000),
    )
    norm_placement: str = field(
        "post", "`post`: norm(x + f(x)); `pre`: x + f(norm(x))", choices=("post", "pre")
    )
    final_norm: bool = field(False, "a norm after the last layer", shape=True)
    embedding_norm: bool = field(True, "a norm after the sum of the embeddings", shape=True)
    first_attention_norm: bool = field(True, "a norm before the attention of the first layer", shape=True)
    norm: str = field(
        "layernorm",
        "`layernorm` (Ba et al. 2016) or `rmsnorm` (Zhang and Sennrich 2019)",
        choices=("layernorm", "rmsnorm"),
    )
    norm_bias: bool = field(True, "norms add a bias", shape=True)
    attention_bias: bool = field(True, "the dense layers of attention have a bias", shape=True)
    inner_bias: bool = field(True, "the first dense layer of the feed-forward block has a bias", shape=True)
    output_bias: bool = field(True, "the second dense layer of the feed-forward block has a bias", shape=True)
    feed_forward: str = field(
        "mlp",
        "`mlp`, or `glu`: one half of the first dense layer's output is activated and multiplied by the "
        "other half (Shazeer 2020)",
        choices=("mlp", "glu"),
        shape=True,
    )
    layer_groups: int = field(
        0,
        "groups of layers that share their parameters; 0: no layers share parameters. ALBERT (Lan et al. "
        "2020): 1",
        bounds=(0, 10_000),
        shape=True,
    )
    embedding_dropout: float | None = _optional_rate(
        "after the embeddings; None for `hidden_dropout_prob`", of_run=True
    )
    inner_dropout: float | None = _optional_rate(
        "after the feed-forward block; None for `hidden_dropout_prob`", of_run=True
    )
    classifier_dropout: float | None = _optional_rate(
        "in a classification head; None for that of the model family", of_head=True
    )
    classifier_pooling: str | None = field(
        None,
        "the state that a classification head for sequences reads: `cls`, `last` for the last token, or the "
        "`mean` over all tokens; None for that of the model family, with `last` in place of `cls` if "
        "`causal` is true ([causal.md](causal.md)). Pre-training records it for the fine-tunings that start "
        "from the model",
        choices=("cls", "last", "mean"),
        of_head=True,
        optional=str,
    )
    attention_adapter: int = field(
        0,
        "width of a bottleneck adapter after the attention of each layer (Houlsby et al. 2019); 0: none. "
        "`adapter.kind` sets it",
        bounds=(0, 2**20),
        shape=True,
    )
    output_adapter: int = field(
        0, "width of one after the feed-forward block; 0: none", bounds=(0, 2**20), shape=True
    )
    initializer: str = field(
        "truncated_normal",
        "`truncated_normal` at two standard deviations, `normal`, or `megatron`: truncated, with a standard "
        "deviation divided by sqrt(2 layers) for the last product of each sublayer",
        choices=("truncated_normal", "megatron", "normal"),
    )

    execution: Execution = Execution()

    def __post_init__(self):
        if isinstance(self.hidden_act, str):
            act = _ACTIVATION_SYNONYMS.get(self.hidden_act, self.hidden_act)
            object.__setattr__(self, "hidden_act", act)
        check_fields(self)
        validate(self)

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
        return self.embedding_width != self.hidden_size

    @property
    def embedding_dropout_rate(self) -> float:
        """Returns the dropout rate after the embeddings."""
        return self.hidden_dropout_prob if self.embedding_dropout is None else self.embedding_dropout

    @property
    def inner_dropout_rate(self) -> float:
        """Returns the dropout rate after the feed-forward block."""
        return self.hidden_dropout_prob if self.inner_dropout is None else self.inner_dropout

    def spelled_out(self) -> EncoderConfig:
        """Returns an equal configuration whose `embedding_size` is not 0."""
        return self.replace(embedding_size=self.embedding_width)

    def is_local(self, layer: int) -> bool:
        """Returns whether a layer, counted from 0, has a local window."""
        return layer % self.global_every > 0

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


ENCODER_FIELDS = tuple(
    declared.name for declared in dataclasses.fields(EncoderConfig) if declared.name != "execution"
)
EXECUTION_FIELDS = tuple(declared.name for declared in dataclasses.fields(Execution))

# Fields that a run sets regardless of the checkpoint it starts from; the others come from the checkpoint.
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
    """Returns a configuration from a mapping of fields.

    Raises:
        UserError: a field is unknown.
    """
    known = {*ENCODER_FIELDS, *EXECUTION_FIELDS}
    unknown = sorted(set(fields) - known)
    if unknown:
        raise UserError(f"model has no field {', '.join(unknown)}; its fields are {', '.join(sorted(known))}")
    encoder, execution = (
        {name: fields[name] for name in names if name in fields}
        for names in (ENCODER_FIELDS, EXECUTION_FIELDS)
    )
    return EncoderConfig(**encoder, execution=Execution(**execution))
