import jax
import pytest

from bert_jax import benchmark, config


@pytest.mark.parametrize("attention", ["pallas", "splash", "cudnn"])
def test_parameters_need_no_kernel(attention):
    """They are initialised on any platform, on rows of a few tokens."""
    model = config.named("tiny", vocab_size=60, attention=attention, attention_probs_dropout_prob=0.0)
    assert jax.eval_shape(benchmark.make_task(model, 128).init, jax.random.key(0))
