"""ELECTRA's objective: two networks in one program, whose samples depend on the row alone."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import SPECIAL, packed_batch, tiny_config, tiny_task

from bert_jax.checkpoint.leaves import flatten
from bert_jax.models.heads.structures import MaskedLMHead
from bert_jax.models.row_inputs import INPUTS
from bert_jax.objectives import replaced_tokens
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.replaced_tokens import GENERATOR, ReplacedTokens, generator_config
from bert_jax.parallel import sharding

ROWS = 8


def make(hidden=16, embedding=24, rate=0.1, **options):
    config = tiny_config(
        embedding_size=embedding,
        num_attention_heads=2,
        hidden_dropout_prob=rate,
        attention_probs_dropout_prob=rate,
    )
    base = tiny_task()
    generator = MaskedLM(
        generator_config(config, hidden),
        base.vocabulary,
        base.masking,
        head=MaskedLMHead(activation="gelu"),
        next_sentence_head=False,
    )
    return ReplacedTokens(config, generator, **options)


@functools.cache
def prepare_and_init():
    objective = make()
    prepare = jax.jit(lambda batch: objective.prepare(batch, jax.random.key(7), True))
    return prepare(packed_batch(rows=ROWS)), sharding.unbox(jax.jit(objective.init)(jax.random.key(1)))


def prepared_and_params():
    return jax.tree.map(lambda leaf: leaf, prepare_and_init())  # that a test may change


@pytest.mark.long
def test_no_gradient_of_the_discriminator_reaches_the_generator():
    objective, (batch, params) = make(), prepared_and_params()

    def loss(params, name):
        return objective.loss(params, batch, None)[0][name][0]

    both = jax.jit(lambda params: [jax.grad(loss)(params, name) for name in ("discriminator", "generator")])
    of_discriminator, of_generator = map(flatten, both(params))
    for name, gradient in of_discriminator.items():
        own = name.startswith("generator/")
        assert bool(np.any(gradient)) == (not own), name
        shared = "embeddings" in name and "projection" not in name and not own
        assert bool(np.any(of_generator[name])) == (own or shared), name
    assert "encoder/embeddings/projection/kernel" in of_discriminator
    assert "generator/encoder/embeddings/projection/kernel" in of_discriminator


def test_samples_follow_the_distribution_and_the_key_of_the_row():
    logits = jnp.log(jnp.array([0.5, 0.3, 0.15, 0.05]))
    keys = jax.random.key_data(jax.random.split(jax.random.key(0), 4000))
    noise = replaced_tokens.uniform_noise(keys, 5, 4)
    drawn = np.asarray(replaced_tokens.sample(jnp.broadcast_to(logits, (4000, 5, 4)), noise))
    shares = np.bincount(drawn.ravel(), minlength=4) / drawn.size
    assert np.all(np.abs(shares - np.exp(logits)) < 4 * np.sqrt(0.25 / drawn.size))
    np.testing.assert_array_equal(replaced_tokens.uniform_noise(keys[7:9], 5, 4), noise[7:9])


def test_samples_differ_by_step_and_row_and_not_by_place_in_the_batch():
    batch, prepare = packed_batch(rows=ROWS), jax.jit(make().prepare, static_argnums=2)
    first = prepare(batch, jax.random.key(1), True)["sample_keys"]
    other = prepare(batch, jax.random.key(2), False)["sample_keys"]
    assert len({tuple(key) for key in np.concatenate([first, other]).tolist()}) == 2 * ROWS
    part = {name: x[3:5] for name, x in batch.items()}
    np.testing.assert_array_equal(prepare(part, jax.random.key(1), True)["sample_keys"], first[3:5])


@pytest.mark.long
def test_the_discriminator_learns_the_samples_and_a_right_guess_is_original():
    """The losses and metrics of NumPy, from the logits of both networks."""
    objective, given = make(rate=0.0), packed_batch(rows=ROWS)
    batch, params = prepared_and_params()
    np.testing.assert_array_equal(batch["original_ids"], given["input_ids"])
    params[GENERATOR]["mlm"]["bias"] = params[GENERATOR]["mlm"]["bias"].at[50].set(1000.0)
    params["discriminator"] = jax.tree.map(lambda x: 20 * x, params["discriminator"])
    chosen = np.zeros((ROWS, 32), bool)
    for row in range(ROWS):
        at = np.asarray(batch["masked_positions"])[row][np.asarray(batch["masked_weights"])[row] > 0]
        chosen[row, at] = True
    assert not np.isin(given["input_ids"][chosen], SPECIAL).any()
    # Every sample is 50, which is a right guess in half of the rows.
    right = np.arange(ROWS)[:, None] % 2 == 0
    original = np.where(chosen & right, 50, given["input_ids"])
    batch["original_ids"], ids = jnp.asarray(original), np.where(chosen, 50, original)
    replaced, real = ids != original, np.arange(32) < given["lengths"][:, None]

    @jax.jit
    def compute(params):
        own = {name: x for name, x in params.items() if name != GENERATOR}
        inputs = (batch[name] for name in INPUTS[1:])
        return objective.loss(params, batch, None), objective.model.apply({"params": own}, ids, *inputs)

    (pairs, metrics), outputs = compute(params)
    logits = np.asarray(outputs["discriminator"], np.float64)
    losses_of_tokens = np.log1p(np.exp(np.where(replaced, -logits, logits)))
    positive = logits > 0
    assert float(pairs["discriminator"][0]) == pytest.approx(losses_of_tokens[real].sum(), rel=1e-5)
    counts = {
        "replaced_share": (replaced.sum(), real.sum()),
        "discriminator_accuracy": ((positive == replaced)[real].sum(), real.sum()),
        "discriminator_precision": ((positive & replaced)[real].sum(), positive[real].sum()),
        "discriminator_recall": ((positive & replaced)[real].sum(), replaced.sum()),
    }
    assert 0 < counts["discriminator_precision"][0] < counts["discriminator_precision"][1]
    for name, (total, weight) in counts.items():
        assert tuple(map(float, metrics[name])) == (total, weight), name
    assert float(pairs["discriminator"][1]) == real.sum()


def test_the_networks_have_different_dropout(monkeypatch):
    """Layers of the same names would draw the same masks from the same key."""
    (batch, params), keys = prepared_and_params(), []

    def model(outputs):
        def apply(variables, *inputs, deterministic, rngs):
            keys.append(rngs["dropout"])
            return outputs

        return types.SimpleNamespace(apply=apply)

    monkeypatch.setattr(MaskedLM, "model", model((jnp.zeros((ROWS, 8, 101)), None)))
    monkeypatch.setattr(ReplacedTokens, "model", model({"discriminator": jnp.zeros((ROWS, 32))}))
    make().loss(params, batch, {"dropout": jax.random.key(0)})
    assert len({tuple(jax.random.key_data(key).tolist()) for key in keys}) == 2
