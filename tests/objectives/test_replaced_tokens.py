"""ELECTRA's objective: two networks in one program, with samples that depend only on the row."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import objectives
from support.models import SPECIAL, packed_batch

from bert_jax.checkpoint.leaves import flatten
from bert_jax.models.heads.structures import ReplacedTokensHead
from bert_jax.models.row_inputs import INPUTS
from bert_jax.objectives import replaced_tokens
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.replaced_tokens import GENERATOR, ReplacedTokens
from bert_jax.parallel import sharding
from bert_jax.settings.run_config import PretrainOptimizerConfig
from bert_jax.training.optimizers import Layers, make_optimizer
from bert_jax.training.state import init_state
from bert_jax.training.step import make_train_step

ROWS = 8
TABLE = "encoder/embeddings/word_embeddings"
DIFFERENCE = f"{TABLE}_difference"


def make(rate=0.1, layers=0, fields=(), **options):
    fields = dict(
        num_hidden_layers=2, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate, **dict(fields)
    )
    return objectives.replaced_tokens(layers, fields, **options)


@functools.cache
def prepare_and_init(sharing="all"):
    objective = make(sharing=sharing)
    prepare = jax.jit(lambda batch: objective.prepare(batch, jax.random.key(7), True))
    return prepare(packed_batch(rows=ROWS)), sharding.unbox(jax.jit(objective.init)(jax.random.key(1)))


def prepared_and_params(sharing="all"):
    return jax.tree.map(lambda leaf: leaf, prepare_and_init(sharing))  # a copy, which a test may change


@functools.cache
def losses_and_gradients(sharing):
    """Returns a function of parameters that computes {loss: (its mean, its gradient by name)}."""
    objective, (batch, _) = make(sharing=sharing), prepare_and_init(sharing)

    def loss(params, name):
        total, weight = objective.loss(objective.join(params, None), batch, None)[0][name]
        return total / weight

    names = ("discriminator", "generator")
    found = jax.jit(lambda params: [jax.value_and_grad(loss)(params, name) for name in names])
    return lambda params: {
        name: (float(value), flatten(gradient))
        for name, (value, gradient) in zip(names, found(params), strict=True)
    }


@pytest.mark.long
@pytest.mark.parametrize("sharing", ["all", "gdes", "none"])
def test_no_gradient_of_the_discriminator_reaches_the_generator(sharing):
    _, params = prepared_and_params(sharing)
    found = losses_and_gradients(sharing)(params)
    of_discriminator, of_generator = found["discriminator"][1], found["generator"][1]
    for name, gradient in of_discriminator.items():
        own = name.startswith("generator/")
        assert bool(np.any(gradient)) == (not own), name
        shared = sharing == "all" and "embeddings" in name and "projection" not in name and not own
        assert bool(np.any(of_generator[name])) == (own or shared), name
    assert "encoder/embeddings/projection/kernel" in of_discriminator
    assert "generator/encoder/embeddings/projection/kernel" in of_discriminator
    tables = {name for name in of_discriminator if "word_embeddings" in name}
    own = () if sharing == "all" else (f"generator/{TABLE}",)
    assert tables == {DIFFERENCE if sharing == "gdes" else TABLE, *own}


@pytest.mark.long
def test_gradients_of_the_tables_are_finite_differences():
    """The generator's table gets gradients only from masked LM, not from samples or the other table."""
    _, params = prepared_and_params("gdes")
    compute, rng = losses_and_gradients("gdes"), np.random.default_rng(0)
    flat = flatten(params)
    for name, loss in ((DIFFERENCE, "discriminator"), (f"generator/{TABLE}", "generator")):
        direction = rng.normal(size=flat[name].shape).astype(np.float32)

        def moved(step, name=name, direction=direction):
            leaves = flat | {name: flat[name] + step * direction}
            return jax.tree.unflatten(jax.tree.structure(params), leaves.values())

        values = [compute(moved(step))[loss][0] for step in (-2e-3, 2e-3)]
        slope = float(np.sum(compute(params)[loss][1][name] * direction))
        assert (values[1] - values[0]) / 4e-3 == pytest.approx(slope, rel=2e-2)


