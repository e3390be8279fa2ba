"""What the host offers: cores, memory that is kept between steps, and devices."""

import importlib.util
import os
import types

import jax
import pytest

from bert_jax.errors import ClusterError, UserError
from bert_jax.parallel import host


@pytest.mark.parametrize(
    "files, expected",
    [
        ({"cpu.max": "250000 100000"}, 2.5),
        ({"cpu.max": "max 100000"}, 64),
        ({"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"}, 1.5),
    ],
)
def test_the_quota_of_a_container(tmp_path, monkeypatch, files, expected):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(host, "_CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    assert host.usable_cores() == expected


def test_memory_is_kept_if_there_is_plenty(monkeypatch):
    options = []
    monkeypatch.setattr(host, "_mallopt", lambda *pairs: options.extend(pairs) or True)
    monkeypatch.setattr(host, "total_and_available_memory", lambda: (10**9, 800))
    program = types.SimpleNamespace(memory_analysis=lambda: types.SimpleNamespace(temp_size_in_bytes=50))
    assert not host.keep_activations(program, 1)  # threads have heaps of their own
    monkeypatch.setattr(host, "_has_one_heap", True)
    assert host.keep_activations(program, 2) and (host._M_MMAP_MAX, 0) in options
    assert not host.keep_activations(program, 3)


@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_library_without_its_device_is_ignored(monkeypatch, has_gpu):
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "libtpu" or None)
    monkeypatch.setattr(host, "has_nvidia_gpu", lambda: has_gpu)
    monkeypatch.setattr(host, "may_have_tpu", lambda: False)
    host.ignore_missing_accelerators()
    assert os.environ.get("JAX_PLATFORMS") == (None if has_gpu else "cpu")


@pytest.mark.parametrize("attached, kind", [(True, ClusterError), (False, UserError)])
def test_a_device_in_use_is_no_mistake(monkeypatch, attached, kind):
    def devices():
        raise RuntimeError("Unable to initialize backend 'tpu': the TPU is already in use")

    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setattr(host, "has_nvidia_gpu", lambda: False)
    monkeypatch.setattr(host, "may_have_tpu", lambda: attached)
    with pytest.raises(kind, match="already in use"):
        host.check_devices()
