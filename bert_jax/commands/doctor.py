"""Check devices, versions, memory and write access, and suggest one fix per problem.

The exit code is 1 if there is a problem, and 0 otherwise, warnings included.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags as absl_flags
from etils import epy

from bert_jax.io import atomic, files
from bert_jax.kernels import dispatch
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    import google_crc32c
    import jax
    import jax.numpy as jnp
    import numpy as np
    import psutil
    from packaging import requirements as package_requirements
    from packaging import utils as package_names

    from bert_jax.kernels import check as kernel_check
    from bert_jax.models import config as model_config


GIB = 2**30
OK, WARNING, PROBLEM = "ok", "warning", "problem"
_LOCKS = {(3, 11): "requirements.lock"}  # other versions of Python use the newest lock
LOCK = Path(__file__).resolve().parents[2] / _LOCKS.get(sys.version_info[:2], "requirements-3.13.lock")
PROBE_SECONDS = 180


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of a check: what was checked, its status and details, and a fix if there is a problem."""

    name: str
    status: str
    detail: str
    fix: str = ""


def enough(name: str, detail: str, amount: float, *levels: tuple[float, str, str]) -> Check:
    """Returns the check of an amount.

    Args:
        name: what was checked.
        detail: describes the amount.
        amount: the amount.
        *levels: (least, status, fix), ascending. The first level that the amount does not reach gives the
            status and the fix; the status is OK if it reaches all of them.
    """
    for least, status, fix in levels:
        if amount < least:
            return Check(name, status, detail, fix)
    return Check(name, OK, detail)


def define_flags(define: Define) -> None:
    """Defines the flags."""
    define.string("workdir", "Directory that a run will write to; may be a URL such as gs://...", ".")
    define.json()


def run(flags: absl_flags.FlagValues, args: list[str]) -> int:
    """Runs the command."""
    checks = [
        check_python(sys.version_info[:3]),
        *check_packages(_requirements(), _installed_versions(), LOCK.read_text() if LOCK.exists() else ""),
        *check_backend(probe_in_child(), hardware()),
        check_memory(*host_memory()),
        check_cores(usable_cores(), os.getloadavg()[0]),
        *check_directory(flags.workdir),
        check_temporary(tempfile.gettempdir()),
        check_shared_memory("/dev/shm"),
        check_open_files(),
    ]
    worst = PROBLEM if any(check.status == PROBLEM for check in checks) else OK
    if flags.json:
        print(json.dumps({"ok": worst == OK, "checks": list(map(dataclasses.asdict, checks))}, indent=1))
    else:
        print(report(checks))
    return 0 if worst == OK else 1


def report(checks: Sequence[Check]) -> str:
    """Returns a line for each check, and the numbers of problems and warnings."""
    lines = []
    for check in checks:
        lines.append(f"{check.status:<8} {check.name:<14} {check.detail}")
        if check.fix:
            lines.append(f"{'':<8} {'':<14} fix: {check.fix}")
    count = {status: sum(check.status == status for check in checks) for status in (PROBLEM, WARNING)}
    lines.append(f"{_plural(count[PROBLEM], 'problem')}, {_plural(count[WARNING], 'warning')}")
    return "\n".join(lines)


def check_python(version: Sequence[int]) -> Check:
    """Checks the version of Python."""
    text = ".".join(map(str, version[:3]))
    if tuple(version[:2]) < (3, 11):
        in_clone = "rm -rf .venv; make install PYTHON=/path/to/python3.11"
        fix = in_clone if LOCK.exists() else "install bert-jax into an environment of python3.11 or newer"
        return Check("python", PROBLEM, f"{text}; 3.11 or newer is needed", fix)
    return Check("python", OK, f"{text} at {sys.executable}")


def _requirements() -> list[str] | None:
    try:
        return importlib.metadata.requires("bert-jax") or []
    except importlib.metadata.PackageNotFoundError:
        return None


def _installed_versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        if distribution.name:  # the first one on the path is the one that is imported
            found.setdefault(package_names.canonicalize_name(distribution.name), distribution.version)
    return found


