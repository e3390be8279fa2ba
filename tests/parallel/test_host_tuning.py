import os
import subprocess
import sys

import pytest

from bert_jax.errors import ClusterError, UserError
from bert_jax.parallel import host_tuning

PROGRAM = (
    "import os, sys; from bert_jax.parallel import host_tuning; host_tuning.restart_with_malloc_settings(); "
    "print(os.getpid(), os.environ['GLIBC_TUNABLES'], sys.argv[1:])"
)


@pytest.mark.parametrize(
    "files, expected",
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "900000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "250000\n"}, 4),
        ({}, 4),
    ],
)
def test_the_quota_of_a_container_of_either_version_of_cgroups(tmp_path, monkeypatch, files, expected):
    """The formats are those of the kernel's admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(host_tuning, "_CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    assert host_tuning.usable_cores() == expected


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
@pytest.mark.parametrize(
    "given,expected",
    [
        (None, "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"),
        ("glibc.malloc.check=0", "glibc.malloc.check=0"),
    ],
)
def test_the_program_starts_again_once_with_its_arguments(given, expected):
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    if given is not None:
        environment["GLIBC_TUNABLES"] = given
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "a b", "--c"], env=environment, stdout=subprocess.PIPE, text=True
    )
    out, _ = process.communicate(timeout=60)
    assert out.split(maxsplit=2) == [
        str(process.pid),
        expected,
        "['a b', '--c']\n",
    ]  # the same process: signals still reach it


@pytest.mark.parametrize("hidden", [True, False])
def test_the_cuda_plugin_is_hidden_where_there_is_no_gpu(tmp_path, hidden):
    """A plugin that tells when jax loads it, as the real one does on machines without a driver."""
    (tmp_path / "jax_cuda12_plugin").mkdir()
    (tmp_path / "jax_plugins" / "xla_cuda12").mkdir(parents=True)
    (tmp_path / "jax_cuda12_plugin" / "__init__.py").write_text("print('plugin loaded')")
    (tmp_path / "jax_plugins" / "xla_cuda12" / "__init__.py").write_text(
        "def initialize(): print('backend loaded')"
    )
    program = (
        "from bert_jax.parallel import host_tuning\n"
        "host_tuning.has_nvidia_gpu = lambda: False; host_tuning.hide_gpu_plugins()\n"
        f"{'' if hidden else 'host_tuning.show_gpu_plugins()'}\n"
        "import jax; print(len(jax.devices('cpu')), 'devices')"
    )
    path = os.pathsep.join([*sys.path, str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == ""
    loaded = ["backend loaded", "plugin loaded"]
    assert [line for line in loaded if line in done.stdout] == ([] if hidden else loaded)
    assert "8 devices" in done.stdout


def test_nothing_is_hidden_from_who_asks_for_a_gpu_or_has_one(monkeypatch):
    monkeypatch.setattr(sys, "modules", {name: sys.modules[name] for name in sys.modules if name != "jax"})
    monkeypatch.setattr(host_tuning, "has_nvidia_gpu", lambda: False)
    for name in host_tuning.GPU_PLUGINS:
        sys.modules.pop(name, None)
    for platforms in ("cuda,cpu", "gpu"):
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
        host_tuning.hide_gpu_plugins()
        assert not set(host_tuning.GPU_PLUGINS) & set(sys.modules)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    host_tuning.hide_gpu_plugins()
    assert all(sys.modules[name] is None for name in host_tuning.GPU_PLUGINS)
    host_tuning.show_gpu_plugins()
    monkeypatch.setattr(host_tuning, "has_nvidia_gpu", lambda: True)
    host_tuning.hide_gpu_plugins()
    assert not set(host_tuning.GPU_PLUGINS) & set(sys.modules)


@pytest.mark.parametrize("hidden", [True, False])
def test_libtpu_is_hidden_where_there_is_no_tpu(tmp_path, hidden):
    """A library that tells when jax asks for it, as the real one prints errors on machines without a TPU."""
    (tmp_path / "libtpu").mkdir()
    (tmp_path / "libtpu" / "__init__.py").write_text(
        "print('libtpu loaded')\ndef get_library_path(): return None"
    )
    program = (
        "from bert_jax.parallel import host_tuning\n"
        "host_tuning.may_have_tpu = lambda: False; host_tuning.hide_libtpu()\n"
        f"{'' if hidden else 'host_tuning.show_libtpu()'}\n"
        "import jax; print(len(jax.devices('cpu')), 'devices')"
    )
    path = os.pathsep.join([*sys.path, str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert ("libtpu loaded" in done.stdout) != hidden and "8 devices" in done.stdout


def test_libtpu_is_not_hidden_where_there_may_be_a_tpu(monkeypatch):
    monkeypatch.setattr(sys, "modules", {name: sys.modules[name] for name in sys.modules if name != "jax"})
    sys.modules.pop("libtpu", None)
    for name in host_tuning._TPU_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(host_tuning.glob, "glob", lambda pattern: [])
    for name, value in (("JAX_PLATFORMS", "tpu,cpu"), ("TPU_WORKER_ID", "0")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            host_tuning.hide_libtpu()
            assert "libtpu" not in sys.modules
    with monkeypatch.context() as patch:
        patch.setattr(host_tuning.glob, "glob", lambda pattern: ["/dev/accel0"] if "accel" in pattern else [])
        host_tuning.hide_libtpu()
        assert "libtpu" not in sys.modules
    monkeypatch.setenv("JAX_PLATFORMS", "")
    with monkeypatch.context() as patch:  # it has loaded libtpu, or not
        patch.setitem(sys.modules, "jax", sys)
        host_tuning.hide_libtpu()
        assert "libtpu" not in sys.modules
    host_tuning.hide_libtpu()
    assert sys.modules["libtpu"] is None
    host_tuning.show_libtpu()
    assert "libtpu" not in sys.modules


@pytest.mark.parametrize(
    "error, attached, kind",
    [
        (AssertionError(), False, UserError),
        (AssertionError(), True, UserError),
        (RuntimeError("Unable to initialize backend 'cuda': no supported devices found"), False, UserError),
        (RuntimeError("Backend 'cuda' is not in the list of known backends: ['cpu']"), True, UserError),
        (RuntimeError("Unable to initialize backend 'tpu': Failed to open libtpu.so"), True, UserError),
        (RuntimeError("Unable to initialize backend 'tpu': The TPU is already in use"), True, ClusterError),
    ],
)
def test_a_missing_device_is_a_mistake_and_one_in_use_is_not(monkeypatch, error, attached, kind):
    """The process that an earlier attempt left may hold the device for a while, so a restart may help."""

    def devices():
        raise error

    monkeypatch.setattr("jax.devices", devices)
    monkeypatch.setattr(host_tuning, "has_nvidia_gpu", lambda: attached)
    monkeypatch.setattr(host_tuning, "may_have_tpu", lambda: False)
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    with pytest.raises(kind, match="JAX_PLATFORMS is 'tpu'"):
        host_tuning.check_devices()
