"""The optimizer's known answer, schedules, mistakes; its formulas are in test_optimizer_float64.py."""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import pytest

from bert_jax.checkpoint.leaves import flatten
from bert_jax.errors import UserError
from bert_jax.settings import defaults
from bert_jax.training.optimization import optimizers, param_groups, schedules


def settings(**changes):
    return ml_collections.ConfigDict(defaults.pretrain().optimizer.to_dict() | changes)


def test_known_answer_of_the_reference():
    """google-research/bert, optimization_test.py: w = [.1, -.2, -.1] reaches [.4, .2, -.5] in 100 steps at
    rate .2."""
    tx, schedule = optimizers.make_optimizer(
        settings(weight_decay=0.0, clip_norm=0.0, learning_rate=0.2, warmup_steps=0, schedule="constant"), 100
    )
    target = jnp.array([0.4, 0.2, -0.5])
    params = {"w": jnp.array([0.1, -0.2, -0.1])}
    state = tx.init(params)
    for step in range(100):
        grads = jax.grad(lambda p: jnp.mean((target - p["w"]) ** 2))(params)
        updates, state = tx.update(grads, state, params)
        params = jax.tree.map(lambda p, u, step=step: p - schedule(step + 1) * u, params, updates)
    np.testing.assert_allclose(params["w"], target, atol=1e-2)


@pytest.mark.parametrize("b1", [0.9, 0.0])
def test_the_bias_corrected_one_is_optaxs(b1):
    tx, _ = optimizers.make_optimizer(settings(name="adamw_bias_corrected", clip_norm=0.0, b1=b1), 10**6)
    theirs = optax.adamw(1.0, b1=b1, b2=0.999, eps=1e-6, weight_decay=0.01)
    plain, _ = optimizers.make_optimizer(settings(clip_norm=0.0, b1=b1), 10**6)
    with jax.enable_x64(True):  # in float32 optax's corrections are off by 1e-5
        params = {"kernel": jnp.array([1.0, -2.0])}
        state, other = tx.init(params), theirs.init(params)
        for grads in ({"kernel": jnp.array([0.3, -0.1])}, {"kernel": jnp.array([-0.1, 0.2])}):
            mine, state = tx.update(grads, state, params)
            reference, other = theirs.update(grads, other, params)
            np.testing.assert_allclose(-mine["kernel"], reference["kernel"], rtol=1e-6)
        uncorrected, _ = plain.update(grads, plain.init(params), params)
        assert not np.allclose(uncorrected["kernel"], mine["kernel"])


def test_schedules():
    at = [0, 1, 50, 99, 100, 550, 1000]
    reference = schedules.reference_schedule(1.0, 100, 1000)
    np.testing.assert_allclose([reference(t) for t in at], [0, 0.01, 0.5, 0.99, 0.9, 0.45, 0], atol=1e-6)
    usual = schedules.warmup_then_decay_schedule(1.0, 100, 1000)
    np.testing.assert_allclose([usual(t) for t in at], [0, 0.01, 0.5, 0.99, 1.0, 0.5, 0], atol=1e-6)
    np.testing.assert_allclose(
        [schedules.constant_schedule(1.0, 100, 1000)(t) for t in at], [0, 0.01, 0.5, 0.99, 1, 1, 1]
    )


def test_more_schedules():
    at = [0, 50, 100, 400, 550, 1000]
    cosine = schedules.cosine_schedule(1.0, 100, 1000)
    np.testing.assert_allclose([cosine(t) for t in at], [0, 0.5, 1, 0.75, 0.5, 0], atol=1e-6)
    root = schedules.inverse_square_root_schedule(1.0, 100, 1000)
    np.testing.assert_allclose([root(t) for t in at], [0, 0.5, 1, 0.5, 0.426401, 0.316228], atol=1e-6)
    product = schedules.product_schedule(1.0, 100, 1000)
    np.testing.assert_allclose([product(t) for t in at], [0, 0.475, 0.9, 0.6, 0.45, 0], atol=1e-6)


def test_what_decays():
    x = np.zeros(2)
    params = {
        "layers": {"query": {"kernel": x, "bias": x}, "norm": {"scale": x, "bias": x}},
        "word_embeddings": x,
        "mlm": {"bias": x},
    }
    assert param_groups.decay_mask(params) == {
        "layers": {"query": {"kernel": True, "bias": False}, "norm": {"scale": False, "bias": False}},
        "word_embeddings": True,
        "mlm": {"bias": False},
    }


