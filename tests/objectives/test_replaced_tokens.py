"""ELECTRA's objective: two networks in one program, whose samples depend on the row alone."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import google_records
from support.google_records import example
from support.models import SPECIAL, packed_batch, tiny_config, tiny_task

from bert_jax.checkpoint.leaves import flatten
from bert_jax.data import records
from bert_jax.errors import UserError
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import MaskedLMHead
from bert_jax.models.parameters import parameter_shapes
from bert_jax.models.row_inputs import INPUTS
from bert_jax.objectives import losses, replaced_tokens
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.replaced_tokens import VARIANTS, ReplacedTokens, generator_config
from bert_jax.parallel import sharding
from bert_jax.training.state import abstract_state, init_state
from bert_jax.training.step import make_eval_step, make_train_step

ROWS = 8


def make(variant="electra", hidden=16, embedding=24, rate=0.1, **options):
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
    return ReplacedTokens(config, generator, variant, **options)


@functools.cache
def begin():
    """An objective, its optimizer, and a state on the host."""
    objective, optimizer = make(), optax.scale_by_adam(eps=1e-3)
    mesh = sharding.make_mesh(devices=jax.devices()[:1])
    return objective, optimizer, jax.device_get(init_state(objective, optimizer, mesh, 0))


@functools.cache
def train(parts=1, sizes=(1, 1, 1)):
    """Two steps: the metrics of each, the parameters after them, and an evaluation."""
    objective, optimizer, state = begin()
    mesh = sharding.make_mesh(*sizes, devices=jax.devices()[: int(np.prod(sizes))])
    abstract = abstract_state(objective, optimizer, mesh)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    state = jax.device_put(state, shardings)
    step = make_train_step(objective, optimizer, lambda step: 1e-2, parts)
    step, lines = sharding.jit_train_step(step, mesh, shardings), []
    for number in range(2):
        batch = sharding.global_batch(packed_batch(rows=ROWS, seed=number), mesh)
        state, metrics = step(state, batch, np.uint32(3))
        lines.append({name: float(value) for name, value in metrics.items()})
    evaluate = sharding.jit_eval_step(make_eval_step(objective), mesh, shardings)
    batch = sharding.global_batch(packed_batch(rows=ROWS, seed=9), mesh)
    found = evaluate(state.params, batch, np.int32(0), np.uint32(3))
    return lines, jax.device_get(state.params), {name: float(total) for name, (total, _) in found.items()}


@pytest.mark.long
@pytest.mark.parametrize(
    ("parts", "sizes"),
    [
        (2, (4, 1, 2)),
        *(
            pytest.param(parts, sizes, marks=pytest.mark.slow)
            for parts, sizes in ((2, (1, 1, 1)), (4, (1, 1, 1)), (1, (2, 2, 2)))
        ),
    ],
)
def test_parts_and_meshes_change_nothing(parts, sizes):
    lines, params, evaluation = train(parts=parts, sizes=sizes)
    whole, expected, of_whole = train()
    for mine, reference in zip([*lines, evaluation], [*whole, of_whole], strict=True):
        for key in reference:
            assert mine[key] == pytest.approx(reference[key], rel=5e-5, abs=1e-6, nan_ok=True), key
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), params, expected)


@pytest.mark.long
def test_the_loss_is_the_generators_plus_50_times_the_discriminators():
    for line in train()[0]:
        expected = line["generator_loss"] + 50 * line["discriminator_loss"]
        assert line["loss"] == pytest.approx(expected, rel=1e-6) and not line["skipped"]
    first = train()[0][0]
    assert first["loss"] == pytest.approx(make().initial_loss, rel=0.03)
    assert first["replaced_share"] == pytest.approx(0.15 * (1 - first["generator_accuracy"]), abs=0.05)
    published = make().generator.config.replace(vocab_size=30522), tiny_config(vocab_size=30522)
    width = published[0].embedding_width
    generator = MaskedLM(published[0], None, None, next_sentence_head=False)
    assert ReplacedTokens(published[1], generator).initial_loss == pytest.approx(
        10.326 + 34.657 + 0.774 * width * 0.02**2 / 2, abs=0.001
    )


@functools.cache
def prepare_and_init(variant):
    objective = make(variant)
    prepare = jax.jit(lambda batch: objective.prepare(batch, jax.random.key(7), True))
    return prepare(packed_batch(rows=ROWS)), sharding.unbox(jax.jit(objective.init)(jax.random.key(1)))


def prepared_and_params(variant="electra"):
    return jax.tree.map(lambda leaf: leaf, prepare_and_init(variant))  # that a test may change


@functools.cache
def losses_and_gradients(variant):
    """The prepared batch, the pairs of every loss, and {loss: gradient} of both networks' losses."""
    objective = make(variant)
    batch, params = prepared_and_params(variant)

    def loss(params, name):
        pairs, _ = objective.loss(params, batch, None)
        return pairs[name][0], pairs

    names = ("generator", VARIANTS[variant].name)
    if variant != "electra":
        names = names[1:]
    found = jax.jit(lambda params: [jax.grad(loss, has_aux=True)(params, name) for name in names])(params)
    gradients = {name: flatten(gradient) for name, (gradient, _) in zip(names, found, strict=True)}
    return batch, found[0][1], gradients


