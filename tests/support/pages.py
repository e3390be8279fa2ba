"""Finds the commands in pages of docs/ and in notebooks, and runs them in an empty directory."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from support import xla_flags

REPOSITORY = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.M | re.S)
_SHELL_LINE = re.compile(r"^( *)!((?:.*\\\n)*.*)", re.M)


def blocks(text, language):
    """Returns the fenced blocks of a page in one language; "" means blocks without a language."""
    return [found[3] for found in _BLOCK.finditer(text) if found[2] == language]


def commands(script):
    """Returns the arguments of every `bert-jax` call in shell lines, with or without a prompt."""
    found = []
    lines = script.replace("\\\n", " ").splitlines()
    for number, line in enumerate(lines):
        if not re.search(r"(^|\| *|-- )bert-jax ", line.strip().removeprefix("$ ")):
            continue
        taken = None
        for word in _words(line.strip().removeprefix("$ "), lines[number + 1 :]):
            if word == "bert-jax":
                taken = []
                found.append(taken)
            elif set(word) <= set("|&;<>()"):
                taken = None
            elif taken is not None:
                taken.append(word)
    return found


def _words(line, following):
    """Returns the words of a shell line, including the following lines of an open quotation."""
    try:
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        return list(words)
    except ValueError:
        if not following:
            raise
        return _words(f"{line}\n{following[0]}", following[1:])


class Place:
    """A directory for running scripts, with `bert-jax` and `python` of this checkout on the path.

    Args:
        path: the directory.
        added: {command: additional arguments of `bert-jax`}, such as fewer steps.
    """

    def __init__(self, path, added=None):
        self.path = Path(path)
        bin_path = self.path.parent / f"{self.path.name}-bin"
        bin_path.mkdir()
        self.path.mkdir(exist_ok=True)
        python = shlex.quote(sys.executable)
        cases = "".join(
            f'  {name}) set -- "$@" {shlex.join(more)} ;;\n' for name, more in (added or {}).items()
        )
        scripts = {
            "bert-jax": f'case "$1" in\n{cases}esac\nexec {python} -m bert_jax "$@"\n',
            "python": f'exec {python} "$@"\n',
        }
        for name, script in scripts.items():
            (bin_path / name).write_text(f"#!/usr/bin/env bash\n{script}")
            (bin_path / name).chmod(0o755)
        self.environment = os.environ | {
            "PATH": f"{bin_path}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "XLA_FLAGS": xla_flags.with_devices(1),
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        }

    def run(self, arguments, script):
        """Runs a script as the standard input of a program such as `bash -e`; returns the output."""
        done = subprocess.run(
            arguments,
            input=script,
            cwd=self.path,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout


def cells(notebook):
    """Returns the code cells of a notebook file as (id, source)."""
    found = json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]
    return [(cell["id"], "".join(cell["source"])) for cell in found if cell["cell_type"] == "code"]


def as_python(source):
    """Converts a code cell to Python: a line `!command` calls `shell`, which fails if the command fails.

    As in IPython, {name} in the command is the value of a variable.
    """
    return _SHELL_LINE.sub(lambda line: f"{line[1]}shell(f{line[2]!r})", source)


# Notebook features in addition to Python: shell commands and pictures.
NOTEBOOK = """
import subprocess, sys, types

def shell(command):
    print("$", command, flush=True)
    subprocess.run(["bash", "-c", command], check=True)

class Image:
    def __init__(self, path):
        with open(path, "rb") as file:
            assert file.read(8) == b"\\x89PNG\\r\\n\\x1a\\n", path
        print("picture", path, flush=True)

sys.modules["IPython"] = types.ModuleType("IPython")
sys.modules["IPython.display"] = types.ModuleType("IPython.display")
sys.modules["IPython.display"].Image = Image
"""
