"""Check devices, versions, memory and write access, and suggest one fix per problem.

The exit code is 1 if there is a problem, and 0 otherwise, even with warnings.
"""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags as absl_flags
from etils import epy

from bert_jax.io import atomic, files
from bert_jax.io.wording import counted
from bert_jax.parallel import host
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    import jax
    import jax.numpy as jnp
    import numpy as np
    from packaging import requirements

    from bert_jax.kernels import check as kernel_check
    from bert_jax.models import config as model_config

GIB = 2**30
OK, WARNING, PROBLEM = "ok", "warning", "problem"
PROBE_SECONDS = 180
_INSTALL = {"nvidia": 'pip install -U "jax[cuda12]"', "tpu": 'pip install -U "jax[tpu]"'}


class Check(NamedTuple):
    """The result of a check: what was checked, its status and details, and a fix if there is a problem."""

    name: str
    status: str
    detail: str
    fix: str = ""


def define_flags(define: Define) -> None:
    define.string("workdir", "Directory that a run will write to, such as gs://bucket/runs.", ".")


def run(flags: absl_flags.FlagValues, args: list[str]) -> int:
    checks = [
        *check_packages(),
        *check_backend(probe_in_child(), accelerators()),
        _check_space("memory", host.total_and_available_memory()[1], "training BERT-base needs about 3 GiB"),
        *check_directory(flags.workdir),
    ]
    for check in checks:
        print(f"{check.status:<8} {check.name:<14} {check.detail}")
        if check.fix:
            print(f"{'':<8} {'':<14} fix: {check.fix}")
    problems, warnings = (sum(check.status == status for check in checks) for status in (PROBLEM, WARNING))
    print(f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}")
    return 1 if problems else 0


def check_packages() -> Iterator[Check]:
    """Compares the installed packages with the requirements of bert-jax."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    try:
        required = importlib.metadata.requires("bert-jax") or []
    except importlib.metadata.PackageNotFoundError:
        required = []
        yield Check("packages", WARNING, "bert-jax itself is not installed", "pip install --no-deps -e .")
    for requirement in map(requirements.Requirement, required):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        needed = f"{requirement.name}{requirement.specifier}"
        try:
            version = versions[requirement.name] = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            version = ""
        if not version or not requirement.specifier.contains(version, prereleases=True):
            detail = f"{requirement.name} is {version or 'missing'}; {needed} is needed"
            yield Check("packages", PROBLEM, detail, f"pip install '{needed}'")
    shown = [f"{name} {versions[name]}" for name in ("python", "jax", "flax") if name in versions]
    yield Check("versions", OK, ", ".join(shown))


def accelerators() -> list[str]:
    """Returns the accelerators that the operating system lists: "nvidia", "tpu"."""
    nvidia = Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi")
    tpu = Path("/dev/accel0").exists() or Path("/dev/vfio/0").exists()
    return ["nvidia"] * bool(nvidia) + ["tpu"] * tpu


def probe() -> dict[str, Any]:
    """Returns what jax reports about its devices, and how wrong compiled matmuls are; imports jax."""
    devices = jax.local_devices()
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) % 7
    wrong = {}
    for dtype, tolerance in (("float32", 1e-4), ("bfloat16", 2e-2)):
        matmul = jax.jit(lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.float32))
        result = np.asarray(matmul(jnp.asarray(x, dtype), jnp.asarray(x.T, dtype)))
        difference = float(np.abs(result - x @ x.T).max() / np.abs(x @ x.T).max())
        if not difference <= tolerance:
            wrong[dtype] = difference
    config = model_config.EncoderConfig()
    kernels = kernel_check.candidates(config)
    return {
        "platform": devices[0].platform,
        "kind": devices[0].device_kind,
        "devices": jax.device_count(),
        "memory_limit": (devices[0].memory_stats() or {}).get("bytes_limit"),
        "wrong_matmuls": wrong,
        "kernels": [(name, *kernel_check.run(difference)) for name, difference in kernels.items()],
    }


def probe_in_child(seconds: float = PROBE_SECONDS) -> dict[str, Any]:
    """Runs `probe` in another process, since a driver may hang or crash; then returns {"error": line}."""
    code = f"import json, {__name__} as doctor; print('PROBE' + json.dumps(doctor.probe()))"
    # Otherwise jax would allocate most of the memory of a GPU that a run may be using.
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
    install = _INSTALL[present[0]] if present else "pip install -U jax"
    fix = f"unset JAX_PLATFORMS (it is {platforms!r})" if platforms else install
    if "error" in probed:
        yield Check("devices", PROBLEM, probed["error"], fix)
        return
    text = f"{probed['devices']} x {probed['kind']} ({probed['platform']})"
    if probed["memory_limit"]:
        text += f", {probed['memory_limit'] / GIB:.1f} GiB each"
    if probed["platform"] == "cpu" and present:
        text += f"; the {present[0]} device of this machine is not used"
        yield Check("devices", WARNING if platforms == "cpu" else PROBLEM, text, fix)
    else:
        yield Check("devices", OK, text)
    if wrong := ", ".join(f"{dtype} off by {value:.1%}" for dtype, value in probed["wrong_matmuls"].items()):
        yield Check(
            "compilation", PROBLEM, f"compiled matmuls are wrong: {wrong}", f"unset XLA_FLAGS, or {install}"
        )
    else:
        yield Check("compilation", OK, "compiled matmuls are correct")
    for name, problem, difference in probed["kernels"]:
        if problem:
            yield Check("kernels", WARNING, f"{name}: {problem}", "none needed: runs use XLA instead")
        else:
            yield Check("kernels", OK, f"{name}: differs from XLA by {difference:.1%}")


def check_directory(path: str) -> Iterator[Check]:
    """Writes, renames, reads and removes a small file in a directory, or in its nearest parent."""
    directory = files.absolute(path)
    is_remote = files.is_remote(path)
    while not is_remote and not os.path.exists(directory):
        directory = os.path.dirname(directory)
    content = os.urandom(4096)
    place = os.path.join(directory, f".doctor-{uuid.uuid4().hex}")
    try:
        atomic.write_file(place, content)
        files.move(place, f"{place}-renamed")
        is_intact = files.read(f"{place}-renamed") == content
        problem = "" if is_intact else "a file does not contain what was written"
        files.remove(f"{place}-renamed")
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        yield Check("write access", PROBLEM, f"{directory}: {problem}", "choose another --workdir")
        return
    yield Check("write access", OK, directory)
    if not is_remote:
        free = shutil.disk_usage(directory).free
        yield _check_space("disk", free, "three checkpoints of BERT-base need 4 GB, of BERT-large 12 GB")


def _check_space(name: str, free: int, needs: str) -> Check:
    status = PROBLEM if free < GIB else WARNING if free < 3 * GIB else OK
    return Check(name, status, f"{free / GIB:.1f} GiB free", "" if status == OK else f"free some: {needs}")
