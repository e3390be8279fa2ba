"""Which parameters decay, which are frozen, and which have a learning rate of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.models import tiny_task
from support.tiny_model import draw_parameters
from support.updates import Stacked, one_update, ones

from bert_jax.checkpoint.leaves import flatten
from bert_jax.errors import UserError
from bert_jax.models.config import from_dict as config_from_dict
from bert_jax.objectives.base import Objective
from bert_jax.parallel.sharding import unbox
from bert_jax.settings.run_config import OptimizerConfig
from bert_jax.training.optimization import optimizers, param_groups


def test_what_decays():
    x = np.zeros(2)
    params = {
        "layers": {"query": {"kernel": x, "bias": x}, "norm": {"scale": x, "bias": x}},
        "word_embeddings": x,
        "mlm": {"bias": x},
    }
    assert param_groups.decay_mask(params, param_groups.Layers()) == {
        "layers": {"query": {"kernel": True, "bias": False}, "norm": {"scale": False, "bias": False}},
        "word_embeddings": True,
        "mlm": {"bias": False},
    }


def test_rates_decay_from_the_head_down():
    plain, decayed = one_update(), one_update(layer_decay=0.5)
    for name, factor in (
        ("classifier/kernel", 1),
        ("encoder/embeddings/word_embeddings", 0.5**6),
        ("encoder/layers/stack/layer/query/kernel", 0.5 ** np.array([5, 4, 3, 2]).reshape(4, 1, 1)),
        ("encoder/layers/stack/layer/query/bias", 0.5 ** np.array([5, 4, 3, 2]).reshape(4, 1)),
    ):
        np.testing.assert_allclose(decayed[name], plain[name] * factor, rtol=1e-6)


class Several(Objective):
    """The first layer alone, twice two layers that alternate, one more, and a norm behind them."""

    config = config_from_dict(
        dict(
            num_hidden_layers=6,
            norm_placement="pre",
            first_attention_norm=False,
            global_every=2,
            local_window=2,
            attention_probs_dropout_prob=0.0,
        )
    )

    def init(self, key):
        leaf = {"kernel": ones(2, 3, 3, axis=0)}
        layers = {
            "stack_0": {"layer": {"kernel": ones(1, 3, axis=0)}},
            "stack_1": {"layer_0": leaf, "layer_1": leaf},
            "stack_2": {"layer": {"kernel": ones(1, 3, axis=0)}},
        }
        return {"encoder": {"layers": layers, "final_norm": {"scale": ones(3)}}}


def test_rates_of_several_runs_decay_by_the_numbers_of_their_layers():
    params = unbox(Several().init(jax.random.key(0)))
    scales = flatten(param_groups.layer_decay_scales(params, param_groups.Layers.of(Several()), 0.5))
    assert scales["encoder/final_norm/scale"] == 0.5
    assert np.ravel(scales["encoder/layers/stack_0/layer/kernel"]) == [0.5**7]
    np.testing.assert_allclose(scales["encoder/layers/stack_1/layer_0/kernel"].ravel(), [0.5**6, 0.5**4])
    np.testing.assert_allclose(scales["encoder/layers/stack_1/layer_1/kernel"].ravel(), [0.5**5, 0.5**3])
    frozen = param_groups.freeze(Several(), r"encoder/layers/[035]/.*")
    kept, others = (
        sorted(flatten(unbox(tree))) for tree in (frozen.init(jax.random.key(0)), frozen.frozen())
    )
    assert kept == [
        "encoder/final_norm/scale",
        "encoder/layers/stack_1/layer_0/kernel/axis0_0",
        "encoder/layers/stack_1/layer_1/kernel",
    ]
    assert others == [
        "params/encoder/layers/stack_0/layer/kernel",
        "params/encoder/layers/stack_1/layer_0/kernel/axis0_1",
        "params/encoder/layers/stack_2/layer/kernel",
    ]


def test_the_axis_of_layers_is_that_of_its_name():
    """Layers along the second axis: one trust ratio and one rate for each of them."""

    class Second(Stacked):
        def init(self, key):
            kernel = ones(3, 4, 2, axis=1)
            return {"encoder": {"layers": {"stack": {"layer": {"query": {"kernel": kernel}}}}}}

    layers = param_groups.Layers.of(Second())
    params = unbox(Second().init(jax.random.key(0)))
    scales = flatten(param_groups.layer_decay_scales(params, layers, 0.5))
    (scale,) = scales.values()
    np.testing.assert_allclose(scale, (0.5 ** np.array([5, 4, 3, 2])).reshape(1, 4, 1))
    updates = jax.tree.map(lambda p: jnp.broadcast_to(jnp.arange(1.0, 5)[:, None], p.shape), params)
    transform = optimizers.scale_by_trust_ratio(layers)
    (scaled,) = flatten(transform.update(updates, transform.init(params), params)[0]).values()
    np.testing.assert_allclose(scaled, 1, rtol=1e-6)
    muon = optimizers.muon_dimensions(layers)(params)
    (axes,) = jax.tree.leaves(muon, is_leaf=lambda x: isinstance(x, optax.contrib.MuonDimensionNumbers))
    assert axes == optax.contrib.MuonDimensionNumbers((0,), (2,))


def test_layers_that_share_their_parameters_are_one_to_an_optimizer():
    """A kernel of shape [H, N, D] that all layers share is not treated as a stack of H layers."""
    params = {"encoder": {"layers": {"shared": {"layer": {"kernel": np.full((3, 2, 2), 2.0)}}}}}
    layers = param_groups.Layers.of(tiny_task(num_hidden_layers=2, layer_groups=1))
    updates = jax.tree.map(lambda p: np.arange(1.0, 13).reshape(p.shape), params)
    transform = optimizers.scale_by_trust_ratio(layers)
    scaled, _ = transform.update(updates, transform.init(params), params)
    factors = flatten(jax.tree.map(lambda u, s: s / u, updates, scaled))["encoder/layers/shared/layer/kernel"]
    np.testing.assert_allclose(factors, factors[0, 0, 0], rtol=1e-6)
    with pytest.raises(UserError, match="share their parameters"):
        param_groups.layer_decay_scales(params, layers, 0.9)


@pytest.mark.long
def test_lamb_of_shared_layers_has_one_ratio_and_one_rate_a_tensor():
    """The first update of every parameter is the formula's, of a tensor that layers share as of any other."""
    task = tiny_task(num_hidden_layers=4, layer_groups=2, embedding_size=16)
    config = OptimizerConfig(
        name="lamb_uncorrected", warmup_steps=0, clip_norm=0.0, rates="encoder/layers/shared_1/.*=0.5"
    )
    params = draw_parameters(task)
    transform, _ = optimizers.make_optimizer(config, 10, task)
    generator = np.random.default_rng(0)
    grads = jax.tree.map(lambda p: np.float32(generator.normal(size=p.shape)), params)
    update = jax.jit(lambda grads, params: transform.update(grads, transform.init(params), params)[0])
    updates = flatten(update(grads, params))
    of_layers = [name for name in updates if "/layers/" in name]
    assert {name.split("/")[2] for name in of_layers} == {"shared_0", "shared_1"}
    for name, g in flatten(grads).items():
        p, g = np.float64(flatten(params)[name]), np.float64(g)
        u = (1 - config.b1) * g / (np.sqrt((1 - config.b2) * g**2) + config.eps)
        if not name.endswith(("bias", "scale")):
            u = u + config.weight_decay * p
            u = u * np.linalg.norm(p) / np.linalg.norm(u)
        u = u * (0.5 if "/shared_1/" in name else 1)
        np.testing.assert_allclose(updates[name], u, rtol=1e-4, atol=1e-7, err_msg=name)
    with pytest.raises(UserError, match="the layers of this model share their parameters"):
        transform, _ = optimizers.make_optimizer(OptimizerConfig(layer_decay=0.9, warmup_steps=0), 10, task)
        jax.eval_shape(transform.update, grads, jax.eval_shape(transform.init, params), params)


