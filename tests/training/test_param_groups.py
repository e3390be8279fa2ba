"""Which parameters decay, which are frozen, and which have a learning rate of their own."""

import jax
import numpy as np
import optax
import pytest
from support.models import tiny_task
from support.updates import Stacked, one_update

from bert_jax.checkpoint.leaves import flatten
from bert_jax.errors import UserError
from bert_jax.parallel import sharding
from bert_jax.training import optimizers
from bert_jax.training.state import init_state


def test_rates_decay_from_the_head_down():
    plain, decayed = one_update(), one_update(layer_decay=0.5)
    for name, factor in (
        ("classifier/kernel", 1),
        ("encoder/embeddings/word_embeddings", 0.5**6),
        ("encoder/layers/stack/layer/query/kernel", 0.5 ** np.array([5, 4, 3, 2]).reshape(4, 1, 1)),
        ("encoder/layers/stack/layer/query/bias", 0.5 ** np.array([5, 4, 3, 2]).reshape(4, 1)),
    ):
        np.testing.assert_allclose(decayed[name], plain[name] * factor, rtol=1e-6)


def test_layers_that_share_their_parameters_are_one_to_an_optimizer():
    """A kernel of shape [H, N, D] that all layers share is not treated as a stack of H layers."""
    params = {"encoder": {"layers": {"shared": {"layer": {"kernel": np.full((3, 2, 2), 2.0)}}}}}
    layers = optimizers.Layers.from_objective(tiny_task(num_hidden_layers=2, layer_groups=1))
    updates = jax.tree.map(lambda p: np.arange(1.0, 13).reshape(p.shape), params)
    transform = optimizers.scale_by_trust_ratio(layers)
    scaled, _ = transform.update(updates, transform.init(params), params)
    factors = flatten(jax.tree.map(lambda u, s: s / u, updates, scaled))["encoder/layers/shared/layer/kernel"]
    np.testing.assert_allclose(factors, factors[0, 0, 0], rtol=1e-6)
    with pytest.raises(UserError, match="share their parameters"):
        optimizers.layer_decay_scales(params, layers, 0.9)


def test_what_is_frozen_has_no_part_in_the_norm_and_the_others_are_updated_as_before():
    plain = one_update(clip_norm=0.0)
    frozen = optimizers.freeze(Stacked(), r"encoder/embeddings/.*|encoder/layers/[02]/.*")
    update = one_update(frozen, clip_norm=0.0)
    kernel = "encoder/layers/stack/layer/query/kernel"
    assert set(update) == {
        "classifier/kernel", "classifier/bias", f"{kernel}/axis0_1,3", f"{kernel[:-6]}bias/axis0_1,3"
    }  # fmt: skip
    np.testing.assert_array_equal(update[f"{kernel}/axis0_1,3"], plain[kernel][1::2])
    count = sum(each.size for each in update.values())
    clipped = one_update(frozen, clip_norm=0.01, weight_decay=0.0, name="sgd")
    np.testing.assert_allclose(clipped["classifier/bias"], 0.01 / np.sqrt(count), rtol=1e-5)
    with pytest.raises(UserError, match="freeze='encoder' matches none"):  # A whole name has to match.
        optimizers.freeze(Stacked(), "encoder")


def test_rates_of_groups():
    plain = one_update()
    rated = one_update(rates="encoder/embeddings/.*=0.1; encoder/layers/[02]/.*=0; encoder/.*=3")
    for name, factor in (
        ("classifier/kernel", 1),
        ("encoder/embeddings/word_embeddings", 0.1),
        ("encoder/layers/stack/layer/query/kernel", np.reshape([0, 3, 0, 3], (4, 1, 1))),
    ):
        np.testing.assert_allclose(rated[name], plain[name] * factor, rtol=1e-6)
    for wrong in ("pooler/x", "classifier"):  # a whole name has to match
        with pytest.raises(UserError, match=f"optimizer.rates.*'{wrong}'"):
            one_update(rates=f"{wrong}=2")
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


def test_given_parameters_come_before_new_ones(monkeypatch):
    """Those that are trained and those that are frozen; a part of each is not given."""
    # With several processes, it would gather an array of the host from all of them to compare its values.
    monkeypatch.delattr(jax, "device_put")
    objective = optimizers.freeze(Stacked(), "encoder/embeddings/.*|encoder/layers/[02]/.*")
    table, bias = np.full((5, 3), 7, np.float32), np.full(2, 5, np.float32)
    given = {"encoder": {"embeddings": {"word_embeddings": table}}, "classifier": {"bias": bias}}
    mesh = sharding.make_mesh(2, 2, 2)
    state = init_state(objective, optax.identity(), mesh, 0, given=given)
    values = flatten(state.params) | flatten(state.frozen["params"])
    np.testing.assert_array_equal(values.pop("encoder/embeddings/word_embeddings"), table)
    np.testing.assert_array_equal(values.pop("classifier/bias"), bias)
    assert len(values) == 5 and all(np.all(np.asarray(value) == 1) for value in values.values())
