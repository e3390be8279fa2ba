"""The settings of masks: which are refused, shares as text, and what a step and an evaluation have."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import MASK, packed_batch, tiny_task

from bert_jax.errors import UserError
from bert_jax.objectives.masking import MaskingOptions, parse_shares, prob_at
from bert_jax.training.step import make_eval_step


def test_the_share_goes_from_the_first_to_the_last():
    linear = MaskingOptions(prob=0.3, final_prob=0.15, schedule="linear", total_steps=1000)
    values = [float(prob_at(linear, step)) for step in (0, 250, 500, 1000, 2000)]
    np.testing.assert_allclose(values, [0.3, 0.2625, 0.225, 0.15, 0.15], rtol=1e-6)
    cosine = MaskingOptions(prob=0.3, final_prob=0.1, schedule="cosine", total_steps=1000)
    values = [float(prob_at(cosine, step)) for step in (0, 250, 500, 1000)]
    half = np.cos(np.pi / 4) / 2
    np.testing.assert_allclose(values, [0.3, 0.3 - 0.2 * (0.5 - half), 0.2, 0.1], rtol=1e-6)
    assert prob_at(MaskingOptions(), 7) is None and linear.largest_prob == 0.3


@pytest.mark.long
def test_the_step_of_training_sets_the_share_and_evaluation_has_its_own_masks():
    masking = MaskingOptions(0.5, final_prob=0.1, schedule="linear", total_steps=10, max_predictions=16)
    evaluation = MaskingOptions(0.25, replace=(1, 0, 0), max_predictions=8)
    task = tiny_task()
    task = type(task)(task.config, task.vocabulary, masking, eval_masking=evaluation)
    batch = packed_batch()
    key = jax.random.key(0)

    prepare = jax.jit(task.prepare, static_argnums=2)

    def share(step):
        prepared = prepare(task.at_step(batch, step), key, True)
        assert "mask_prob" not in prepared
        return float(prepared["masked_weights"].sum() / batch["lengths"].sum())

    assert abs(share(0) - 0.5) < 0.03 and abs(share(5) - 0.3) < 0.03 and abs(share(10) - 0.1) < 0.03
    prepared = prepare(batch, key, False)
    used = prepared["masked_weights"] > 0
    assert prepared["masked_positions"].shape == (8, 8)
    now = np.take_along_axis(prepared["input_ids"], prepared["masked_positions"], 1)[used]
    assert (now == MASK).all() and abs(used.sum() / batch["lengths"].sum() - 0.25) < 0.03
    params = jax.eval_shape(task.init, key)
    pairs = jax.eval_shape(make_eval_step(task), params, batch, jnp.int32(0), jnp.uint32(0))
    assert {"mlm_loss", "nsp_loss"} <= set(pairs)


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            dict(strategy="words"),
            "masking.strategy='words' is unknown; choose one of token, whole_word, span",
        ),
        (dict(count="all"), "masking.count='all' is unknown"),
        (dict(never_chosen="cls"), "masking.never_chosen='cls' is unknown"),
        (dict(schedule="step"), "masking.schedule='step' is unknown"),
        (dict(prob=0.0), "masking.prob=0.0 must be between 0 and 1"),
        (dict(max_predictions=0), "masking.max_predictions=0 must be at least 1"),
        (dict(replace=(0.8, 0.1, 0.2)), "masking.replace=0.8, 0.1, 0.2: expected three shares"),
        (dict(replace=(1.2, -0.2, 0)), "not negative"),
        (dict(smoothing=0.7, strategy="ngram"), "masking.smoothing=0.7 is for masking.strategy=token"),
        (dict(final_prob=0.1), "masking.schedule=constant with masking.final_prob=0.1"),
        (dict(schedule="linear"), "masking.schedule=linear with masking.final_prob=0"),
    ],
)
def test_mistakes(fields, message):
    with pytest.raises(UserError) as error:
        MaskingOptions(**fields)
    assert message in str(error.value)


def test_shares_as_text():
    assert parse_shares("0.8, 0.1,.1") == (0.8, 0.1, 0.1)
    for text in ("1,0", "0.8,0.1,x", "", "1,0,0,0"):
        with pytest.raises(UserError, match="expected the shares of"):
            parse_shares(text)