def test_what_is_frozen_has_no_part_in_the_norm_and_the_others_are_updated_as_before():
    plain = one_update(clip_norm=0.0)
    frozen = param_groups.freeze(Stacked(), r"encoder/embeddings/.*|encoder/layers/[02]/.*")
    update = one_update(frozen, clip_norm=0.0)
    kernel = "encoder/layers/stack/layer/query/kernel"
    assert set(update) == {
        "classifier/kernel", "classifier/bias", f"{kernel}/axis0_1,3", f"{kernel[:-6]}bias/axis0_1,3"
    }  # fmt: skip
    np.testing.assert_array_equal(update[f"{kernel}/axis0_1,3"], plain[kernel][1::2])
    count = sum(each.size for each in update.values())
    clipped = one_update(frozen, clip_norm=0.01, weight_decay=0.0, name="sgd")
    np.testing.assert_allclose(clipped["classifier/bias"], 0.01 / np.sqrt(count), rtol=1e-5)


@pytest.mark.parametrize("freeze, layers", [("encoder/layers/[01]/.*", 2), ("encoder/layers/[13]/.*", 2)])
def test_rates_of_frozen_models_are_those_of_the_layers(freeze, layers):
    options = dict(layer_decay=0.5, rates="encoder/layers/2/.*=3", clip_norm=0.0)
    whole, some = one_update(**options), one_update(param_groups.freeze(Stacked(), freeze), **options)
    kept = {name: update for name, update in some.items() if "/axis0_" in name}
    assert len(kept) == layers
    for name, update in kept.items():
        whole_name, _, indices = name.partition("/axis0_")
        rows = {"2-3": [2, 3], "0,2": [0, 2]}[indices]
        np.testing.assert_array_equal(update, whole[whole_name][np.array(rows)])