def check_packages(
    requirements: Sequence[str] | None, installed: Mapping[str, str], lock: str
) -> list[Check]:
    """Compares installed versions with the ranges of setup.py (problems) and with the lock (warnings).

    Args:
        requirements: those in the metadata of the installed bert-jax; None if it is not installed.
        installed: {canonical name: version}.
        lock: the text of the lock file for this version of Python; "" if there is none.
    """
    checks, within = [], 0
    if requirements is None:
        detail = "bert-jax itself is not installed"
        checks.append(Check("packages", WARNING, detail, "pip install --no-deps -e ."))
    for text in requirements or ():
        requirement = package_requirements.Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = installed.get(package_names.canonicalize_name(requirement.name))
        wanted = f"{requirement.name}{requirement.specifier}"
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            detail = f"{requirement.name} is {version or 'missing'}; {wanted} is needed"
            checks.append(Check("packages", PROBLEM, detail, f"pip install '{wanted}'"))
        else:
            within += 1

    pins = [line.split("==") for line in lock.splitlines() if "==" in line and not line.startswith("#")]
    differing = [
        f"{name} {installed[package_names.canonicalize_name(name)]} (tested: {pin})"
        for name, pin in pins
        if installed.get(package_names.canonicalize_name(name), pin) != pin
    ]
    if differing:
        shown = ", ".join(differing[:4]) + (f" and {len(differing) - 4} more" if len(differing) > 4 else "")
        detail = f"differ from the tested versions: {shown}"
        checks.append(Check("versions", WARNING, detail, f"pip install -r {LOCK.name}"))
    elif not checks:
        tested = f"{len(pins)} pinned versions as tested"
        if not pins:  # an installed wheel has version ranges but no lock
            tested = f"{within} packages in the ranges that bert-jax needs"
        jax, flax = installed.get("jax"), installed.get("flax")
        checks.append(Check("packages", OK, f"jax {jax}, flax {flax}, {tested}"))
    return checks


def hardware() -> list[str]:
    """Returns the accelerators that the operating system lists: "nvidia", "tpu"."""
    found = []
    if Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi"):
        found.append("nvidia")
    if Path("/dev/accel0").exists() or Path("/dev/vfio/0").exists():
        found.append("tpu")
    return found


def probe() -> dict[str, Any]:
    """Returns what jax reports about its devices, and whether it compiles correctly; imports jax."""
    devices = jax.local_devices()
    memory = devices[0].memory_stats() or {}
    start = time.perf_counter()
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) % 7
    error = {}
    for dtype, tolerance in (("float32", 1e-4), ("bfloat16", 2e-2)):
        product = jax.jit(lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.float32))
        got = np.asarray(product(jnp.asarray(x, dtype), jnp.asarray(x.T, dtype)))
        difference = float(np.abs(got - x @ x.T).max() / np.abs(x @ x.T).max())
        error[dtype] = difference if difference > tolerance else 0.0
    return {
        "platform": devices[0].platform,
        "kind": devices[0].device_kind,
        "local_devices": len(devices),
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "memory_limit": memory.get("bytes_limit"),
        "compile_seconds": time.perf_counter() - start,
        "wrong_products": {dtype: value for dtype, value in error.items() if value},
        "x64": bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        "crc32c": google_crc32c.implementation,
        "kernels": probe_kernels(),
    }


def probe_kernels() -> list[dict[str, Any]]:
    """Returns the result of the check of each fused kernel of this platform, with the shapes of Base."""
    config = model_config.EncoderConfig()
    variant = kernel_check.Variant.of(config)
    names = [kernel.name for kernel in kernel_check.candidates(config, variant)]
    return [dataclasses.asdict(result) for result in kernel_check.run(names, variant)]


def probe_in_child(seconds: float = PROBE_SECONDS) -> dict[str, Any]:
    """Runs `probe` in another process, since a driver may hang or crash; then returns {"error": line}."""
    code = "import json; from bert_jax.commands import doctor; print('PROBE' + json.dumps(doctor.probe()))"
    # Otherwise jax would take most of the memory of a GPU that a run may be using.
    env = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=seconds,
            env=env,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"jax did not find its devices and compile within {seconds:.0f} s"}
    for line in done.stdout.splitlines():
        if line.startswith("PROBE"):
            return json.loads(line.removeprefix("PROBE"))
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    reason = lines[-1] if lines else f"code {done.returncode}"
    return {"error": reason if " " in reason else f"jax did not find its devices ({reason})"}