@pytest.mark.long
@pytest.mark.parametrize(
    "sharing, layers, fields", [("gdes", 1, {}), ("none", 1, {}), ("gdes", 3, {"position": "disentangled"})]
)
def test_the_generator_is_trained_as_by_masked_lm_alone(sharing, layers, fields):
    """The generator's steps equal masked LM's with Adam, decay and clipping, at any number of layers."""
    optimizer = PretrainOptimizerConfig(clip_norm=0.1, weight_decay=0.1, warmup_steps=0)
    mesh, ends = sharding.make_mesh(1, 1, 1, devices=jax.devices()[:1]), {}
    both = make(rate=0.0, layers=layers, fields=fields, sharing=sharing)
    starts = {both: sharding.unbox(jax.jit(both.init_model)(jax.random.key(1)))}
    starts[both.generator] = starts[both][GENERATOR]
    for objective, start in starts.items():
        direction, _ = make_optimizer(optimizer, 10, objective)
        state = init_state(objective, direction, mesh, 0, given=jax.tree.map(np.asarray, start))
        step = jax.jit(make_train_step(objective, direction, lambda _: 1e-2))
        for number in range(3):
            state, metrics = step(state, packed_batch(rows=ROWS, seed=number), np.uint32(5))
        ends[objective] = state.params
        assert metrics["grad_norm"] > 0.1
    alone, together = flatten(ends[both.generator]), flatten(ends[both][GENERATOR])
    moved = flatten(starts[both][GENERATOR])
    for name, x in together.items():
        np.testing.assert_allclose(x, alone[name], rtol=1e-5, atol=1e-7, err_msg=name)
        assert np.any(x != moved[name]), name
    assert ("encoder/mask_positions" in together) == bool(fields)
    scan = "stack_0" if fields else "stack"  # the mask decoder has a separate scan
    assert together[f"encoder/layers/{scan}/layer/query/kernel"].shape[0] == (2 if fields else 1)


def test_optimizers_know_the_layers_of_each_network():
    stacked = Layers.from_objective(make(layers=1)).stacked
    for prefix, layers in (("", (0, 1)), ("generator/", (0,))):
        name = f"{prefix}encoder/layers/stack/layer/query/kernel"
        assert stacked[name].names == tuple(f"{prefix}encoder/layers/{i}/query/kernel" for i in layers)


def test_parameters_of_a_model_are_split_and_joined():
    objective, (_, params) = make(sharing="gdes"), prepared_and_params("gdes")
    assert not np.any(flatten(params)[DIFFERENCE])
    model = objective.join(params, None)
    assert np.array_equal(flatten(model)[TABLE], flatten(model)[f"generator/{TABLE}"])
    moved = flatten(model) | {TABLE: flatten(model)[TABLE] + 1}
    model = jax.tree.unflatten(jax.tree.structure(model), moved.values())
    again = objective.join(objective.split(model)[0], None)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), again, model)
    of_discriminator, _ = objective.split({name: x for name, x in model.items() if name != GENERATOR})
    assert np.array_equal(flatten(of_discriminator)[f"generator/{TABLE}"], flatten(model)[TABLE])


def test_the_first_token_of_each_sequence_is_added():
    """The logits of a packed row equal the logits of its sequences in separate rows."""
    objective = make(sharing="gdes", head=ReplacedTokensHead(adds_first=True), rate=0.0)
    params = {name: x for name, x in jax.jit(objective.init_model)(jax.random.key(0)).items()}
    params = sharding.unbox({name: x for name, x in params.items() if name != GENERATOR})
    assert {"norm/scale", "norm/bias"} < flatten(params["discriminator"]).keys()
    apply = jax.jit(lambda *inputs, **options: objective.model.apply({"params": params}, *inputs, **options))
    batch = packed_batch(rows=4)
    inputs = objective.prepare(batch, jax.random.key(0), False) | {"input_ids": batch["input_ids"]}
    given = [inputs[name] for name in INPUTS]
    packed = apply(*given, cls_positions=inputs["cls_positions"])["discriminator"]
    for row, start in np.ndindex(batch["starts"].shape):
        ids = np.asarray(inputs["sequence_ids"])[row]
        if not (own := ids == start + 1).any():
            continue
        alone = [np.zeros((1, 32), np.int32) for _ in INPUTS]
        for array, x in zip(alone, given, strict=True):
            array[0, : own.sum()] = np.asarray(x)[row, own]
        alone[-1] = np.minimum(alone[-1], 1)
        expected = apply(*alone)["discriminator"][0, : own.sum()]
        np.testing.assert_allclose(packed[row, own], expected, rtol=1e-4, atol=1e-6)


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
    """Losses and metrics equal NumPy's, computed from the logits of both networks."""
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
    # Every sample is 50, which equals the original token in half of the rows.
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
    """The networks get different keys, because layers with equal names would sample equal masks."""
    (batch, params), keys = prepared_and_params(), []

    def model(outputs):
        def apply(variables, *inputs, rngs, **options):
            keys.append(rngs["dropout"])
            return outputs

        return types.SimpleNamespace(apply=apply)

    monkeypatch.setattr(MaskedLM, "model", model((jnp.zeros((ROWS, 8, 101)), None)))
    monkeypatch.setattr(ReplacedTokens, "model", model({"discriminator": jnp.zeros((ROWS, 32))}))
    make().loss(params, batch, {"dropout": jax.random.key(0)})
    assert len({tuple(jax.random.key_data(key).tolist()) for key in keys}) == 2
