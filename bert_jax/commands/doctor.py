"""Check devices, versions, memory and write access, and suggest one fix per problem.

The exit code is 1 if there is a problem, and 0 otherwise, warnings included.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence

from absl import flags as absl_flags

from bert_jax.commands.flags import models
from bert_jax.commands.health import checkpoints, devices, machine, software
from bert_jax.commands.health.check import LOCK, OK, PROBLEM, WARNING, Check
from bert_jax.io.wording import counted
from bert_jax.parallel import host_memory, host_tuning
from bert_jax.settings.flags import Define


def define_flags(define: Define) -> None:
    """Defines the flags."""
    define.string("workdir", "Directory that a run will write to; may be a URL such as gs://...", ".")
    define.string("checkpoint", f"Also checks a model that a run will start from: {models.CHECKPOINT}.")
    define.json()


def run(flags: absl_flags.FlagValues, args: list[str]) -> int:
    """Runs the command."""
    lock = LOCK.read_text() if LOCK.exists() else ""
    checks = [
        software.check_python(sys.version_info[:3]),
        *software.check_packages(software.requirements(), software.installed_versions(), lock),
        *devices.check_backend(devices.probe_in_child(), devices.hardware()),
        *([checkpoints.check_checkpoint(flags.checkpoint)] if flags.checkpoint else []),
        machine.check_memory(*host_memory.total_and_available()),
        machine.check_cores(host_tuning.usable_cores(), os.getloadavg()[0]),
        *machine.check_directory(flags.workdir),
        machine.check_temporary(),
        machine.check_shared_memory("/dev/shm"),
        machine.check_open_files(),
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
