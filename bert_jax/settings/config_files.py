"""Config files by name or path: `--config=pretrain/tiny` names a config file of bert_jax.

The config files are in `configs/` at the top of the repository, and in the package's folder in a wheel.
"""

from __future__ import annotations

import ast
import runpy
import traceback
from pathlib import Path
from typing import Any

import ml_collections

import bert_jax
from bert_jax.errors import UserError


def example(command: str) -> str:
    """Returns the name of an example config for a command, usually a config of `pretrain`."""
    return "finetune/classification" if command == "finetune" else "pretrain/mini"


def folder() -> Path:
    """Returns the folder of the config files, in the installed package or in the clone of the repository."""
    package = Path(bert_jax.__file__).resolve().parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def names() -> list[str]:
    """Returns the sorted names of all config files, such as "pretrain/tiny"."""
    root = folder()
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.glob("*/*.py"))


def split(config: str) -> tuple[str, str | None]:
    """Splits NAME[:ARG] or PATH[:ARG] into the name and the argument or None."""
    name, colon, argument = config.partition(":")
    return name, argument if colon else None


def find(name: str) -> Path:
    """Returns the path of a config file, given by a name from `names()` or by its path, without argument."""
    if Path(name).is_file():
        return Path(name)
    if name in names():
        return folder() / f"{name}.py"
    raise UserError(f"{name!r} is neither a file nor a name that `bert-jax configs` lists")


def summary(name: str) -> str:
    """Returns the first line of a config file's docstring."""
    source = find(name).read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def load(name: str, command: str = "") -> ml_collections.ConfigDict:
    """Returns the config that --config=NAME[:ARG] or --config=PATH[:ARG] names.

    It raises UserError as `call` does, and if the config is not for the command, unless that is "".
    """
    group = example(command).partition("/")[0] if command else ""
    config = call(name, "get_config", ml_collections.ConfigDict)
    # Every fine-tuning config has the field task, and every pre-training config has masking.
    kind = "finetune" if "task" in config else "pretrain" if "masking" in config else ""
    if command and kind != group and (kind or group == "finetune"):
        raise UserError(f"{name} is not a config for {command}; expected one such as {example(command)}")
    return config


def call(name: str, function: str, kind: type[Any]) -> Any:
    """Returns the result of a function in a config file that NAME[:ARG] or PATH[:ARG] names.

    It raises UserError if there is no such file, if it raised an error, or if the result is not of this kind.
    """
    name, argument = split(name)
    path = find(name)
    try:
        found = runpy.run_path(str(path))[function](*([] if argument is None else [argument]))
    except UserError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f", line {frame.lineno}" for frame in frames if frame.filename == str(path)]
        raise UserError(f"{path}{lines[-1] if lines else ''}: {type(error).__name__}: {error}") from error
    if not isinstance(found, kind):
        raise UserError(f"{path}: {function}() returned {type(found).__name__}, expected {kind.__name__}")
    return found
