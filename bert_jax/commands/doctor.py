"""Check devices, versions, memory and write access, and suggest one fix per problem.

The exit code is 1 if there is a problem, and 0 otherwise, warnings included.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import math
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import shared
from bert_jax.errors import UserError
from bert_jax.io import atomic, files
from bert_jax.io.wording import counted, some
from bert_jax.kernels import dispatch
from bert_jax.parallel import host
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    import google_crc32c
    import jax
    import jax.numpy as jnp
    import numpy as np
    from packaging import requirements as package_requirements
    from packaging import utils as package_names

    from bert_jax import convert
    from bert_jax.convert import families
    from bert_jax.kernels import check as kernel_check
    from bert_jax.models import assembled
    from bert_jax.models import config as model_config

GIB = 2**30
OK, WARNING, PROBLEM = "ok", "warning", "problem"
PROBE_SECONDS = 180
# Other versions of Python than 3.11 use the newest lock. A wheel has none.
LOCK = Path(__file__).resolve().parents[2] / (
    "requirements.lock" if sys.version_info[:2] == (3, 11) else "requirements-3.13.lock"
)
_INSTALL = {"nvidia": 'pip install -U "jax[cuda12]"', "tpu": 'pip install -U "jax[tpu]"'}


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of a check: what was checked, its status and details, and a fix if there is a problem."""

    name: str
    status: str
    detail: str
    fix: str = ""


def define_flags(define: Define) -> None:
    """Defines the flags."""
    define.string("workdir", "Directory that a run will write to; may be a URL such as gs://...", ".")
    define.string("model", f"Also checks a model that a run will start from: {shared.MODEL}.")
    define.json()


def run(flags: absl_flags.FlagValues, args: list[str]) -> int:
    """Runs the command."""
    checks = [
        *check_packages(requirements(), installed_versions(), LOCK.read_text() if LOCK.exists() else ""),
        *check_backend(probe_in_child(), accelerators()),
        *([check_model(flags.model)] if flags.model else []),
        check_memory(host.total_and_available_memory()[1]),
        *check_directory(flags.workdir),
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
    lines.append(f"{counted(count[PROBLEM], 'problem')}, {counted(count[WARNING], 'warning')}")
    return "\n".join(lines)


def requirements() -> list[str]:
    """Returns the requirements in the metadata of the installed bert-jax; none if it is not installed."""
    try:
        return importlib.metadata.requires("bert-jax") or []
    except importlib.metadata.PackageNotFoundError:
        return []


def installed_versions() -> dict[str, str]:
    """Returns {canonical name: version} of the installed packages."""
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        if distribution.name:  # the first one on the path is the one that is imported
            versions.setdefault(package_names.canonicalize_name(distribution.name), distribution.version)
    return versions


def check_packages(requirements: Sequence[str], installed: Mapping[str, str], lock: str) -> Iterator[Check]:
    """Compares installed versions with the ranges of setup.py (problems) and with the lock (warnings).

    Args:
        requirements: those in the metadata of the installed bert-jax.
        installed: {canonical name: version}.
        lock: the text of the lock file for this version of Python; "" if there is none.
    """
    if not requirements:
        yield Check("packages", WARNING, "bert-jax itself is not installed", "pip install --no-deps -e .")
    for text in requirements:
        requirement = package_requirements.Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = installed.get(package_names.canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            needed = f"{requirement.name}{requirement.specifier}"
            detail = f"{requirement.name} is {version or 'missing'}; {needed} is needed"
            yield Check("packages", PROBLEM, detail, f"pip install '{needed}'")
    pins = [line.split("==") for line in lock.splitlines() if "==" in line and not line.startswith("#")]
    differing = [
        f"{name} {version} (tested: {pin})"
        for name, pin in pins
        if (version := installed.get(package_names.canonicalize_name(name), pin)) != pin
    ]
    if differing:
        detail = f"differ from the tested versions: {some(differing)}"
        yield Check("versions", WARNING, detail, f"pip install -r {LOCK.name}")
    else:
        python = ".".join(map(str, sys.version_info[:3]))
        detail = f"python {python}, jax {installed.get('jax')}, flax {installed.get('flax')}"
        yield Check("versions", OK, detail)


def accelerators() -> list[str]:
    """Returns the accelerators that the operating system lists: "nvidia", "tpu"."""
    names = []
    if Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi"):
        names.append("nvidia")
    if Path("/dev/accel0").exists() or Path("/dev/vfio/0").exists():
        names.append("tpu")
    return names


def probe() -> dict[str, Any]:
    """Returns what jax reports about its devices, and how wrong compiled matmuls are; imports jax."""
    devices = jax.local_devices()
    start = time.perf_counter()
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) % 7
    wrong = {}
    for dtype, tolerance in (("float32", 1e-4), ("bfloat16", 2e-2)):
        matmul = jax.jit(lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.float32))
        got = np.asarray(matmul(jnp.asarray(x, dtype), jnp.asarray(x.T, dtype)))
        difference = float(np.abs(got - x @ x.T).max() / np.abs(x @ x.T).max())
        if not difference <= tolerance:
            wrong[dtype] = difference
    config = model_config.EncoderConfig()
    kernels = kernel_check.candidates(config)
    return {
        "platform": devices[0].platform,
        "kind": devices[0].device_kind,
        "devices": jax.device_count(),
        "memory_limit": (devices[0].memory_stats() or {}).get("bytes_limit"),
        "compile_seconds": time.perf_counter() - start,
        "wrong_matmuls": wrong,
        "x64": bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        "crc32c": google_crc32c.implementation,
        "kernels": [(kernel.name, *kernel_check.run(kernel, config)) for kernel in kernels],
    }


