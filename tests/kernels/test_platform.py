"""The platform that a model is traced for is that of the mesh, not of this machine."""

import jax
from jax.sharding import AbstractDevice, AbstractMesh

from bert_jax import sharding
from bert_jax.kernels.platform import target_platform


def test_without_a_mesh_it_is_the_backend():
    assert target_platform() == jax.default_backend()


def test_of_this_machines_mesh():
    with sharding.on_mesh(sharding.make_mesh()):
        assert target_platform() == "cpu"


def test_of_devices_that_are_not_there():
    tpu = AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
    mesh = AbstractMesh((4,), ("data",), abstract_device=tpu)
    with jax.sharding.use_abstract_mesh(mesh):
        assert target_platform() == "tpu"
        assert jax.jit(lambda: target_platform() == "tpu" and 1.0).eval_shape().shape == ()
