"""`make lint` reads the files of the project, and not what its commands write."""

import fnmatch
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_BINARY = (".png", ".npy")  # which codespell leaves out by itself


def test_codespell_leaves_out_what_git_ignores_in_the_root():
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line[:1] == "/"]
    assert "demo" in ignored
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["codespell"]
    patterns = settings["skip"].split(",")

    def is_left_out(path):
        return any(fnmatch.fnmatch(name, pattern) for name in (path, Path(path).name) for pattern in patterns)

    assert [name for name in ignored if not (name.endswith(_BINARY) or is_left_out(f"./{name}"))] == []
    assert not is_left_out("./bert_jax/demo") and not is_left_out("./bert_jax/runs")
