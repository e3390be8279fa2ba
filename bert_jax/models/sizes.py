"""The named model sizes of BERT and of other encoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.models.config import EncoderConfig, from_dict


def shape(
    layers: int, hidden: int, heads: int | None = None, inner: int | None = None, **others: Any
) -> dict[str, Any]:
    """Returns the fields of an encoder; by default its heads have 64 features, and the inner size is 4 H."""
    return dict(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads or hidden // 64,
        intermediate_size=inner or 4 * hidden,
        **others,
    )


# Base and Large: the paper, section 3. The 24 small models, named L-<layers>_H-<hidden>: Turc et al. 2019.
BERT: dict[str, dict[str, Any]] = {
    "tiny": shape(2, 128),
    "mini": shape(4, 256),
    "small": shape(4, 512),
    "medium": shape(8, 512),
    "base": shape(12, 768),
    "large": shape(24, 1024),
    "base_cased": shape(12, 768, vocab_size=28996),
    "large_cased": shape(24, 1024, vocab_size=28996),
    "base_multilingual_cased": shape(12, 768, vocab_size=119547),
    "base_multilingual_uncased": shape(12, 768, vocab_size=105879),
    "base_chinese": shape(12, 768, vocab_size=21128),
} | {
    f"L-{layers}_H-{hidden}": shape(layers, hidden)
    for layers in (2, 4, 6, 8, 10, 12)
    for hidden in (128, 256, 512, 768)
}

_NO_BIASES = dict(attention_bias=False, inner_bias=False, output_bias=False)
_NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

# The architecture of ModernBERT (Warner et al. 2024, section 2.1) and Ettin (Weller et al. 2025).
MODERN_ARCHITECTURE: dict[str, Any] = {
    **_NO_BIASES,
    **_NO_DROPOUT,
    "model_type": "modernbert",
    "vocab_size": 50368,
    "max_position_embeddings": 8192,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-5,
    "position": "rotary",
    "rotary_theta": 160_000.0,
    "local_rotary_theta": 10_000.0,
    "local_window": 64,
    "global_every": 3,
    "norm_placement": "pre",
    "final_norm": True,
    "first_attention_norm": False,
    "norm_bias": False,
    "feed_forward": "glu",
    "initializer": "megatron",
}

MODERN: dict[str, dict[str, Any]] = {
    "ettin-17m": MODERN_ARCHITECTURE | shape(7, 256, 4, 384),
    "ettin-32m": MODERN_ARCHITECTURE | shape(10, 384, 6, 576),
    "ettin-68m": MODERN_ARCHITECTURE | shape(19, 512, 8, 768),
    "ettin-150m": MODERN_ARCHITECTURE | shape(22, 768, 12, 1152),
    "ettin-400m": MODERN_ARCHITECTURE | shape(28, 1024, 16, 2624),
    "ettin-1b": MODERN_ARCHITECTURE | shape(28, 1792, 28, 3840),
    "modernbert-base": MODERN_ARCHITECTURE | shape(22, 768, 12, 1152),
    "modernbert-large": MODERN_ARCHITECTURE | shape(28, 1024, 16, 2624),
}

# Differences of RoBERTa (Liu et al. 2019) and XLM-R (Conneau et al. 2020) from BERT. Their positions are
# counted from 2, so a position table of 514 rows is for 512 tokens.
ROBERTA_ARCHITECTURE: dict[str, Any] = {
    "position_offset": 2,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
}

ROBERTA: dict[str, dict[str, Any]] = {
    "roberta-base": ROBERTA_ARCHITECTURE | shape(12, 768, vocab_size=50265),
    "roberta-large": ROBERTA_ARCHITECTURE | shape(24, 1024, vocab_size=50265),
    "distilroberta-base": ROBERTA_ARCHITECTURE | shape(6, 768, vocab_size=50265),
}

XLM_ROBERTA: dict[str, dict[str, Any]] = {
    "xlm-roberta-base": ROBERTA_ARCHITECTURE | shape(12, 768, vocab_size=250002),
    "xlm-roberta-large": ROBERTA_ARCHITECTURE | shape(24, 1024, vocab_size=250002),
}

# The architecture of ALBERT (Lan et al. 2020) with the sizes of xxlarge, which google-research/albert and
# transformers use for fields that a configuration omits.
ALBERT_ARCHITECTURE: dict[str, Any] = {
    "vocab_size": 30000,
    "embedding_size": 128,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
    "layer_groups": 1,
    "hidden_act": "gelu_tanh",
    **_NO_DROPOUT,
}

ALBERT: dict[str, dict[str, Any]] = {
    f"albert-{size}-{version}": ALBERT_ARCHITECTURE
    | shape(*own)
    | dict.fromkeys(_NO_DROPOUT, dropout if version == "v1" else 0.0)
    for version in ("v1", "v2")
    for size, own, dropout in (
        ("base", (12, 768, 12), 0.1),
        ("large", (24, 1024, 16), 0.1),
        ("xlarge", (24, 2048, 16), 0.1),
        ("xxlarge", (12, 4096, 64), 0.0),
    )
}

# The architecture of DeBERTa v2 (He et al. 2021) and v3 (He et al. 2023). The two models of v2 have a
# convolution in parallel with the first layer.
DEBERTA_ARCHITECTURE: dict[str, Any] = {
    "model_type": "deberta-v2",
    "vocab_size": 128_100,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
    "position": "disentangled",
    "position_buckets": 256,
    "projection_placement": "before_norm",
}
_CONVOLUTION: dict[str, Any] = dict(conv_kernel_size=3, conv_act="gelu")

DEBERTA: dict[str, dict[str, Any]] = {
    "deberta-v2-xlarge": DEBERTA_ARCHITECTURE | shape(24, 1536, **_CONVOLUTION),
    "deberta-v2-xxlarge": DEBERTA_ARCHITECTURE | shape(48, 1536, **_CONVOLUTION),
    "deberta-v3-xsmall": DEBERTA_ARCHITECTURE | shape(12, 384),
    "deberta-v3-small": DEBERTA_ARCHITECTURE | shape(6, 768),
    "deberta-v3-base": DEBERTA_ARCHITECTURE | shape(12, 768),
    "deberta-v3-large": DEBERTA_ARCHITECTURE | shape(24, 1024),
    "mdeberta-v3-base": DEBERTA_ARCHITECTURE | shape(12, 768, vocab_size=251_000),
}

# Encoders without a family of released files. They are only written as work directories.
OTHERS: dict[str, dict[str, Any]] = {
    # BERT with ALiBi and a gated feed-forward block (Portes et al. 2023).
    "mosaicbert-base": shape(12, 768)
    | dict(model_type="mosaicbert", vocab_size=30528, position="alibi", feed_forward="glu", inner_bias=False)
    | dict(attention_probs_dropout_prob=0.0),
    # Le Breton et al. 2025. The authors rotate adjacent coordinates of a head, bert_jax i and i + D/2.
    "neobert": shape(28, 768, inner=2048)
    | _NO_BIASES
    | _NO_DROPOUT
    | dict(
        model_type="neobert",
        max_position_embeddings=4096,
        type_vocab_size=0,
        layer_norm_eps=1e-5,
        position="rotary",
        norm="rmsnorm",
        norm_bias=False,
        norm_placement="pre",
        final_norm=True,
        embedding_norm=False,
        feed_forward="glu",
        hidden_act="silu",
    ),
    # Geiping and Goldstein 2023.
    "crammed-bert": shape(16, 768, inner=1536)
    | _NO_BIASES
    | _NO_DROPOUT
    | dict(
        model_type="crammed-bert",
        vocab_size=32768,
        max_position_embeddings=128,
        type_vocab_size=0,
        position="scaled_sinusoid",
        norm_placement="pre",
        final_norm=True,
        feed_forward="glu",
    ),
}

SIZES: Mapping[str, Mapping[str, Any]] = BERT | MODERN | OTHERS


def named(size: str, **overrides: Any) -> EncoderConfig:
    """Returns the configuration of a named size; raises UserError if the size or a field is unknown."""
    if size not in SIZES:
        raise UserError(f"model size {size!r} is unknown; expected one of {', '.join(SIZES)}")
    return from_dict({**SIZES[size], **overrides})
