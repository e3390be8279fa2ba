"""Checks Python and the installed packages."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping, Sequence

from etils import epy

from bert_jax.commands.health.check import LOCK, OK, PROBLEM, WARNING, Check
from bert_jax.io.wording import some

with epy.lazy_imports():
    from packaging import requirements as package_requirements
    from packaging import utils as package_names


def check_python(version: Sequence[int]) -> Check:
    """Checks the version of Python."""
    text = ".".join(map(str, version[:3]))
    if tuple(version[:2]) < (3, 11):
        in_clone = "rm -rf .venv; make install PYTHON=/path/to/python3.11"
        fix = in_clone if LOCK.exists() else "install bert-jax into an environment of python3.11 or newer"
        return Check("python", PROBLEM, f"{text}; 3.11 or newer is needed", fix)
    return Check("python", OK, f"{text} at {sys.executable}")


def requirements() -> list[str] | None:
    """Returns the requirements in the metadata of the installed bert-jax; None if it is not installed."""
    try:
        return importlib.metadata.requires("bert-jax") or []
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_versions() -> dict[str, str]:
    """Returns {canonical name: version} of the installed packages."""
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
        detail = f"differ from the tested versions: {some(differing)}"
        checks.append(Check("versions", WARNING, detail, f"pip install -r {LOCK.name}"))
    elif not checks:
        tested = f"{len(pins)} pinned versions as tested"
        if not pins:  # an installed wheel has version ranges but no lock
            tested = f"{within} packages in the ranges that bert-jax needs"
        jax, flax = installed.get("jax"), installed.get("flax")
        checks.append(Check("packages", OK, f"jax {jax}, flax {flax}, {tested}"))
    return checks
