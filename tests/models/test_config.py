import pytest

from bert_jax.kernels.dispatch import Target
from bert_jax.models import PretrainingModel, parameters, sizes

# Published counts of encoder and pooler, and with both heads where known.
COUNTS = [
    ("tiny", 4_385_920, None),
    ("mini", 11_170_560, None),
    ("small", 28_763_648, None),
    ("medium", 41_373_184, None),
    ("base", 109_482_240, 110_106_428),
    ("large", 335_141_888, 336_226_108),
    ("base_cased", 108_310_272, None),
    ("base_multilingual_cased", 177_853_440, None),
    ("base_chinese", 102_267_648, None),
]


@pytest.mark.parametrize("size,encoder,with_heads", COUNTS)
def test_parameter_counts(size, encoder, with_heads):
    """`with_heads`: with the masked LM and next-sentence heads, where a count of them is published."""
    params = parameters.abstract(PretrainingModel(sizes.named(size)), 6)
    assert parameters.count({name: params[name] for name in ("encoder", "pooler")}) == encoder
    if with_heads:
        assert parameters.count(params) == with_heads


CPU, TPU, H100, T4 = Target("cpu"), Target("tpu"), Target("gpu", "9.0"), Target("gpu", "7.5")
NEW_CPU = Target("cpu", "bfloat16")


@pytest.mark.parametrize(
    "trained, target, used",
    [
        ("auto", CPU, "float32"),
        ("auto", NEW_CPU, "float32"),
        ("auto", TPU, "bfloat16"),
        ("bfloat16", CPU, "float32"),
        ("bfloat16", NEW_CPU, "float32"),
        ("bfloat16", H100, "bfloat16"),
        ("bfloat16", T4, "float32"),
        ("float32", CPU, "float32"),
        ("float32", H100, "float32"),
    ],
)
def test_inference_computes_in_the_dtype_of_training_but_a_cpu_in_float32(trained, target, used):
    model = sizes.named("tiny", dtype=trained)
    assert model.for_inference(target).dtype == used
    assert model.for_inference(target, "bfloat16").dtype == "bfloat16"


def test_inference_chooses_the_kernels_of_its_own_device():
    model = sizes.named("tiny", attention="cudnn", attention_probs_dropout_prob=0.0, remat="full")
    used = model.for_inference(CPU)
    assert (used.attention, used.remat, used.dtype) == ("auto", "none", "float32")
    plain = sizes.named("tiny", attention="xla").for_inference(TPU)
    assert plain.attention == "xla"
