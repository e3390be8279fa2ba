"""Initial parameters that are given, some of which are frozen."""

import jax
import numpy as np
import optax
from support.updates import Stacked

from bert_jax.checkpoint.leaves import flatten
from bert_jax.parallel import sharding
from bert_jax.training import optimizers
from bert_jax.training.state import init_state


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
