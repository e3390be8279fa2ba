"""Paths of users go through bert_jax.io, which takes URLs too and writes files that appear whole."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_MOVES = {
    "os": {"open", "rename", "replace"},
    "shutil": {"copy", "copy2", "copyfile", "copymode", "copytree", "move"},
    "tempfile": {"NamedTemporaryFile", "TemporaryDirectory", "mkdtemp", "mkstemp"},
}
_WRITES = {"write_bytes", "write_text"}  # of pathlib
_WRITERS = {"atomic", "workdir", "self"}  # the methods of a WorkDir write by atomic

# Why a module opens, writes or renames by itself.
ALLOWED = {
    "bert_jax/commands/predict.py": "standard input",
    "bert_jax/convert/formats/huggingface_export.py": "permissions of what safetensors wrote",
    "bert_jax/convert/model_card.py": "what of a path may be published",
    "bert_jax/data/cache.py": "the lock of the cache",
    "bert_jax/parallel/host.py": "a file of the kernel",
    "bert_jax/signals.py": "the null device",
    "bert_jax/training/metrics.py": "a log that is appended to",
    "bert_jax/workdir/lock.py": "the file that the kernel locks",
    "data_pipelines/output.py": "the file that the kernel locks",
    "data_pipelines/python_docs.py": "the sources of this Python",
}


def found(source: str) -> Iterator[str]:
    """Yields what a module does with files that bert_jax.io should do."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name("open"), args=[ast.Constant(str(path)), *_]):
                if not path.startswith("/proc/"):
                    yield f"line {node.lineno}: open; use files.open_read or atomic.replace_file"
            case ast.Call(func=ast.Name("open")):
                yield f"line {node.lineno}: open; use files.open_read or atomic.replace_file"
            case ast.Call(func=ast.Attribute(value=owner, attr=name)):
                receiver = getattr(owner, "id", "")
                if name in _MOVES.get(receiver, ()) or (name in _WRITES and receiver not in _WRITERS):
                    yield f"line {node.lineno}: {receiver}.{name}; use bert_jax.io.files, atomic or scratch"
            case ast.Compare(left=ast.Constant("://")):
                yield f'line {node.lineno}: "://"; use files.is_remote'
            case ast.Constant(str(text)) if text.startswith((".tmp", ".part")):
                yield f"line {node.lineno}: a temporary name; use bert_jax.io.atomic"


def modules() -> list[str]:
    paths = [path for folder in ("bert_jax", "data_pipelines") for path in (ROOT / folder).rglob("*.py")]
    return [name for path in paths if "/io/" not in (name := path.relative_to(ROOT).as_posix())]


@pytest.mark.long
def test_every_file_of_a_user_is_read_and_written_by_io():
    wrong = {}
    for name in modules():
        lines = list(found((ROOT / name).read_text(encoding="utf-8")))
        if lines and name not in ALLOWED:
            wrong[name] = lines
    assert not wrong