@pytest.mark.parametrize(
    "changes,said",
    [
        (
            dict(name="lamp"),
            "unknown; choose one of adamw, .* or an optimizer of optax, .*did you mean lamb?",
        ),
        (dict(name="scale_by_adam"), "unknown"),
        (dict(name="lion", args="b3=1"), "lion has no b3; it has b1, b2, mu_dtype"),
        (dict(name="lion", args="weight_decay=0.1"), "set optimizer.weight_decay instead of weight_decay"),
        (dict(name="lion", args="0.9"), "expected arguments as Python writes them"),
        (dict(name="lion", args="b1="), "expected arguments as Python writes them"),
        (dict(name="lion", args="b1='x'"), "name='lion' with optimizer.args=.* cannot be used"),
        (dict(name="momo"), "cannot be used"),
        (dict(name="lion", b2=0.99), "optimizer.b2=0.99: is not used by optimizer.name='lion'"),
        (dict(args="b1=0.9"), "adamw has none"),
        (dict(rates="encoder"), "is not REGEX=FACTOR"),
        (dict(rates="encoder/.*=-1"), "is not REGEX=FACTOR"),
        (dict(rates="(=1"), "no regular expression"),
        (dict(schedule="step"), "reference"),
        (dict(warmup_steps=100), "less than the 100 steps of the run; set fewer .a tenth is 10., .*epochs"),
    ],
)
def test_mistakes(changes, said):
    with pytest.raises(UserError, match=said):
        optimizers.make_optimizer(settings(**changes), 100)


def stacked(value=1.0):
    """Parameters with the names of a model of four layers."""
    layer = {"query": {"kernel": jnp.full((4, 3, 2), value), "bias": jnp.full((4, 2), value)}}
    encoder = {
        "embeddings": {"word_embeddings": jnp.full((5, 3), value)},
        "layers": {"stack": {"layer": layer}},
    }
    return {"encoder": encoder, "classifier": {"kernel": jnp.full((3, 2), value), "bias": jnp.full(2, value)}}


def one_update(**changes):
    params = stacked()
    tx, _ = optimizers.make_optimizer(settings(warmup_steps=0, **changes), 10)
    grads = jax.tree.map(lambda p: 0.01 * jnp.ones_like(p), params)
    return flatten(jax.jit(tx.update)(grads, tx.init(params), params)[0])


def test_rates_decay_from_the_head_down():
    plain, decayed = one_update(), one_update(layer_decay=0.5)
    for name, factor in (
        ("classifier/kernel", 1),
        ("encoder/embeddings/word_embeddings", 0.5**6),
        ("encoder/layers/stack/layer/query/kernel", 0.5 ** np.array([5, 4, 3, 2]).reshape(4, 1, 1)),
        ("encoder/layers/stack/layer/query/bias", 0.5 ** np.array([5, 4, 3, 2]).reshape(4, 1)),
    ):
        np.testing.assert_allclose(decayed[name], plain[name] * factor, rtol=1e-6)


def test_rates_of_several_runs_decay_by_the_numbers_of_their_layers():
    """The first layer alone, twice two layers that alternate, and a norm behind them."""
    leaf = {"kernel": np.ones((2, 3, 3))}
    pair = {"layer_0": leaf, "layer_1": leaf}
    layers = {"stack_0": {"layer": {"kernel": np.ones((1, 3))}}, "stack_1": pair}
    params = {"encoder": {"layers": layers, "final_norm": {"scale": np.ones(3)}}}
    scales = flatten(param_groups.layer_decay_scales(params, 0.5))
    assert scales["encoder/final_norm/scale"] == 0.5
    assert np.ravel(scales["encoder/layers/stack_0/layer/kernel"]) == [0.5**6]
    np.testing.assert_allclose(scales["encoder/layers/stack_1/layer_0/kernel"].ravel(), [0.5**5, 0.5**3])
    np.testing.assert_allclose(scales["encoder/layers/stack_1/layer_1/kernel"].ravel(), [0.5**4, 0.5**2])
    mask = flatten(param_groups.trained_mask(params, r"encoder/layers/[03]/.*"))
    np.testing.assert_array_equal(mask["encoder/layers/stack_1/layer_0/kernel"].ravel(), [1, 0])


