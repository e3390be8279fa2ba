"""Eight devices on the CPU for every test, and where the larger real data lies."""

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
os.environ["HF_HUB_OFFLINE"] = "1"  # names on the hub are looked up in a local server alone
# Most of the time goes to compiling programs that run once: LLVM's cheapest code, of one module per program,
# from XLA's older emitters, which take half as long.
_FLAGS: dict[str, object] = {
    "xla_force_host_platform_device_count": 8,
    "xla_backend_optimization_level": 0,
    "xla_cpu_parallel_codegen_split_count": 1,
}
if platform.machine() == "x86_64":
    # Without units for bfloat16, so that trainings are float32 with every processor.
    _FLAGS["xla_cpu_max_isa"] = "AVX512_VNNI"
if importlib.metadata.version("jaxlib").startswith("0.10."):  # later ones do not know it, and abort
    _FLAGS["xla_cpu_use_fusion_emitters"] = "false"
for _flag, _value in _FLAGS.items():
    if _flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --{_flag}={_value}".strip()

# Tests compile the same programs again, some in processes of their own; none of it goes to the user's cache.
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
            for item in items  # by the name alone, so that a test stays in its part
            if item.get_closest_marker("long")
            and zlib.crc32(item.nodeid.encode()) % int(parts) != int(part) - 1
        }
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


def pytest_make_parametrize_id(val, argname):
    """Names bytes by their argument: those of gzip hold the time, which differs between test processes."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_finish():
    """Else a fifth of the time of tracing goes to scans of what is imported, which is never garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the checkout; tests that need it are skipped where there is none."""
    path = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"no data at {path}")
    return path


@pytest.fixture(autouse=True, scope="module")
def free_compiled_programs():
    """Else a run of all tests holds gigabytes of programs that nobody calls again."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


@pytest.fixture
def no_temporary_directory(monkeypatch, tmp_path):
    """None of the directories for temporary files exists."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "none")])


@pytest.fixture
def unreadable(monkeypatch):
    """Returns a function after which a folder cannot be read, for root neither."""

    def refuse(folder):
        def scandir(path, scan=os.scandir):
            if os.fspath(path) == os.fspath(folder):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
            return scan(path)

        monkeypatch.setattr(os, "scandir", scandir)

    return refuse


@pytest.fixture(scope="module")
def quick_compilation():
    """The programs of a module are compiled with few optimizations."""
    from support import processes  # imports jax

    with processes.quick_compilation():
        yield
