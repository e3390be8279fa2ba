"""Parameter counts of the released sizes, computed from module shapes, equal the published integers."""

import functools
import math

import pytest

from bert_jax.convert.families import FAMILIES
from bert_jax.models import assembled
from bert_jax.models.config import EncoderConfig

# {model_type: (columns, {size: one number for each column})}. A column is a head (classifiers have two
# classes), "encoder", or "pooler" for the encoder with a pooler.
_ALBERT = {
    "base": (11_092_992, 11_683_584, 11_221_680, 11_813_810),
    "large": (16_634_368, 17_683_968, 16_795_824, 17_847_474),
    "xlarge": (54_528_512, 58_724_864, 54_821_040, 59_021_490),
    "xxlarge": (205_814_272, 222_595_584, 206_368_944, 223_158_450),
}
_USUAL = ("encoder", "masked_lm", "sequence_classification")
COUNTS = {
    "bert": (("pooler", "pretraining", "encoder", "masked_lm", "sequence_classification"), {
        "tiny": (4_385_920, None, None, None, None),
        "mini": (11_170_560, None, None, None, None),
        "small": (28_763_648, None, None, None, None),
        "medium": (41_373_184, None, None, None, None),
        "base": (109_482_240, 110_106_428, 108_891_648, 109_514_298, 109_483_778),
        "large": (335_141_888, 336_226_108, None, None, None),
        "base_cased": (108_310_272, None, None, None, None),
        "base_multilingual_cased": (177_853_440, None, None, None, None),
        "base_chinese": (102_267_648, None, None, None, None),
    }),
    "roberta": (_USUAL, {
        "roberta-base": (124_055_040, 124_697_433, 124_647_170),
        "roberta-large": (354_310_144, 355_412_057, 355_361_794),
        "distilroberta-base": (81_527_808, 82_170_201, 82_119_938),
    }),
    "xlm-roberta": (_USUAL, {
        "xlm-roberta-base": (277_453_056, 278_295_186, 278_045_186),
        "xlm-roberta-large": (558_840_832, 560_142_482, 559_892_482),
    }),
    "albert": (("encoder", "pooler", "masked_lm", "pretraining"), {
        f"albert-{size}-{version}": numbers for size, numbers in _ALBERT.items() for version in ("v1", "v2")
    }),
    "distilbert": (_USUAL, {
        "distilbert-base-uncased": (66_362_880, 66_985_530, 66_955_010),
        "distilbert-base-cased": (65_190_912, 65_812_036, 65_783_042),
        "distilbert-base-multilingual-cased": (134_734_080, 135_445_755, 135_326_210),
    }),
    "electra": (("encoder", "replaced_tokens", "sequence_classification", "masked_lm"), {
        "electra-small-discriminator": (13_483_008, 13_549_057, 13_549_314, None),
        "electra-base-discriminator": (108_891_648, 109_483_009, 109_483_778, None),
        "electra-large-discriminator": (334_092_288, 335_142_913, 335_143_938, None),
        "electra-small-generator": (13_483_008, None, None, 13_546_682),
        "electra-base-generator": (33_511_168, None, None, 33_740_602),
        "electra-large-generator": (50_999_552, None, None, 51_295_290),
    }),
    "modernbert": (_USUAL, {
        "ettin-17m": (16_797_440, 16_913_600, None),
        "ettin-32m": (31_883_136, 32_081_344, None),
        "ettin-68m": (68_144_640, 68_457_664, None),
        "ettin-150m": (149_014_272, 149_655_232, 149_606_402),
        "ettin-400m": (394_781_696, 395_881_664, 395_833_346),
        "ettin-1b": (1_028_050_688, 1_031_314_112, None),
        "modernbert-base": (149_014_272, 149_655_232, 149_606_402),
        "modernbert-large": (394_781_696, 395_881_664, 395_833_346),
    }),
    # Counted by transformers 5.24 on PyTorch's device "meta".
    "deberta-v2": (_USUAL, {
        "deberta-v2-xlarge": (884_593_152, 887_085_156, 886_957_058),
        "deberta-v2-xxlarge": (1_564_549_632, 1_567_041_636, 1_566_913_538),
        "deberta-v3-xsmall": (70_682_112, 70_958_820, 70_830_722),
        "deberta-v3-small": (141_304_320, 142_024_548, 141_896_450),
        "deberta-v3-base": (183_831_552, 184_551_780, 184_423_682),
        "deberta-v3-large": (434_012_160, 435_191_908, 435_063_810),
        "mdeberta-v3-base": (278_218_752, 279_061_880, 278_810_882),
    }),
}  # fmt: skip


@functools.cache
def count(module):
    """Counts the parameters of a module; cached, as ettin-150m and modernbert-base have equal modules."""
    return sum(math.prod(one.shape) for one in assembled.parameters(module).values())


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_published_parameter_counts(name):
    family, (columns, sizes) = FAMILIES[name], COUNTS[name]
    assert name == "bert" or sizes.keys() == family.sizes.keys()
    for size, published in sizes.items():
        config = EncoderConfig(**{**family.fixed, **family.sizes[size]})
        for column, number in zip(columns, published, strict=True):
            if number is not None:
                parts = {"encoder": ("encoder",), "pooler": ("encoder", "pooler")}
                head = "none" if column in parts else column
                module = family.module(config, parts.get(column) or family.required(head), head)
                assert count(module) == number, (size, column)
