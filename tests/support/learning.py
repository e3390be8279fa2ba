"""Train steps of an objective on one batch."""

import jax
import numpy as np
import optax

from bert_jax.parallel import sharding
from bert_jax.training.state import abstract_state, init_state
from bert_jax.training.step import make_train_step


def learn(objective, batch, steps):
    """Returns the metrics of each step, with Adam at 5e-3 on one device."""
    mesh, optimizer = sharding.make_mesh(devices=jax.devices()[:1]), optax.scale_by_adam()
    state = init_state(objective, optimizer, mesh, 0)
    shardings = jax.tree.map(lambda x: x.sharding, abstract_state(objective, optimizer, mesh))
    step = sharding.jit_train_step(make_train_step(objective, optimizer, lambda step: 5e-3), mesh, shardings)
    placed, seen = sharding.global_batch(batch, mesh), []
    for _ in range(steps):
        state, metrics = step(state, placed, np.uint32(0))
        seen.append(metrics)
    return seen
