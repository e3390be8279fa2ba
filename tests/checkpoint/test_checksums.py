"""Digests: independent of sharding, and sensitive to every bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.checkpoint import checksums
from bert_jax.parallel import sharding


@pytest.fixture(params=["host", "devices"])
def computed_on(request, monkeypatch):
    """Small arrays on the CPU need no program, which all others do."""
    if request.param == "devices":
        monkeypatch.setattr(checksums, "_are_on_host", lambda arrays: False)
    else:
        monkeypatch.delattr(checksums, "_digest_all")


def _digest(x):
    return checksums.array_digests({"x": x})["x"]


def _digests(x):
    """Those of the host and of the devices."""
    return tuple(int(part) for part in checksums._digest_on_host(x)), tuple(map(int, checksums._digest(x)))


@pytest.mark.parametrize("spec", [(), ("data",), (None, "data"), (None, "fsdp", "data"), (("data", "fsdp"),)])
def test_a_digest_does_not_depend_on_the_sharding(spec, computed_on):
    x = np.random.default_rng(0).normal(size=(8, 16, 4)).astype(np.float32)
    mesh = sharding.make_mesh(data=4, fsdp=2)
    assert _digest(jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))) == _digest(jnp.asarray(x))


def test_known_digests_stay_as_they_are(computed_on):
    """Checkpoints carry them: another mixing would make every saved step look damaged."""
    arrays = {
        "float32": jnp.arange(6, dtype=jnp.float32).reshape(2, 3),
        "bfloat16": jnp.arange(6, dtype=jnp.bfloat16),
        "int32": jnp.int32(7),
        "bool": jnp.array([True, False]),
    }
    assert checksums.array_digests(arrays) == {
        "float32": "f14d9f09233c20b0",
        "bfloat16": "2e810d2df10c1432",
        "int32": "33dabbd9957a691a",
        "bool": "c382c22b26b8da54",
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "int8", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (7,), (3, 5, 2), (0, 4)])
def test_the_host_computes_what_the_devices_do(dtype, shape):
    x = np.random.default_rng(2).normal(0, 50, shape)
    host, devices = _digests(jnp.asarray(x).astype(dtype))
    assert host == devices


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_chunks_of_the_host_change_nothing(dtype, monkeypatch):
    x = jnp.asarray(np.random.default_rng(4).normal(0, 50, (7, 3))).astype(dtype)
    monkeypatch.setattr(checksums, "_HOST_CHUNK", 4)
    host, devices = _digests(x)
    assert host == devices


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 24 * 5 * 32 - 1))
def test_every_flipped_bit_shows(bit):
    x = np.random.default_rng(1).normal(size=(24, 5)).astype(np.float32)
    flipped = x.copy()
    flipped.view(np.uint8).reshape(-1)[bit // 8] ^= np.uint8(1 << bit % 8)
    before, after = _digests(jnp.asarray(x)), _digests(jnp.asarray(flipped))
    assert before[0] != after[0] and before[1] != after[1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "uint8", "bool"])
def test_exchanged_elements_show(dtype, computed_on):
    x = jnp.asarray(np.array([0, 1, 0, 0, 1, 1]), dtype)
    assert _digest(x) != _digest(x[::-1])
