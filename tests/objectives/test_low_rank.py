"""Low-rank updates: what `join` adds, for stacked, shared and single kernels, and how many are trained."""

import dataclasses
import math

import jax
import numpy as np
import optax
import pytest
from support.models import tiny_task

from bert_jax.checkpoint.leaves import flatten
from bert_jax.models import sizes
from bert_jax.objectives.adapters import add_low_rank, assemble
from bert_jax.objectives.classification import Classification
from bert_jax.parallel.sharding import make_mesh, unbox
from bert_jax.settings.run_config import AdapterConfig
from bert_jax.training.adapters import adapt
from bert_jax.training.state import abstract_state, init_state

LORA = AdapterConfig(kind="lora", rank=4, alpha=6.0)


def joined(task, config=LORA):
    """Returns (state, parameters of the model before, and after B got random values)."""
    objective = adapt(task, config)
    state = init_state(objective, optax.identity(), make_mesh(), 0)
    before = flatten(objective.join(state.params, state.frozen))
    rng = np.random.default_rng(1)

    def randomized(path, x):
        return rng.normal(size=x.shape).astype(np.float32) if path[-1].key.endswith("_lora_b") else x

    params = jax.tree_util.tree_map_with_path(randomized, state.params)
    return params, before, flatten(objective.join(params, state.frozen))


@pytest.mark.long
@pytest.mark.parametrize(
    "overrides",
    [
        {"num_hidden_layers": 3},
        {"num_hidden_layers": 4, "layer_groups": 1},
        {"num_hidden_layers": 4, "layer_groups": 2},
        {"num_hidden_layers": 3, "first_attention_norm": False, "norm_placement": "pre"},
    ],
    ids=["stacked", "shared", "two groups", "a single layer and a stack"],
)
def test_join_adds_the_scaled_products(overrides):
    task = tiny_task(**overrides)
    config = dataclasses.replace(LORA, targets="query,value,attention_output,intermediate,output")
    params, before, after = joined(task, config)
    params, changed = flatten(params), 0
    start = flatten(unbox(jax.jit(task.init)(jax.random.key(0, impl="threefry2x32"))))
    for name, kernel in after.items():
        np.testing.assert_array_equal(before[name], start[name])  # B is 0
        a, b = (params.get(f"{name}_lora_{factor}") for factor in "ab")
        if a is None:
            np.testing.assert_array_equal(kernel, before[name])
            continue
        changed += 1
        layers = "/stack" in name
        flat = [np.asarray(x, np.float64) if layers else np.asarray(x, np.float64)[None] for x in (a, b)]
        expected = np.stack(
            [one.reshape(-1, 4) @ two.reshape(4, -1) for one, two in zip(*flat, strict=True)]
        ).reshape(kernel.shape)
        np.testing.assert_allclose(kernel - before[name], 6 / 4 * expected, rtol=2e-5, atol=2e-5)
    places = len({name.split("/query/")[0] for name in after if "/query/" in name})
    assert changed == 5 * places


def test_the_kernel_keeps_its_place_for_other_ranks_of_inputs_and_outputs():
    rng = np.random.default_rng(0)
    kernel, a, b = (
        rng.normal(size=shape).astype(np.float32) for shape in ((2, 3, 4, 5), (2, 3, 4, 2), (2, 2, 5))
    )
    expected = kernel + 0.5 * np.einsum("lndr,lrh->lndh", a, b)
    np.testing.assert_allclose(add_low_rank(kernel, a, b, 0.5), expected, rtol=1e-5, atol=1e-6)
    by_jax = jax.jit(add_low_rank)(*map(jax.numpy.asarray, (kernel, a, b)), 0.5)
    np.testing.assert_allclose(by_jax, expected, rtol=1e-5, atol=1e-6)
    stored = {"k": kernel, "k_lora_a": a, "k_lora_b": b, "k_lora_scale": np.float32(0.5), "z": a}
    found = assemble(stored)
    assert set(found) == {"k", "z"} and isinstance(found["k"], np.ndarray)
    np.testing.assert_allclose(found["k"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_the_scale_and_the_initial_values():
    task = tiny_task(hidden_size=64, num_attention_heads=8)
    name = "encoder/layers/stack/layer/query/kernel_lora_"
    state = init_state(adapt(task, LORA), optax.identity(), make_mesh(), 0)
    assert float(flatten(state.frozen["params"])[f"{name}scale"]) == 6 / 4
    assert 0.9 / 8 < float(np.max(np.abs(flatten(state.params)[f"{name}a"]))) < 1 / 8
    assert flatten(state.params)[f"{name}a"].shape == (2, 64, 4)
    assert flatten(state.params)[f"{name}b"].shape == (2, 4, 8, 8)


@pytest.mark.long
@pytest.mark.parametrize(
    "fields, count",
    [
        *((dict(kind="lora", rank=rank), 36_864 * rank) for rank in (4, 16)),
        (dict(kind="bitfit"), 102_144),
        (dict(kind="bitfit", train="pooler/.*/bias"), 102_144 + 768),
        (dict(kind="head"), 0),
        # 64 wide after both halves (Houlsby et al. 2019), whose norms are trained too; 48 after the second.
        (dict(kind="houlsby"), 2_379_264 + 25 * 2 * 768),
        (dict(kind="pfeiffer"), 894_528),
    ],
)
def test_the_numbers_of_trained_parameters_and_the_memory_of_the_optimizer(fields, count):
    adapter, base = AdapterConfig(**fields), sizes.named("base", vocab_size=30522)
    task = Classification(base.replace(**adapter.model_fields(base.hidden_size)), 2)
    state = abstract_state(adapt(task, adapter, task.new_groups), optax.adam(1e-3), make_mesh())
    trained, moments = (
        sum(math.prod(x.shape) for x in jax.tree.leaves(tree)) for tree in (state.params, state.opt_state)
    )
    assert moments == 2 * trained + 1  # two moments of what is trained, and the step
    assert trained - (2 * base.hidden_size + 2) == count
