"""Weights and states of another run, for models that need not have the same parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support.states import abstract, assert_same, make_state

from bert_jax import checkpoint
from bert_jax.training.state import TrainState

pytestmark = pytest.mark.usefixtures("quick_compilation")


def params_like(mesh, **changes):
    params = make_state(mesh).params | changes
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)


@pytest.mark.parametrize("kind", ["work directory", "checkpoints", "step"])
def test_load_params_finds_the_newest_step(copy, mesh, kind):
    path = {"work directory": copy.parent, "checkpoints": copy, "step": copy / "4"}[kind]
    step = 4 if kind == "step" else 6
    params, report = checkpoint.load_params(path, params_like(mesh))
    assert_same(params, make_state(mesh, step).params)
    assert report == checkpoint.Report(
        str(copy / str(step)), ("encoder/bias", "encoder/kernel", "mlm/bias"), (), ()
    )


def test_load_params_reports_new_and_unused(copy, mesh):
    target = params_like(mesh, classifier={"bias": jnp.zeros(3)})
    del target["mlm"]
    params, report = checkpoint.load_params(copy, target)
    assert (report.new, report.unused) == (("classifier/bias",), ("mlm/bias",))
    assert "loaded 2 tensors" in str(report) and "not used: mlm (1)" in str(report)
    assert sorted(params) == ["encoder"]


def test_load_params_merges_an_update_of_a_rank_that_no_mesh_divides(tmp_path, mesh):
    rng = np.random.default_rng(0)
    shapes = {"kernel": (16, 32), "kernel_lora_a": (16, 3), "kernel_lora_b": (3, 32), "kernel_lora_scale": ()}
    stored = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    checkpointer = checkpoint.Checkpointer(tmp_path)
    checkpointer.save(1, TrainState(jnp.int32(1), jax.tree.map(jnp.asarray, stored), ()))
    checkpointer.close()
    place = NamedSharding(mesh, PartitionSpec("fsdp", "tensor"))
    target = {"kernel": jax.ShapeDtypeStruct((16, 32), jnp.float32, sharding=place)}
    kernel = checkpoint.load_params(tmp_path, target)[0]["kernel"]
    assert kernel.sharding == place
    expected = stored["kernel"] + stored["kernel_lora_scale"] * (
        stored["kernel_lora_a"] @ stored["kernel_lora_b"]
    )
    np.testing.assert_allclose(kernel, expected, rtol=1e-5, atol=1e-5)


def test_load_state_of_another_run(copy, mesh):
    source, state = checkpoint.load_state(copy.parent, abstract(make_state(mesh)))
    assert source == str(copy / "6")
    assert_same(state, make_state(mesh, 6))
