"""The platform that a model is traced for is that of the mesh, not of this machine."""

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from bert_jax.kernels.dispatch import Target
from bert_jax.kernels.platform import target, target_platform
from bert_jax.parallel import sharding


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


@pytest.mark.parametrize(
    "kind, capability",
    [("NVIDIA H100 80GB HBM3", ""), ("Tesla V100-SXM2-16GB", "7.0"), ("Tesla T4", "7.5"), ("NVIDIA L4", "")],
)
def test_gpus_that_are_older_than_ampere_are_known_by_their_kind(kind, capability):
    gpu = AbstractDevice(device_kind=kind, num_cores=None, platform="gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("data",), abstract_device=gpu)):
        assert target() == Target("gpu", capability)
