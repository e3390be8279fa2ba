"""Checks the devices and what jax compiles for them, in another process."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from etils import epy

from bert_jax.commands.health.check import GIB, LOCK, OK, PROBLEM, WARNING, Check
from bert_jax.kernels import dispatch

with epy.lazy_imports():
    import google_crc32c
    import jax
    import jax.numpy as jnp
    import numpy as np

    from bert_jax.kernels import check as kernel_check
    from bert_jax.models import config as model_config

PROBE_SECONDS = 180
_INSTALL = {"nvidia": 'pip install -U "jax[cuda12]"', "tpu": 'pip install -U "jax[tpu]"'}


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
    code = f"import json, {__name__} as devices; print('PROBE' + json.dumps(devices.probe()))"
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
