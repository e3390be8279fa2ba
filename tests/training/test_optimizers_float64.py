"""1,000 steps of each optimizer and schedule, compared with their formulas in float64.

The transformation runs in float64 too, so the bound of 1e-6 tests only the formula. It limits the norm of the
difference divided by the norm of each parameter, at every step. A separate bound limits the drift in float32,
which training uses.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.config import EncoderConfig
from bert_jax.objectives.base import Objective
from bert_jax.settings.run_config import OptimizerConfig
from bert_jax.training import optimizers

STEPS, WARMUP, RATE, B1, B2, EPS, DECAY, CLIP = 1000, 100, 1e-2, 0.9, 0.999, 1e-6, 0.01, 1.0
WORDS, WIDTH, LENGTH, ROWS = 200, 8, 6, 16
DECAYED = {"kernel", "word_embeddings"}


def loss(params, ids, targets):
    """A bag of words with LayerNorm, a dense layer and a softmax. Rare rows of the table have zero gradients
    in most steps, like rare words."""
    bag = params["word_embeddings"][ids].mean(axis=1)
    centered = bag - bag.mean(axis=-1, keepdims=True)
    normed = centered / jnp.sqrt((centered**2).mean(axis=-1, keepdims=True) + 1e-12)
    hidden = jnp.tanh(normed * params["norm"]["scale"] + params["norm"]["bias"])
    layers = params["layers"]["stack"]["layer"]["dense"]
    for kernel, bias in zip(layers["kernel"], layers["bias"], strict=True):
        hidden = hidden + 0.1 * jnp.tanh(hidden @ kernel + bias)
    logits = hidden @ params["dense"]["kernel"] + params["dense"]["bias"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], axis=1).mean()


def problem():
    rng = np.random.default_rng(0)
    params = {
        "word_embeddings": rng.normal(size=(WORDS, WIDTH)) * 0.1,
        "norm": {"scale": np.ones(WIDTH), "bias": rng.normal(size=WIDTH) * 0.1},
        "dense": {"kernel": rng.normal(size=(WIDTH, 3)), "bias": rng.normal(size=3) * 0.1},
    }
    kernel = rng.normal(size=(2, WIDTH, WIDTH)) * [[[0.1]], [[1.0]]]
    layer = {"dense": {"kernel": kernel, "bias": rng.normal(size=(2, WIDTH)) * 0.1}}
    params["layers"] = {"stack": {"layer": layer}}
    ids = np.minimum(rng.zipf(1.3, size=(STEPS, ROWS, LENGTH)), WORDS) - 1
    return params, ids, rng.integers(0, 3, size=(STEPS, ROWS))


class Problem(Objective):
    """An objective of which only the axis names of its parameters are used."""

    config = EncoderConfig(num_hidden_layers=2)

    def init(self, key):
        def boxed(path, x):
            names = ["layers" if path[0].key == "layers" else None] + [None] * (x.ndim - 1)
            return nn.LogicallyPartitioned(x, names=tuple(names))

        return jax.tree_util.tree_map_with_path(boxed, problem()[0])


def reference_rate(step):
    return RATE * step / WARMUP if step < WARMUP else RATE * (1 - step / STEPS)


def usual_rate(step):
    return RATE * step / WARMUP if step < WARMUP else RATE * (STEPS - step) / (STEPS - WARMUP)


def per_layer(function, name, x, y):
    """Returns a function of two arrays, of each layer where they are stacked."""
    if name.startswith("layers/"):
        return np.stack([function(*pair) * np.ones_like(pair[0]) for pair in zip(x, y, strict=True)])
    return function(x, y)


def trust_ratio(p, u):
    """Returns LAMB's trust ratio."""
    return np.linalg.norm(p) / np.linalg.norm(u)


def root_mean_square(g, v):
    """Returns StableAdamW's RMS of the gradient relative to the second moment."""
    return np.sqrt(np.mean(g**2 / np.maximum(v, EPS**2)))