_INSTALL = {"nvidia": 'pip install -U "jax[cuda12]"', "tpu": 'pip install -U "jax[tpu]"'}


def _install_jax() -> str:
    """Returns the command that installs a working jax: the tested version in a clone, else the newest."""
    return f"pip install -r {LOCK.name}" if LOCK.exists() else "pip install -U jax"


def check_backend(found: Mapping[str, Any], accelerators: Sequence[str]) -> list[Check]:
    """Compares what `probe` returned with the accelerators of the machine."""
    asked = os.environ.get("JAX_PLATFORMS", "")
    if "error" in found:
        if asked:
            fix = f"unset JAX_PLATFORMS (it is {asked!r}), then bert-jax doctor"
        elif "No module named" in found["error"]:
            fix = _install_jax()
        elif accelerators:
            fix = f"end other programs that use the device, or {_INSTALL[accelerators[0]]}"
        else:
            fix = "pip install --force-reinstall jax jaxlib"
        return [Check("devices", PROBLEM, found["error"], fix)]

    platform = "" if found["kind"] == found["platform"] else f" ({found['platform']})"
    text = f"{found['devices']} x {found['kind']}{platform}"
    if found["processes"] > 1:
        text += f", {found['local_devices']} on this host, {found['processes']} processes"
    if found["memory_limit"]:
        text += f", {found['memory_limit'] / GIB:.1f} GiB each"
    checks = []
    if found["platform"] == "cpu" and accelerators:
        unused = f"the {accelerators[0]} device of this machine is not used"
        if asked == "cpu":
            detail = f"{text}, since JAX_PLATFORMS=cpu; {unused}"
            checks.append(Check("devices", WARNING, detail, "unset JAX_PLATFORMS"))
        else:
            checks.append(Check("devices", PROBLEM, f"{text}; {unused}", _INSTALL[accelerators[0]]))
    else:
        checks.append(Check("devices", OK, text))

    if found["wrong_products"]:
        wrong = ", ".join(f"{dtype} off by {value:.1%}" for dtype, value in found["wrong_products"].items())
        fix = f"unset XLA_FLAGS and run bert-jax doctor again; if the problem remains, {_install_jax()}"
        checks.append(Check("compilation", PROBLEM, f"matrix products are wrong: {wrong}", fix))
    else:
        detail = f"matrix products are correct, compiled and run in {found['compile_seconds']:.1f} s"
        checks.append(Check("compilation", OK, detail))
    checks += check_kernels(found["platform"], found["kernels"])
    if found["x64"]:
        detail = "JAX_ENABLE_X64 is set, which doubles the memory that a run needs"
        checks.append(Check("precision", WARNING, detail, "unset JAX_ENABLE_X64"))
    if found["crc32c"] != "c":
        detail = (
            f"google-crc32c uses its {found['crc32c']} implementation, which reads records many times slower"
        )
        checks.append(Check("checksums", WARNING, detail, "pip install --force-reinstall google-crc32c"))
    return checks


def check_kernels(platform: str, results: Sequence[Mapping[str, Any]]) -> list[Check]:
    """Returns a check for each result of `probe_kernels` on a platform."""
    checks = []
    for result in results:
        name, seconds = result["kernel"], f"{result['seconds']:.1f} s"
        if result["problem"]:
            fix = f"runs use {name.split('=')[0]}=xla instead, so none is needed; please report this line"
            checks.append(Check("kernels", WARNING, f"{name}: {result['problem']} ({seconds})", fix))
        else:
            detail = f"{name}: agrees with the XLA implementation to {result['difference']:.1%} ({seconds})"
            checks.append(Check("kernels", OK, detail))
    if not results:
        others = ", ".join(f"{kernel.name} ({kernel.platform})" for kernel in dispatch.KERNELS)
        checks.append(Check("kernels", OK, f"{platform} uses no fused kernels; other platforms use {others}"))
    return checks


