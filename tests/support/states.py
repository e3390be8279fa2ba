"""Small sharded train states, and their way to a directory of checkpoints and back."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax import checkpoint
from bert_jax.training.state import TrainState


def make_state(mesh, step=1, hidden=16, optimizer=None):
    """A state with a sharded matrix, a replicated vector, and moments like theirs."""
    rng = np.random.default_rng(step)
    params = {
        "encoder": {"kernel": rng.normal(size=(hidden, 32)), "bias": rng.normal(size=(32,))},
        "mlm": {"bias": rng.normal(size=(hidden,))},
    }
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    state = TrainState(jnp.int32(step), params, (optimizer or optax.adam(1e-3)).init(params))
    return jax.tree.map(lambda x: jax.device_put(x, placement(mesh, x)), state)


def placement(mesh, x):
    spec = PartitionSpec("fsdp", "tensor") if x.ndim == 2 else PartitionSpec()
    return NamedSharding(mesh, spec)


def abstract(state, mesh=None):
    def describe(x):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placement(mesh, x) if mesh else x.sharding)

    return jax.tree.map(describe, state)


def assert_same(one, other):
    def compare(x, y):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y), strict=True)

    jax.tree.map(compare, one, other)


def save(directory, steps, mesh, **options):
    checkpointer = checkpoint.Checkpointer(directory, log=lambda text: None, **options)
    for step in steps:
        checkpointer.save(step, make_state(mesh, step))
    checkpointer.close()


def restore_latest(directory, target):
    """((step, state) or None, lines logged)"""
    lines = []
    checkpointer = checkpoint.Checkpointer(directory, log=lines.append)
    try:
        return checkpointer.restore_latest(target), lines
    finally:
        checkpointer.close()


def assert_close_runs(one, other):
    """Checks that two runs, each the metrics of its steps and its parameters, differ by rounding alone."""
    for mine, reference in zip(one[0], other[0], strict=True):
        for name in reference:
            assert mine[name] == pytest.approx(reference[name], rel=3e-5, abs=1e-6, nan_ok=True), name
    for mine, reference in zip(jax.tree.leaves(one[1]), jax.tree.leaves(other[1]), strict=True):
        assert np.mean(np.abs(np.asarray(mine) - np.asarray(reference))) < 1e-5