@pytest.mark.long
def test_no_gradient_of_the_discriminator_reaches_the_generator():
    _, _, gradients = losses_and_gradients("electra")
    of_discriminator, of_generator = gradients["discriminator"], gradients["generator"]
    for name, gradient in of_discriminator.items():
        own = name.startswith("generator/")
        assert bool(np.any(gradient)) == (not own), name
        shared = "embeddings" in name and "projection" not in name and not own
        assert bool(np.any(of_generator[name])) == (own or shared), name
    assert "encoder/embeddings/projection/kernel" in of_discriminator
    assert "generator/encoder/embeddings/projection/kernel" in of_discriminator


def test_the_networks_share_the_tables_and_the_norm():
    names = parameter_shapes(jax.eval_shape(make().init, jax.random.key(0)))
    own = {name.removeprefix("generator/") for name in names if name.startswith("generator/")}
    embeddings = {name for name in names if name.startswith("encoder/embeddings/")}
    assert {name for name in own if "embeddings" in name} == {
        "encoder/embeddings/projection/kernel",
        "encoder/embeddings/projection/bias",
    }
    assert {name.split("/")[2] for name in embeddings} == {
        "word_embeddings", "token_type_embeddings", "position_embeddings", "layer_norm", "projection",
    }  # fmt: skip
    assert names["encoder/embeddings/layer_norm/scale"] == (24,)
    no_projection = parameter_shapes(jax.eval_shape(make(hidden=24).init, jax.random.key(0)))
    assert not any("embeddings" in name for name in no_projection if name.startswith("generator/"))


def replaced_rows(objective, batch, params, monkeypatch):
    """The rows and labels that the discriminator gets."""

    def keep(model, params, batch, rngs):
        seen = {name: batch[name] for name in ("input_ids", "replaced", "counted")}
        return (jnp.float32(0), jnp.float32(1)), {name: (x, jnp.float32(1)) for name, x in seen.items()}

    variant = VARIANTS["electra"]
    monkeypatch.setitem(VARIANTS, "electra", replaced_tokens.Variant(variant.name, variant.model, keep, True))
    _, metrics = jax.jit(lambda params, batch: objective.loss(params, batch, None))(params, batch)
    return {name: np.asarray(metrics[name][0]) for name in ("input_ids", "replaced", "counted")}


@pytest.mark.long
def test_samples_replace_masked_tokens_and_a_right_guess_is_original(monkeypatch):
    objective = make()
    given = packed_batch(rows=ROWS)
    batch, params = prepared_and_params()
    np.testing.assert_array_equal(batch["original_ids"], given["input_ids"])
    params["generator"]["mlm"]["bias"] = params["generator"]["mlm"]["bias"].at[50].set(1000.0)
    chosen = np.zeros((ROWS, 32), bool)
    for row in range(ROWS):
        at = np.asarray(batch["masked_positions"])[row][np.asarray(batch["masked_weights"])[row] > 0]
        chosen[row, at] = True
    assert not np.isin(given["input_ids"][chosen], SPECIAL).any()
    seen = replaced_rows(objective, batch, params, monkeypatch)
    np.testing.assert_array_equal(seen["input_ids"], np.where(chosen, 50, given["input_ids"]))
    np.testing.assert_array_equal(seen["replaced"], chosen & (given["input_ids"] != 50))
    np.testing.assert_array_equal(seen["counted"], np.arange(32) < given["lengths"][:, None])
    # Every chosen token is 50, so that every sample is a right guess, unless right guesses are not allowed.
    batch["original_ids"] = jnp.where(chosen, 50, batch["original_ids"])
    batch["masked_labels"] = jnp.full_like(batch["masked_labels"], 50)
    assert not replaced_rows(objective, batch, params, monkeypatch)["replaced"].any()
    params["generator"]["mlm"]["bias"] = params["generator"]["mlm"]["bias"].at[50].set(900.0)
    other = make(disallow_correct=True)
    np.testing.assert_array_equal(replaced_rows(other, batch, params, monkeypatch)["replaced"], chosen)


