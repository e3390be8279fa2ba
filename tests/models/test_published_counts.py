"""Parameter counts, from shapes alone, beside the published integers and those of the papers' formulas."""

import pytest

from bert_jax.models import ClassificationModel, Encoder, PretrainingModel, config, heads, parameters
from bert_jax.models.heads import CLASSIFIER_DROPOUT, ClassificationHead, MaskedLMHead
from bert_jax.models.sizes import named


def sizes(layers, hidden, inner, number_of_heads, vocabulary, **fields):
    return config.EncoderConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=inner,
        num_attention_heads=number_of_heads,
        vocab_size=vocabulary,
        **fields,
    )


def albert(layers, hidden, inner, number_of_heads):
    shared = dict(embedding_size=128, layer_groups=1, hidden_act="gelu_tanh")
    return sizes(layers, hidden, inner, number_of_heads, 30_000, **shared)


def roberta(layers, hidden, inner, number_of_heads, vocabulary=50_265):
    fields = dict(type_vocab_size=1, position_offset=2, max_position_embeddings=514)
    return sizes(layers, hidden, inner, number_of_heads, vocabulary, **fields)


MODERN_HEAD = MaskedLMHead(transform_bias=False)
DISTILBERT = sizes(6, 768, 3072, 12, 30_522, type_vocab_size=0)

# (configuration, encoder, with the masked LM head or None, that head)
COUNTS = {
    "bert-base": (named("base"), 108_891_648, 109_514_298, MaskedLMHead()),
    "roberta-base": (roberta(12, 768, 3072, 12), 124_055_040, 124_697_433, MaskedLMHead()),
    "roberta-large": (roberta(24, 1024, 4096, 16), 354_310_144, 355_412_057, MaskedLMHead()),
    "xlm-roberta-base": (roberta(12, 768, 3072, 12, 250_002), 277_453_056, 278_295_186, MaskedLMHead()),
    "distilbert": (DISTILBERT, 66_362_880, 66_985_530, MaskedLMHead()),
    "albert-base": (albert(12, 768, 3072, 12), 11_092_992, 11_221_680, MaskedLMHead()),
    "albert-large": (albert(24, 1024, 4096, 16), 16_634_368, 16_795_824, MaskedLMHead()),
    "albert-xlarge": (albert(24, 2048, 8192, 16), 54_528_512, 54_821_040, MaskedLMHead()),
    "albert-xxlarge": (albert(12, 4096, 16_384, 64), 205_814_272, 206_368_944, MaskedLMHead()),
    "electra-small": (
        sizes(12, 256, 1024, 4, 30_522, embedding_size=128), 13_483_008, 13_546_682, MaskedLMHead()
    ),
    "electra-small's generator": (
        sizes(12, 64, 256, 1, 30_522, embedding_size=128), 4_580_928, 4_620_026, MaskedLMHead()
    ),
    "electra-large": (sizes(24, 1024, 4096, 16, 30_522), 334_092_288, None, None),
    "modernbert-base": (named("modernbert-base"), 149_014_272, 149_655_232, MODERN_HEAD),
    "modernbert-large": (named("modernbert-large"), 394_781_696, 395_881_664, MODERN_HEAD),
    "ettin-17m": (named("ettin-17m"), 16_797_440, 16_913_600, MODERN_HEAD),
    "ettin-32m": (named("ettin-32m"), 31_883_136, 32_081_344, MODERN_HEAD),
    "ettin-68m": (named("ettin-68m"), 68_144_640, 68_457_664, MODERN_HEAD),
    "ettin-150m": (named("ettin-150m"), 149_014_272, 149_655_232, MODERN_HEAD),
    "ettin-400m": (named("ettin-400m"), 394_781_696, 395_881_664, MODERN_HEAD),
    "ettin-1b": (named("ettin-1b"), 1_028_050_688, 1_031_314_112, MODERN_HEAD),
    "mosaicbert-base": (named("mosaicbert-base"), 136_777_728, 137_400_384, MaskedLMHead()),
    "neobert": (named("neobert"), 221_665_536, None, None),
    "crammed-bert": (
        named("crammed-bert"), 119_589_889, 119_589_889,
        MaskedLMHead(transform=False, norm=False, decoder_bias=False),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_encoders_and_masked_lm_heads(name):
    made, encoder, with_head, head = COUNTS[name]
    assert parameters.count(parameters.abstract(Encoder(made))) == encoder
    if with_head:
        params = parameters.abstract(PretrainingModel(made, head), 6)
        assert parameters.count({name: params.get(name, {}) for name in ("encoder", "mlm")}) == with_head


ROBERTA_HEAD = ClassificationHead(drop_in=CLASSIFIER_DROPOUT, dense="head")


@pytest.mark.parametrize(
    "made, head, expected",
    [
        (named("base"), heads.SEQUENCE, 109_483_778),
        (roberta(12, 768, 3072, 12), ROBERTA_HEAD, 124_647_170),
        (DISTILBERT, ClassificationHead(dense="head", activation="relu"), 66_955_010),
        (
            sizes(12, 256, 1024, 4, 30_522, embedding_size=128),
            ClassificationHead(drop_in=CLASSIFIER_DROPOUT, dense="head", activation="gelu"),
            13_549_314,
        ),
        (
            named("modernbert-base"),
            ClassificationHead(pooling="mean", dense="head", dense_bias=False, activation="gelu", norm=True),
            149_606_402,
        ),
    ],
)
def test_classifiers_of_two_classes(made, head, expected):
    assert parameters.count(parameters.abstract(ClassificationModel(made, 2, head))) == expected
