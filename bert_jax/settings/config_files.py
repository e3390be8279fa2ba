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
from bert_jax.io import files
from bert_jax.io.wording import closest


def example(command: str) -> str:
    """Returns the name of an example config for a command, usually a config of `pretrain`."""
    return "finetune/classification" if command == "finetune" else "pretrain/mini"


def folder() -> Path:
    """Returns the folder of the config files, in the installed package or in the clone of the repository."""
    package = Path(bert_jax.__file__).resolve().parent
    for candidate in (package / "configs", package.parent / "configs"):
        if (candidate / "pretrain").is_dir():
            return candidate
    raise UserError(f"{package} has no config files; install bert-jax again")


def names() -> list[str]:
    """Returns the sorted names of all config files, such as "pretrain/tiny"."""
    root = folder()
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.glob("*/*.py"))


def split(config: str) -> tuple[str, str | None]:
    """Splits NAME[:ARG] or PATH[:ARG] into the name and the argument or None; raises UserError for a URL."""
    if files.is_remote(config):
        raise UserError(
            f"{config} is a URL, and config files are executed: copy it to a local file you trust"
        )
    name, colon, argument = config.partition(":")
    return name, argument if colon else None


def find(name: str, group: str = "") -> Path:
    """Returns the path of a config file.

    Args:
        name: a name from `names()`, or the path of a file, without an argument.
        group: the folder whose names the message for an unknown name offers; "" for all.
    """
    if Path(name).is_file():
        return Path(name)
    known = names()
    if name in known:
        return folder() / f"{name}.py"
    # The user may have given a path in the repository (configs/pretrain/tiny.py), or only `tiny`.
    last = name.removesuffix(".py").rpartition("/")[2]
    grouped = [each for each in known if each.startswith(f"{group}/")] or known
    near = closest(last, [each.rpartition("/")[2] for each in grouped])
    meant = [each for each in grouped if each.rpartition("/")[2] == near]
    hint = f" did you mean {' or '.join(meant)}?" if meant else ""
    raise UserError(f"config {name!r}: there is no such file or config;{hint} `bert-jax configs` lists them")


def summary(name: str) -> str:
    """Returns the first line of a config file's docstring."""
    source = find(name).read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def load(name: str, command: str = "") -> ml_collections.ConfigDict:
    """Returns the config that --config=NAME[:ARG] or --config=PATH[:ARG] names.

    Args:
        name: the value of --config.
        command: the command that the config is for; "" for any.

    Raises:
        UserError: see `call`; also if the config is for the other kind of training.
    """
    group = example(command).partition("/")[0] if command else ""
    config = call(name, "config", "get_config", ml_collections.ConfigDict, group)
    # Every fine-tuning config has the field task, and every pre-training config has masking.
    kind = "finetune" if "task" in config else "pretrain" if "masking" in config else ""
    if command and kind != group and (kind or group == "finetune"):
        raise UserError(
            f"{name} is not a config for {command}, which takes those of {group}/, such as {example(command)}"
        )
    return config


def call(name: str, flag: str, function: str, kind: type[Any], group: str) -> Any:
    """Returns the result of a function in a config file.

    Args:
        name: the name or path of the file, optionally followed by `:ARG`.
        flag: the flag that gave the name, for messages.
        function: the name of the function.
        kind: the expected type.
        group: see `find`.

    Raises:
        UserError: there is no such file, it raised an error, or the function returned something else.
    """
    name, argument = split(name)
    path = find(name, group)
    try:
        get = runpy.run_path(str(path)).get(function)
        if get is None:
            raise UserError(f"{path}: the file of --{flag} has to define {function}()")
        found = get(*([] if argument is None else [argument]))
    except UserError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        text = str(error)
        if isinstance(error, SyntaxError) and error.filename == str(path):
            lines, text = [error.lineno], error.msg
        where = f"{path}, line {lines[-1]}" if lines else str(path)
        raise UserError(f"{where}: {type(error).__name__}: {text}") from error
    if not isinstance(found, kind):
        raise UserError(f"{path}: {function}() returned {type(found).__name__}, expected {kind.__name__}")
    return found