def test_only_whole_names_are_frozen():
    frozen = param_groups.freeze(Stacked(), "classifier/bias|encoder/embeddings/word|classifier")
    assert list(flatten(unbox(frozen.frozen()))) == ["params/classifier/bias"]


def test_rates_of_a_model_whose_layers_are_all_frozen_are_those_of_its_layers():
    frozen = param_groups.freeze(Stacked(), "encoder/layers/.*")
    plain, decayed = (one_update(frozen, clip_norm=0.0, layer_decay=decay) for decay in (1.0, 0.5))
    table = "encoder/embeddings/word_embeddings"
    assert len(plain) == 3
    np.testing.assert_allclose(decayed[table], 0.5**6 * plain[table], rtol=1e-6)


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(freeze="nothing"), "matches none; names are like"),
        (dict(freeze="encoder"), "freeze='encoder' matches none"),
        (dict(freeze=".*"), "matches every tensor"),
        (dict(freeze="("), "no regular expression"),
        (dict(no_decay="nothing"), "optimizer.no_decay='nothing' matches no parameter"),
    ],
    ids=["nothing", "a part", "everything", "regex", "no_decay"],
)
def test_mistakes_in_decay_and_freezing(changes, message):
    with pytest.raises(UserError, match=message):
        one_update(param_groups.freeze(Stacked(), changes.pop("freeze", "")), **changes)


def test_rates_of_groups():
    plain = one_update()
    rated = one_update(rates="encoder/embeddings/.*=0.1; encoder/layers/[02]/.*=0; encoder/.*=3")
    for name, factor in (
        ("classifier/kernel", 1),
        ("encoder/embeddings/word_embeddings", 0.1),
        ("encoder/layers/stack/layer/query/kernel", np.reshape([0, 3, 0, 3], (4, 1, 1))),
    ):
        np.testing.assert_allclose(rated[name], plain[name] * factor, rtol=1e-6)
    with pytest.raises(UserError, match="'pooler/x' matches no tensor"):
        one_update(rates="pooler/x=2")
    with pytest.raises(UserError, match="'classifier' matches no tensor"):  # A whole name has to match.
        one_update(rates="classifier=2")
    ahead = one_update(rates="(?=encoder/).*kernel=0.5")  # an expression with an equals sign
    kernel = "encoder/layers/stack/layer/query/kernel"
    np.testing.assert_allclose(ahead[kernel], 0.5 * plain[kernel], rtol=1e-6)


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


def test_a_pattern_that_matches_nothing_is_refused_only_where_it_was_given_for_a_decay():
    class Kernel(Objective):
        def init(self, key):
            return {"kernel": ones(2)}

    given = dict(no_decay="nothing", clip_norm=0.0)
    with pytest.raises(UserError, match="no_decay='nothing' matches no parameter"):
        one_update(Kernel(), **given)
    plain = one_update(Kernel(), clip_norm=0.0, weight_decay=0.0)["kernel"]
    np.testing.assert_array_equal(one_update(Kernel(), **given, weight_decay=0.0)["kernel"], plain)
    np.testing.assert_allclose(one_update(Kernel(), clip_norm=0.0)["kernel"], plain + 0.01, rtol=1e-6)


def test_an_empty_pattern_lets_everything_decay():
    """fairseq decays biases and the scales of LayerNorm too."""
    options = dict(clip_norm=0.0, learning_rate=1.0)
    plain, every = (one_update(weight_decay=decay, no_decay="", **options) for decay in (0.0, 0.5))
    assert len(plain) == 5
    for name, update in every.items():  # all parameters are ones
        np.testing.assert_allclose(update - plain[name], 0.5, rtol=1e-5, err_msg=name)