def test_layers_that_share_their_parameters_are_one_to_an_optimizer():
    """A kernel [H, N, D] that all layers share is no stack of H layers."""
    params = {"encoder": {"layers": {"shared": {"layer": {"kernel": np.full((3, 2, 2), 2.0)}}}}}
    updates = jax.tree.map(lambda p: np.arange(1.0, 13).reshape(p.shape), params)
    transform = optimizers.scale_by_trust_ratio()
    scaled, _ = transform.update(updates, transform.init(params), params)
    factors = flatten(jax.tree.map(lambda u, s: s / u, updates, scaled))["encoder/layers/shared/layer/kernel"]
    np.testing.assert_allclose(factors, factors[0, 0, 0], rtol=1e-6)
    with pytest.raises(UserError, match="share their parameters"):
        param_groups.layer_decay_scales(params, 0.9)


def test_what_is_frozen_stays_and_has_no_part_in_the_norm():
    frozen = one_update(freeze=r"encoder/embeddings/.*|encoder/layers/[01]/.*", clip_norm=0.01)
    assert not np.any(frozen["encoder/embeddings/word_embeddings"])
    kernel = frozen["encoder/layers/stack/layer/query/kernel"]
    assert not np.any(kernel[:2]) and np.all(kernel[2:])
    params = stacked()
    mask = flatten(param_groups.trained_mask(params, r"encoder/embeddings/.*|encoder/layers/[01]/.*"))
    count = sum(float(np.sum(np.broadcast_to(mask[name], p.shape))) for name, p in flatten(params).items())
    expected = 0.1 * 0.01 / np.sqrt(count)  # (1 - b1) of the gradient that the clip leaves
    tx = optax.chain(
        param_groups.scale_by_tree(
            lambda p: param_groups.trained_mask(p, r"encoder/embeddings/.*|encoder/layers/[01]/.*")
        ),
        optax.clip_by_global_norm(0.01),
    )
    grads = jax.tree.map(jnp.ones_like, params)
    clipped = flatten(tx.update(grads, tx.init(params), params)[0])
    np.testing.assert_allclose(clipped["classifier/bias"] * 0.1, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(freeze="nothing"), "matches none; names are like"),
        (dict(freeze=".*"), "matches every parameter"),
        (dict(freeze="("), "no regular expression"),
        (dict(layer_decay=0.0), "layer_decay=0.0"),
        (dict(layer_decay=1.5), "layer_decay=1.5"),
    ],
    ids=["nothing", "everything", "regex", "zero", "over"],
)
def test_mistakes_in_decay_and_freezing(changes, message):
    with pytest.raises(UserError, match=message):
        one_update(**changes)


def test_rates_of_groups():
    plain = one_update()
    rated = one_update(rates="encoder/embeddings/.*=0.1; encoder/layers/[02]/.*=0; encoder/.*=3")
    for name, factor in (
        ("classifier/kernel", 1),
        ("encoder/embeddings/word_embeddings", 0.1),
        ("encoder/layers/stack/layer/query/kernel", np.reshape([0, 3, 0, 3], (4, 1, 1))),
    ):
        np.testing.assert_allclose(rated[name], plain[name] * factor, rtol=1e-6)
    with pytest.raises(UserError, match="'pooler/x' matches no parameter"):
        one_update(rates="pooler/x=2")


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_what_decays_is_chosen_by_name(name):
    options = dict(name=name, clip_norm=0.0, weight_decay=0.5)
    plain, none = one_update(**options), one_update(**options, no_decay=".*")
    some = one_update(**options, no_decay="encoder/layers/[01]/.*|.*bias|.*embeddings")
    kernel = "encoder/layers/stack/layer/query/kernel"
    np.testing.assert_array_equal(some[kernel][:2], none[kernel][:2])
    np.testing.assert_allclose(some[kernel][2:], plain[kernel][2:], rtol=1e-6)
    assert not np.allclose(none[kernel], plain[kernel])
    np.testing.assert_array_equal(
        some["encoder/embeddings/word_embeddings"], none["encoder/embeddings/word_embeddings"]
    )
    np.testing.assert_array_equal(some["classifier/kernel"], plain["classifier/kernel"])


