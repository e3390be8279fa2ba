"""Eight CPU devices for every test, and the location of the larger real data."""

import errno
import gc
import importlib.metadata
import os
import platform
import sys
import tempfile
import zlib
from pathlib import Path

import pytest

from bert_jax.parallel import host

host.ignore_missing_accelerators()

# Before anything imports jax: the backend reads them once.
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # JAX_PLATFORMS=cuda runs the tests marked gpu
os.environ["HF_HUB_OFFLINE"] = "1"  # hub names are looked up in a local server only
# Most of the time goes to compiling programs that run once. These flags choose LLVM's lowest optimization
# level, one module per program, and XLA's older emitters, which take half as long.
_FLAGS: dict[str, object] = {
    "xla_force_host_platform_device_count": 8,
    "xla_backend_optimization_level": 0,
    "xla_cpu_parallel_codegen_split_count": 1,
}
if platform.machine() == "x86_64":
    # Disables bfloat16 instructions, so that training uses float32 on every processor.
    _FLAGS["xla_cpu_max_isa"] = "AVX512_VNNI"
if importlib.metadata.version("jaxlib").startswith("0.10."):  # later versions abort on this flag
    _FLAGS["xla_cpu_use_fusion_emitters"] = "false"
for _flag, _value in _FLAGS.items():
    if _flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --{_flag}={_value}".strip()

# Tests compile the same programs again, some in separate processes. They do not write to the user's cache.
_CACHE = tempfile.TemporaryDirectory(prefix="bert_jax-tests-xla-")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", _CACHE.name)
os.environ["XDG_CACHE_HOME"] = _CACHE.name
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")


def pytest_addoption(parser):
    parser.addoption("--long-part", metavar="K/N", help="of the tests marked long, take part K of N only")


def pytest_collection_modifyitems(config, items):
    text = config.getoption("--long-part")
    if text is not None:
        part, _, parts = text.partition("/")
        left_out = {
            item
            for item in items  # by name only, so that a test stays in its part
            if item.get_closest_marker("long")
            and zlib.crc32(item.nodeid.encode()) % int(parts) != int(part) - 1
        }
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


def pytest_make_parametrize_id(val, argname):
    """Names bytes by their argument: gzip data has a timestamp, which differs between test processes."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_finish():
    """Excludes imported modules from garbage collection, whose scans take a fifth of the tracing time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data next to the checkout; tests that need it are skipped if it does not exist."""
    path = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"no data at {path}")
    return path


@pytest.fixture(autouse=True, scope="module")
def free_compiled_programs():
    """Frees programs after each module; otherwise a run of all tests holds gigabytes of unused programs."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


@pytest.fixture
def no_temporary_directory(monkeypatch, tmp_path):
    """Makes all directories for temporary files nonexistent."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "none")])


@pytest.fixture
def unreadable(monkeypatch):
    """Returns a function that makes a folder unreadable, also for root."""

    def refuse(folder):
        def scandir(path, scan=os.scandir):
            if os.fspath(path) == os.fspath(folder):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
            return scan(path)

        monkeypatch.setattr(os, "scandir", scandir)

    return refuse


@pytest.fixture(scope="module")
def quick_compilation():
    """Compiles the programs of a module with few optimizations."""
    from support import processes  # imports jax

    with processes.quick_compilation():
        yield