def test_samples_follow_the_distribution_and_the_key_of_the_row():
    logits = jnp.log(jnp.array([0.5, 0.3, 0.15, 0.05]))
    keys = jax.random.key_data(jax.random.split(jax.random.key(0), 4000))
    noise = replaced_tokens.uniform_noise(keys, 5, 4)
    drawn = np.asarray(replaced_tokens.sample(jnp.broadcast_to(logits, (4000, 5, 4)), noise))
    shares = np.bincount(drawn.ravel(), minlength=4) / drawn.size
    assert np.all(np.abs(shares - np.exp(logits)) < 4 * np.sqrt(0.25 / drawn.size))
    cold = replaced_tokens.sample(jnp.broadcast_to(logits, (4000, 5, 4)), noise, 0.5)
    assert np.mean(np.asarray(cold) == 0) == pytest.approx(0.25 / (0.25 + 0.09 + 0.0225 + 0.0025), abs=0.02)
    np.testing.assert_array_equal(replaced_tokens.uniform_noise(keys[7:9], 5, 4), noise[7:9])


def test_samples_differ_by_step_and_row_and_not_by_place_in_the_batch():
    batch, prepare = packed_batch(rows=ROWS), jax.jit(make().prepare, static_argnums=2)
    first = prepare(batch, jax.random.key(1), True)["sample_keys"]
    other = prepare(batch, jax.random.key(2), False)["sample_keys"]
    assert len({tuple(key) for key in np.concatenate([first, other]).tolist()}) == 2 * ROWS
    part = {name: x[3:5] for name, x in batch.items()}
    np.testing.assert_array_equal(prepare(part, jax.random.key(1), True)["sample_keys"], first[3:5])


@pytest.mark.long
def test_a_packed_sequence_is_computed_as_alone(monkeypatch):
    """With the same masks and noise, the sums over a packed row are those over its sequences."""
    objective = make(rate=0.0)
    batch, params = prepared_and_params()
    given = packed_batch(rows=ROWS)
    noise = np.random.default_rng(0).uniform(size=(ROWS, 32, 101)).astype(np.float32)  # by row and token
    at = np.asarray(batch["masked_positions"])

    def sums(batch, noise):
        monkeypatch.setattr(replaced_tokens, "uniform_noise", lambda *_: jnp.asarray(noise))
        pairs, metrics = jax.jit(lambda: objective.loss(params, batch, None))()
        return jax.device_get({**pairs, **metrics})

    whole = sums(batch, noise[np.arange(ROWS)[:, None], at])
    rows = [(row, slot) for row in range(ROWS) for slot in range(3) if given["first_lengths"][row, slot]]
    assert len(rows) > ROWS
    alone = {name: np.zeros((len(rows), *x.shape[1:]), x.dtype) for name, x in batch.items()}
    of_alone = np.zeros((len(rows), *noise[0, at[0]].shape), np.float32)
    for index, (row, slot) in enumerate(rows):
        here = np.asarray(batch["sequence_ids"])[row] == slot + 1
        start, size = given["starts"][row, slot], here.sum()
        for name in ("input_ids", "original_ids", "token_type_ids", "position_ids", "counted"):
            alone[name][index, :size] = np.asarray(batch[name])[row][here]
        alone["sequence_ids"][index, :size] = 1
        mine = (np.asarray(batch["masked_weights"])[row] > 0) & here[at[row]]
        for name in ("masked_labels", "masked_weights"):
            alone[name][index] = np.asarray(batch[name])[row] * mine
        alone["masked_positions"][index] = (at[row] - start) * mine
        of_alone[index] = noise[row, at[row]]
    separate = sums(alone, of_alone)
    for name, (total, weight) in whole.items():
        np.testing.assert_allclose(separate[name][0], total, rtol=2e-5, err_msg=name)
        np.testing.assert_array_equal(separate[name][1], weight, err_msg=name)


def test_records_with_masks_are_restored(tmp_path):
    google_records.write(
        tmp_path / "records" / "a.tfrecord",
        [example(first=(9, 4), second=(11, 12), masks=((2, 10), (4, 11)), label=1)],
    )
    vocab = google_records.write_vocabulary(tmp_path / "vocab.txt", 101)
    batch = records.open_dataset(str(tmp_path / "records"), "train", vocab).batch(np.arange(1))
    prepared = make().prepare(batch, jax.random.key(0), True)
    assert np.asarray(prepared["original_ids"])[0, :7].tolist() == [2, 9, 10, 3, 11, 12, 3]