@pytest.mark.parametrize(
    "name, args, theirs",
    [
        ("lion", "b1=0.95", lambda mask: optax.lion(0.2, b1=0.95, weight_decay=0.01, mask=mask)),
        ("sgd", "momentum=0.9, nesterov=True", lambda mask: optax.sgd(0.2, 0.9, True)),
        (
            "adafactor",
            "min_dim_size_to_factor=2",
            lambda mask: optax.adafactor(0.2, min_dim_size_to_factor=2),
        ),
    ],
)
def test_an_optimizer_of_optax_is_optaxs(name, args, theirs):
    """The rate, which the train step multiplies by, and the decay are those of the configuration."""
    weight_decay = 0.01 if name == "lion" else 0.0
    tx, _ = optimizers.make_optimizer(
        settings(name=name, args=args, clip_norm=0.0, weight_decay=weight_decay, warmup_steps=0), 10
    )
    reference = theirs(param_groups.decay_mask)
    params = stacked()
    state, other = tx.init(params), reference.init(params)
    for number in range(3):
        grads = jax.tree.map(
            lambda p, number=number: jnp.cos(jnp.arange(p.size, dtype=p.dtype).reshape(p.shape) + number),
            params,
        )
        updates, state = jax.jit(tx.update)(grads, state, params)
        expected, other = jax.jit(reference.update)(grads, other, params)
        jax.tree.map(
            lambda u, e: np.testing.assert_allclose(-0.2 * u, e, rtol=2e-6, atol=1e-7), updates, expected
        )


def test_muon_orthogonalizes_the_matrices_of_each_layer():
    """Rows of H, columns of N x D: each layer's update has singular values near 1. The rest is Adam's."""
    params = stacked()
    params["encoder"]["layers"]["stack"]["layer"]["attention_output"] = {"kernel": jnp.ones((4, 2, 3, 5))}
    tx, _ = optimizers.make_optimizer(
        settings(name="muon", clip_norm=0.0, weight_decay=0.0, warmup_steps=0), 10
    )
    draw = np.random.default_rng(0).normal
    grads = jax.tree.map(lambda p: jnp.asarray(draw(size=p.shape), jnp.float32), params)
    updates = flatten(tx.update(grads, tx.init(params), params)[0])
    for name, shape in (("query/kernel", (4, 3, 2)), ("attention_output/kernel", (4, 6, 5))):
        matrices = np.reshape(updates[f"encoder/layers/stack/layer/{name}"], shape)
        values = np.linalg.svd(matrices, compute_uv=False)
        assert np.all((values > 0.6) & (values < 1.9)), values
    assert np.ptp(np.abs(updates["classifier/kernel"])) < 1e-5  # Adam's first step has one size


@pytest.mark.parametrize("name", ["adamw", "adamw_bias_corrected"])
@pytest.mark.parametrize("calm", [1, 30, 3000])
def test_adams_direction_is_bounded_whatever_the_gradients(name, calm):
    """Gradients that grow as 1 / b1^t against b2^t maximize it; after calm steps one large one does."""
    config = settings(name=name, clip_norm=0.0)
    assert optimizers.keeps_parameters_finite(config)
    tx, _ = optimizers.make_optimizer(config, 10**6)
    ratio = (config.b2 / config.b1) ** 0.5
    gradients = jnp.asarray([1e-20 * ratio**t for t in range(400)] + [1e-12] * calm + [1e18], jnp.float32)
    params = {"kernel": jnp.zeros(1)}

    def update(state, gradient):
        updates, state = tx.update({"kernel": gradient[None]}, state, params)
        return state, updates["kernel"][0]

    _, directions = jax.lax.scan(update, tx.init(params), gradients)
    assert np.all(np.abs(directions) <= (10 if name == "adamw_bias_corrected" else 1) * 7.3)


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({}, True),
        ({"learning_rate": 2.0}, False),
        ({"learning_rate": 1.0, "weight_decay": 1.5}, False),
        ({"b1": 0.9995}, False),  # the first moment outlives the second
        ({"eps": 0.0}, False),
        ({"name": "lamb"}, False),
        ({"name": "lion"}, False),
        ({"rates": "classifier/.*=10"}, False),
    ],
)
def test_which_optimizers_keep_parameters_finite(fields, expected):
    config = settings(**fields)
    assert optimizers.keeps_parameters_finite(config) == expected
