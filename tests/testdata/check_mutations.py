"""Breaks the code in each way that mutations.json lists, one at a time, and runs the tests that have to fail.

    python tests/testdata/check_mutations.py [FIRST LAST]

Each mutation replaces the text `find`, which occurs once in `file`, by `replace`, in a copy of the project.
Exits with 1 if a mutation is not caught or no longer applies.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def outcome(mutation: dict[str, str]) -> str:
    """`caught`, or what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "site"))
        path = copy / mutation["file"]
        text = path.read_text("utf-8")
        if text.count(mutation["find"]) != 1:
            return f"its text occurs {text.count(mutation['find'])} times in {mutation['file']}"
        path.write_text(text.replace(mutation["find"], mutation["replace"]), "utf-8")
        argv = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", *mutation["tests"].split()]
        run = subprocess.run(
            argv, cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)}, capture_output=True, text=True
        )
        return {0: "survived", 1: "caught"}.get(run.returncode, f"pytest exits with {run.returncode}")


def main() -> int:
    mutations = json.loads((Path(__file__).parent / "mutations.json").read_text("utf-8"))
    first, last = (int(text) for text in sys.argv[1:3] or (1, len(mutations)))
    failed = 0
    for number, mutation in enumerate(mutations, 1):
        if first <= number <= last:
            result = outcome(mutation)
            failed += result != "caught"
            print(f"{number:3} {result:8} {mutation['what']}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