@pytest.mark.long
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant):
    """Each trains both networks, and begins with the loss of an untrained model."""
    objective = make(variant)
    batch, pairs, gradients = losses_and_gradients(variant)
    weights = objective.weights(batch)
    assert pairs.keys() == weights.keys() == {"generator", VARIANTS[variant].name}
    for name, (_, weight) in pairs.items():
        assert weight == weights[name]
    total = sum(objective.scales.get(name, 1) * losses.mean(pair) for name, pair in pairs.items())
    if objective.initial_loss is not None:
        assert float(total) == pytest.approx(objective.initial_loss, rel=0.03)
    every_token = VARIANTS[variant].every_token
    expected = np.sum(packed_batch(rows=ROWS)["lengths"]) if every_token else np.sum(batch["masked_weights"])
    assert weights[VARIANTS[variant].name] == expected
    gradient = gradients[VARIANTS[variant].name]
    assert all(np.any(x) != name.startswith("generator/") for name, x in gradient.items())


@pytest.mark.long
def test_the_copy_mechanism_by_hand():
    objective = make("all_tokens_mlm", rate=0.0)
    batch, params = prepared_and_params("all_tokens_mlm")
    params["discriminator"]["out"]["kernel"] *= 0
    params["discriminator"]["out"]["bias"] = jnp.array([np.log(3.0)])  # D = 3/4
    params["mlm"] = jax.tree.map(jnp.zeros_like, params["mlm"])  # p = 1/V
    pairs, metrics = jax.jit(lambda: objective.loss(params, batch, None))()
    (total, weight), replaced = pairs["mlm"], float(metrics["replaced_share"][0])
    copied = float(weight) - replaced
    expected = -copied * np.log(0.75 + 0.25 / 101) - replaced * np.log(0.25 / 101)
    assert replaced > 10 and float(total) == pytest.approx(expected, rel=1e-5)


def test_the_metrics_of_the_discriminator_by_hand():
    """Of the tokens that count, it finds 3 of 4 that were replaced, and takes 2 of 4 others for replaced."""
    logits = jnp.array([[1.0, 2, 3, -1, 1, 1, -1, -2, 5, 5]])
    replaced, counted = jnp.array([[1.0] * 4 + [0] * 4 + [1, 0]]), jnp.array([[1.0] * 8 + [0, 0]])
    model = types.SimpleNamespace(apply=lambda *inputs, **options: {"discriminator": logits})
    batch = dict.fromkeys(INPUTS) | {"replaced": replaced, "counted": counted}
    (total, weight), metrics = replaced_tokens._discriminator(model, {}, batch, None)
    expected = np.log1p(np.exp(np.where(replaced > 0, -logits, logits)))[:, :8].sum()
    assert float(total) == pytest.approx(expected, rel=1e-6) and weight == 8
    shares = {"accuracy": (5, 8), "precision": (3, 5), "recall": (3, 4)}
    assert metrics == {f"discriminator_{name}": pair for name, pair in shares.items()}


def test_the_networks_have_dropout_of_their_own(monkeypatch):
    """Layers of the same names would draw the same masks from the same key."""
    (batch, params), keys = prepared_and_params(), []

    def apply(variables, *inputs, deterministic, rngs):
        keys.append(rngs["dropout"])
        return jnp.zeros((ROWS, 8, 101)), None

    monkeypatch.setattr(MaskedLM, "model", types.SimpleNamespace(apply=apply))
    variant = VARIANTS["electra"]

    def keep(model, params, batch, rngs):
        keys.append(rngs["dropout"])
        return (0.0, 1.0), {}

    monkeypatch.setitem(VARIANTS, "electra", dataclasses.replace(variant, loss=keep))
    make().loss(params, batch, {"dropout": jax.random.key(0)})
    assert len({tuple(jax.random.key_data(key).tolist()) for key in keys}) == 2


@pytest.mark.parametrize("width, heads", [(256, 1), (1024, 4), (896, 2), (64, 1), (1536, 6)])
def test_the_heads_of_the_generator_divide_its_width(width, heads):
    config = EncoderConfig(hidden_size=width, num_attention_heads=width // 64)
    assert generator_config(config).num_attention_heads == heads
    adapted = generator_config(config.replace(attention_adapter=8, output_adapter=8))
    assert (adapted.attention_adapter, adapted.output_adapter) == (0, 0)


def test_mistakes():
    with pytest.raises(
        UserError, match=r"replaced_tokens\.variant='elektra' is unknown; choose one of electra"
    ):
        make("elektra")
