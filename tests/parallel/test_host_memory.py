import os
import platform
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import psutil
import pytest

from bert_jax.parallel import host_memory

GLIBC = platform.libc_ver()[0] == "glibc"
SETTINGS = "glibc.malloc.arena_max=1"
PROGRAM = """
import sys
import numpy as np
from bert_jax.parallel import host_memory

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))

kept, before = host_memory.keep_freed_memory(int(sys.argv[1])), resident()
np.ones(64 * 2**20, np.uint8)
print(kept, resident() - before)
"""


def test_the_memory_is_within_the_machine():
    total, available = host_memory.total_and_available()
    assert 0 < available <= total


@pytest.mark.parametrize("stat, expected", [("anon 5\ninactive_file 900\n", 1000), ("", 100)])
def test_cached_files_of_a_container_are_no_used_memory(tmp_path, monkeypatch, stat, expected):
    (tmp_path / "memory.max").write_text("1100")
    (tmp_path / "memory.current").write_text("1000")
    if stat:
        (tmp_path / "memory.stat").write_text(stat)
    of_container = (tmp_path, "memory.max", "memory.current", "inactive_file")
    monkeypatch.setattr(host_memory, "_CGROUPS", (of_container,))
    assert host_memory.total_and_available() == (1100, expected)


@pytest.mark.parametrize(
    "limit, used, available, expected",
    [
        (1100, 300, 5000, (1100, 800)),
        (1100, 300, 500, (1100, 500)),  # the other programs of the machine have the rest
        (1100, 1200, 5000, (1100, 0)),
        (9000, 300, 500, (8000, 500)),  # more than the machine has
        ("max", 300, 500, (8000, 500)),
    ],
)
def test_the_memory_is_within_a_container(tmp_path, monkeypatch, limit, used, available, expected):
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    of_container = (tmp_path, "memory.max", "memory.current", "inactive_file")
    monkeypatch.setattr(host_memory, "_CGROUPS", (of_container,))
    machine = types.SimpleNamespace(total=8000, available=available)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    assert host_memory.total_and_available() == expected


@pytest.mark.skipif(not GLIBC, reason="glibc")
@pytest.mark.parametrize(
    "settings, temporary, expected",
    [(SETTINGS, 64 * 2**20, True), ("", 64 * 2**20, False), (SETTINGS, 2**60, False)],
    ids=["kept", "several heaps", "too little memory"],
)
def test_freed_memory_is_kept(settings, temporary, expected):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(temporary)],
        capture_output=True, text=True, check=True, env=os.environ | {"GLIBC_TUNABLES": settings},
    )  # fmt: skip
    kept, growth = done.stdout.split()
    assert (kept == "True") == expected
    assert (int(growth) > 60 * 2**20) == expected


@pytest.mark.parametrize("backend, expected", [("cpu", True), ("gpu", False)])
def test_the_temporary_memory_of_a_program_on_cpus_is_kept(monkeypatch, backend, expected):
    asked = []
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(host_memory, "keep_freed_memory", lambda size: asked.append(size) or True)
    matrix = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    compiled = jax.jit(lambda x: jnp.sort(x @ x) @ x).lower(matrix).compile()
    assert host_memory.keep_activations(compiled, devices=2) == expected
    temporary = compiled.memory_analysis().temp_size_in_bytes
    assert temporary >= 256 * 256 * 4
    assert asked == ([2 * temporary] if expected else [])
