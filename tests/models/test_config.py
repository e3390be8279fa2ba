import pytest

from bert_jax.kernels.dispatch import Target
from bert_jax.models import sizes

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