def descend(params, gradient, corrected, lamb, rate, stable=False):
    """Applies the formulas; yields {name: array} of parameters before every step and after the last."""
    params = {name: value.copy() for name, value in params.items()}
    m = {name: np.zeros_like(value) for name, value in params.items()}
    v = {name: np.zeros_like(value) for name, value in params.items()}
    for step in range(STEPS):
        yield params
        grads = gradient(params, step)
        norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
        after = {}
        for name, g in grads.items():
            g = g * min(1, CLIP / norm)
            m[name] = B1 * m[name] + (1 - B1) * g
            v[name] = B2 * v[name] + (1 - B2) * g**2
            first, second = m[name], v[name]
            if corrected:
                first, second = first / (1 - B1 ** (step + 1)), second / (1 - B2 ** (step + 1))
            update = first / (np.sqrt(second) + EPS)
            if name.split("/")[-1] in DECAYED:
                update = update + DECAY * params[name]
                if lamb:
                    update = update * per_layer(trust_ratio, name, params[name], update)
            if stable:
                update = update / np.maximum(1, per_layer(root_mean_square, name, g, second))
            after[name] = params[name] - rate(step) * update
        params = after
    yield params


def flat(tree):
    return {
        "/".join(key.key for key in path): np.asarray(leaf, np.float64)
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


@functools.cache
def exact_run(name, rate):
    """Returns the parameters before every step and after the last one, and the gradient norms."""
    initial, ids, targets = problem()
    tree, norms = jax.tree.structure(initial), []
    with jax.enable_x64(True):
        exact_gradient = jax.jit(jax.grad(loss))

        def gradient(params, step):
            grads = flat(exact_gradient(jax.tree.unflatten(tree, params.values()), ids[step], targets[step]))
            norms.append(np.sqrt(sum((g**2).sum() for g in grads.values())))
            return grads

        corrected = name in ("adamw_bias_corrected", "lamb", "stable_adamw")
        lamb, stable = name.startswith("lamb"), name == "stable_adamw"
        return list(descend(flat(initial), gradient, corrected, lamb, rate, stable)), norms


def largest_difference(name, schedule, exact, dtype):
    """Returns the largest relative difference of a run in a dtype, over all steps and parameters."""
    initial, ids, targets = problem()
    settings = OptimizerConfig(
        name=name, schedule=schedule, learning_rate=RATE, warmup_steps=WARMUP, weight_decay=DECAY,
        b1=B1, b2=B2, eps=EPS, clip_norm=CLIP,
    )  # fmt: skip
    tx, lr = optimizers.make_optimizer(settings, STEPS, Problem())
    with jax.enable_x64(dtype == np.float64):
        params = jax.tree.map(lambda x: jnp.asarray(x, dtype), initial)
        state = tx.init(params)

        @jax.jit
        def step_of(number, params, state, ids, targets):
            updates, state = tx.update(jax.grad(loss)(params, ids, targets), state, params)
            return jax.tree.map(lambda p, u: p - lr(number) * u, params, updates), state

        worst = 0.0
        for step in range(STEPS):
            params, state = step_of(step, params, state, ids[step], targets[step])
            assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(params))
            for key, value in flat(params).items():
                right = exact[step + 1][key]
                worst = max(worst, np.linalg.norm(value - right) / np.linalg.norm(right))
    return worst


@pytest.mark.long
@pytest.mark.parametrize("dtype, bound", [(np.float64, 1e-6), (np.float32, 1e-5)], ids=["float64", "float32"])
@pytest.mark.parametrize(
    "name, schedule, rate",
    [
        ("adamw", "reference", reference_rate),
        ("adamw_bias_corrected", "warmup_then_decay", usual_rate),
        ("lamb", "warmup_then_decay", usual_rate),
        ("lamb_uncorrected", "reference", reference_rate),
        ("stable_adamw", "warmup_then_decay", usual_rate),
    ],
    ids=["reference", "bias-corrected", "lamb", "lamb-uncorrected", "stable"],
)
def test_1000_steps_are_the_formulas(name, schedule, rate, dtype, bound):
    exact, norms = exact_run(name, rate)
    assert max(norms) > CLIP > min(norms)
    difference = largest_difference(name, schedule, exact, dtype)
    print(f"{name}, {schedule}, {np.dtype(dtype)}: {difference:.2g} of a parameter's norm")
    assert difference < bound
