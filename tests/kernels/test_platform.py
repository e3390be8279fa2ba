"""A model is traced for the platform of the mesh, not of this machine."""

import flax.linen as nn
import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from bert_jax.kernels import platform
from bert_jax.kernels.dispatch import Target
from bert_jax.kernels.platform import target
from bert_jax.kernels.tpu import blocks
from bert_jax.parallel import sharding


@pytest.mark.parametrize(
    "units, flags, expected",
    [
        ("avx512f avx512_bf16 gfni", "", True),
        ("avx512f amx_bf16 amx_tile", "--xla_cpu_use_fusion_emitters=false", True),
        ("avx512f avx512_vnni", "", False),
        ("avx512f avx512_bf16", "--xla_cpu_max_isa=AVX512_BF16", True),
        ("avx512f avx512_bf16", "--xla_cpu_max_isa=AVX512_VNNI", False),
        (None, "", False),
    ],
)
def test_processors_with_units_for_bfloat16(tmp_path, monkeypatch, units, flags, expected):
    path = tmp_path / "cpuinfo"
    if units is not None:
        path.write_text(f"processor\t: 0\nflags\t\t: fpu {units}\nbugs\t: none\n")
    monkeypatch.setattr(platform, "_PROCESSORS", path)
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert platform.multiplies_bfloat16() is expected


def test_several_processes_have_one_dtype(monkeypatch):
    """The dtype does not depend on the processor, because the processors of processes may differ."""
    monkeypatch.setattr(platform, "multiplies_bfloat16", lambda: True)
    assert target() == Target("cpu", "bfloat16")
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert target() == Target("cpu")


def test_a_dimension_is_split_by_the_axes_that_the_mesh_has():
    assert platform.shards("batch") == 1
    with sharding.on_mesh(sharding.make_mesh(2, 2, 2)):
        found = [platform.shards(axis) for axis in ("batch", "heads", "embed", "kv")]
    assert found == [4, 2, 2, 1]
    with nn.logical_axis_rules(sharding.RULES), jax.set_mesh(jax.make_mesh((8,), ("data",))):
        assert platform.shards("batch") == 8 and platform.shards("heads") == 1


@pytest.mark.parametrize(
    "kind, cores, has_room",
    [("TPU v4", 2, False), ("TPU v5 lite", 1, True), ("TPU v5p", 2, True), ("TPU v99", 1, False)],
)
def test_the_vector_memory_is_that_of_the_chip(kind, cores, has_room):
    tpu = AbstractDevice(device_kind=kind, num_cores=cores, platform="tpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("data",), abstract_device=tpu)):
        assert blocks.has_room() == has_room
