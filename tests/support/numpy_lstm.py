"""A BiLSTM token by token in NumPy, and random parameters of a module."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np


def drawn(module, *inputs, scale=0.5, seed=0):
    """Random variables of a module, of which no parameter is constant."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda: nn.unbox(module.init(jax.random.key(0), *inputs)))
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, scale, leaf.shape), jnp.float32), shapes)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(params, x, reverse=False):
    """The states [L, features] of one direction for inputs [L, F]."""
    kernel, bias, recurrent = (
        np.asarray(each)
        for each in (params["inputs"]["kernel"], params["inputs"]["bias"], params["recurrent"])
    )
    states = np.zeros((len(x), recurrent.shape[-1]))
    hidden = cell = np.zeros(recurrent.shape[-1])
    for place in range(len(x))[::-1] if reverse else range(len(x)):
        write, forget, new, read = (
            x[place] @ kernel[:, gate] + bias[gate] + hidden @ recurrent[gate] for gate in range(4)
        )
        cell = sigmoid(forget + 1) * cell + sigmoid(write) * np.tanh(new)
        hidden = states[place] = sigmoid(read) * np.tanh(cell)
    return states


def bilstm(params, x, layers=2, name=""):
    """The states [L, 2 * size] of the last of some layers for inputs [L, F]."""
    for layer in range(layers):
        ways = (lstm(params[f"{name}{way}_{layer}"], x, way == "backward") for way in ("forward", "backward"))
        x = np.concatenate([*ways], axis=-1)
    return x