def host_memory() -> tuple[int, int]:
    """Returns the total and the available memory in bytes, within the limit of a container."""
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    for limit, usage in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            bound, used = int(Path(limit).read_text()), int(Path(usage).read_text())
        except (OSError, ValueError):  # no cgroup of this kind, or "max"
            continue
        if bound < total:
            total, available = bound, min(available, bound - used)
    return total, max(available, 0)


def check_memory(total: int, available: int) -> Check:
    """Checks the memory of the host, in bytes."""
    text = f"{available / GIB:.1f} of {total / GIB:.1f} GiB free"
    return enough(
        "memory",
        text,
        available,
        (1 * GIB, PROBLEM, "end other programs, or use a machine with at least 4 GiB"),
        (3 * GIB, WARNING, "training base needs about 3 GiB: choose a smaller size or end other programs"),
    )


def usable_cores() -> float:
    """Returns the number of cores that this process may use, by its affinity and its container's quota."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(cores, int(quota) / int(period))
    except (OSError, ValueError):  # no cgroup, or "max"
        return cores


def check_cores(cores: float, load: float) -> Check:
    """Warns if other programs use the processor."""
    text = f"{cores:g} usable, load {load:.1f}"
    busy = "other programs are running, so do not measure speed now"
    return enough("cores", text, 1.5 * cores, (load, WARNING, busy))


def check_directory(path: str) -> list[Check]:
    """Writes, renames, reads and removes a small file, as checkpoints do.

    Args:
        path: a directory or a URL. If the directory does not exist, its nearest existing parent is used.
    """
    remote = files.is_remote(path)
    directory = files.absolute(path)
    while not remote and not os.path.exists(directory):
        directory = os.path.dirname(directory)
    content = os.urandom(4096)
    place = os.path.join(directory, f".doctor-{uuid.uuid4().hex}")
    try:
        atomic.write_file(place, content)
        files.move(place, f"{place}-renamed")
        intact = files.read(f"{place}-renamed") == content
        files.remove(f"{place}-renamed")
    except OSError as error:
        detail = f"{directory}: {getattr(error, 'strerror', None) or error}"
        fix = "choose another --workdir" + ("" if remote else f", or chmod u+rwx {directory}")
        return [Check("write access", PROBLEM, detail, fix)]
    if not intact:
        detail = f"{directory}: a file has other contents than were written"
        return [Check("write access", PROBLEM, detail, "choose a --workdir on another disk")]
    checks = [Check("write access", OK, directory)]
    return checks if remote else [*checks, check_disk(shutil.disk_usage(directory).free)]


def check_disk(free: int) -> Check:
    """Checks the free space of the disk for work directories, in bytes."""
    fix = "free some space: three checkpoints of base need 4 GB"
    levels = (1 * GIB, PROBLEM, fix), (10 * GIB, WARNING, f"{fix}, of large 12 GB")
    return enough("disk", f"{free / GIB:.1f} GiB free", free, *levels)


def check_temporary(path: str) -> Check:
    """Checks the free space of the directory for temporary files."""
    free = shutil.disk_usage(path).free
    digits = 1 if free >= GIB // 2 else 2
    detail = f"{path}: {free / GIB:.{digits}f} GiB free"
    return enough("temporary", detail, free, (GIB // 2, WARNING, "TMPDIR=/a/larger/disk"))


def check_shared_memory(path: str) -> Check:
    """Checks the shared memory, which holds the locks and queues of worker processes."""
    if not os.path.isdir(path):
        return Check("shared memory", OK, f"no {path} on this system")
    free = shutil.disk_usage(path).free
    if free < 32 * 2**20:
        detail = f"{path}: {free / 2**20:.0f} MiB free"
        return Check("shared memory", WARNING, detail, "docker run --shm-size=1g")
    return Check("shared memory", OK, f"{path}: {free / GIB:.1f} GiB free")


def check_open_files() -> Check:
    """Checks the limit on the number of open files."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft < 0:
        return Check("open files", OK, "no limit")
    return enough("open files", f"at most {soft}", soft, (512, WARNING, "ulimit -n 4096"))


def _plural(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"