def probe_in_child(seconds: float = PROBE_SECONDS) -> dict[str, Any]:
    """Runs `probe` in another process, since a driver may hang or crash; then returns {"error": line}."""
    code = f"import json, {__name__} as doctor; print('PROBE' + json.dumps(doctor.probe()))"
    # Otherwise jax would take most of the memory of a GPU that a run may be using.
    env = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    command = [sys.executable, "-c", code]
    options: dict[str, Any] = dict(capture_output=True, text=True, stdin=subprocess.DEVNULL)
    try:
        done = subprocess.run(command, timeout=seconds, env=env, **options)
    except subprocess.TimeoutExpired:
        return {"error": f"jax did not find its devices and compile within {seconds:.0f} s"}
    for line in done.stdout.splitlines():
        if line.startswith("PROBE"):
            return json.loads(line.removeprefix("PROBE"))
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return {"error": f"jax did not find its devices ({lines[-1] if lines else f'code {done.returncode}'})"}


def check_backend(probed: Mapping[str, Any], present: Sequence[str]) -> Iterator[Check]:
    """Compares what `probe` returned with the accelerators of the machine."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    install = f"pip install -r {LOCK.name}" if LOCK.exists() else "pip install -U jax"
    if "error" in probed:
        fix = install
        if platforms:
            fix = f"unset JAX_PLATFORMS (it is {platforms!r}), then bert-jax doctor"
        elif present and "No module named" not in probed["error"]:
            fix = f"end other programs that use the device, or {_INSTALL[present[0]]}"
        yield Check("devices", PROBLEM, probed["error"], fix)
        return
    text = f"{probed['devices']} x {probed['kind']} ({probed['platform']})"
    if probed["memory_limit"]:
        text += f", {probed['memory_limit'] / GIB:.1f} GiB each"
    if probed["platform"] == "cpu" and present:
        text += f"; the {present[0]} device of this machine is not used"
        if platforms == "cpu":
            yield Check("devices", WARNING, f"{text}, since JAX_PLATFORMS=cpu", "unset JAX_PLATFORMS")
        else:
            yield Check("devices", PROBLEM, text, _INSTALL[present[0]])
    else:
        yield Check("devices", OK, text)
    if probed["wrong_matmuls"]:
        wrong = ", ".join(f"{dtype} off by {value:.1%}" for dtype, value in probed["wrong_matmuls"].items())
        fix = f"unset XLA_FLAGS and run bert-jax doctor again; if the problem remains, {install}"
        yield Check("compilation", PROBLEM, f"matmuls are wrong: {wrong}", fix)
    else:
        yield Check("compilation", OK, f"matmuls are correct ({probed['compile_seconds']:.1f} s)")
    for name, problem, difference in probed["kernels"]:
        if problem:
            fix = "runs use XLA instead, so none is needed; please report this line"
            yield Check("kernels", WARNING, f"{name}: {problem}", fix)
        else:
            yield Check("kernels", OK, f"{name}: agrees with XLA to {difference:.1%}")
    if not probed["kernels"]:
        others = ", ".join(f"{kernel.name} ({kernel.platform})" for kernel in dispatch.KERNELS)
        yield Check("kernels", OK, f"{probed['platform']} uses none; other platforms use {others}")
    if probed["x64"]:
        detail = "JAX_ENABLE_X64 is set, which doubles the memory that a run needs"
        yield Check("precision", WARNING, detail, "unset JAX_ENABLE_X64")
    if probed["crc32c"] != "c":
        detail = f"google-crc32c uses its {probed['crc32c']} implementation: records are read very slowly"
        yield Check("checksums", WARNING, detail, "pip install --force-reinstall google-crc32c")


def check_model(path: str) -> Check:
    """Checks that a model is of a known family, with a vocabulary; its weights are not read."""
    try:
        config, tokenizer = convert.load_architecture(path)
    except UserError as error:
        return Check("model", PROBLEM, str(error), f"bert-jax inspect {path}")
    count = sum(map(math.prod, assembled.shapes(config, ("encoder",)).values()))
    detail = (
        f"{families.of(config).name}, {counted(config.num_hidden_layers, 'layer')} of {config.hidden_size}, "
        f"{count:,} parameters; {tokenizer.kind} vocabulary of {tokenizer.vocab_size:,} tokens, rows "
        f"{tokenizer.template.pair}"
    )
    return Check("model", OK, detail)


def check_memory(available: int) -> Check:
    """Checks the free memory of the host, in bytes."""
    status = PROBLEM if available < GIB else WARNING if available < 3 * GIB else OK
    fix = "" if status == OK else "end other programs: training base needs about 3 GiB"
    return Check("memory", status, f"{available / GIB:.1f} GiB free", fix)


def check_directory(path: str) -> Iterator[Check]:
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
        yield Check("write access", PROBLEM, detail, "choose another --workdir")
        return
    if not intact:
        detail = f"{directory}: a file has other contents than were written"
        yield Check("write access", PROBLEM, detail, "choose a --workdir on another disk")
        return
    yield Check("write access", OK, directory)
    if not remote:
        yield check_disk(shutil.disk_usage(directory).free)


def check_disk(free: int) -> Check:
    """Checks the free space of the disk for work directories, in bytes."""
    status = PROBLEM if free < GIB else WARNING if free < 10 * GIB else OK
    fix = "" if status == OK else "free some space: three checkpoints of base need 4 GB, of large 12 GB"
    return Check("disk", status, f"{free / GIB:.1f} GiB free", fix)
