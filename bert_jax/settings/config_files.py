"""Config files by name or path: `--config=pretrain/tiny` names a config file of bert_jax.

The config files are in `configs/` at the top of the repository. A wheel contains them in the package's
folder.
"""

from __future__ import annotations

import ast
import runpy
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_collections

import bert_jax
from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.io.wording import closest

# An example config for each command that has its own configs.
_EXAMPLES = {"pretrain": "pretrain/mini", "finetune": "finetune/classification"}


def example(command: str) -> str:
    """Returns the name of an example config for a command.

    Commands without their own configs, such as those that measure pre-training, take those of `pretrain`.
    """
    return _EXAMPLES.get(command, _EXAMPLES["pretrain"])


def folder() -> Path:
    """Returns the folder of the config files, in the installed package or in the clone of the repository.

    Raises:
        UserError: the folder does not exist.
    """
    package = Path(bert_jax.__file__).resolve().parent
    for candidate in (package / "configs", package.parent / "configs"):
        if (candidate / "pretrain").is_dir():
            return candidate
    raise UserError(
        f"the config files of bert-jax are neither in {package} nor beside it; install bert-jax again"
    )


def names() -> list[str]:
    """Returns the sorted names of all config files, such as "pretrain/tiny"."""
    root = folder()
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.glob("*/*.py"))


def split(given: str) -> tuple[str, str | None]:
    """Splits the value of --config into a name or path and the argument of get_config.

    Args:
        given: a name or path, optionally followed by `:ARG`.

    Returns:
        (name or path; argument or None).

    Raises:
        UserError: it is a URL. A config file is executed, so it has to be on this machine.
    """
    if files.is_remote(given):
        raise UserError(f"{given} is a URL, and config files are executed: copy it to a local file you trust")
    name, colon, argument = given.partition(":")
    return name, argument if colon else None


def find(given: str, group: str = "") -> Path:
    """Returns the path of a config file.

    Args:
        given: a name from `names()`, or the path of a file, without an argument.
        group: the beginning of the names that the message offers, "pretrain", "finetune" or "experiments";
            "" for all.

    Raises:
        UserError: there is no such config; the message has the closest name and how to list all.
    """
    path = Path(given)
    if path.is_file():
        return path
    known = names()
    if given in known:
        return folder() / f"{given}.py"
    # The user may have given a path in the repository (configs/pretrain/tiny.py) or omitted the command
    # (tiny).
    wanted = given.removesuffix(".py").removeprefix("configs/")
    fitting = [name for name in known if name.startswith(f"{group}/")] or known
    meant = _meant(wanted, fitting)
    hint = f" did you mean {' or '.join(meant)}?" if meant else ""
    raise UserError(
        f"config {given!r}: there is no such file, and no config of this name;{hint} `bert-jax configs` "
        "lists them"
    )


def _meant(wanted: str, known: Sequence[str]) -> list[str]:
    """Returns the known names that are closest to another one, or that end with its last part."""
    folder, _, last = wanted.rpartition("/")
    if folder and (near := closest(wanted, known)):
        return [near]
    near = closest(last, [name.rpartition("/")[2] for name in known])
    return [name for name in known if name.rpartition("/")[2] == near]


def summary(name: str) -> str:
    """Returns the first line of a config file's docstring."""
    source = find(name).read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def is_experiment(path: Path) -> bool:
    """Returns whether a file is one of an experiment of `sweep`, which defines get_experiment()."""
    try:
        statements = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError):  # `load` reports it with its line
        return False
    return any(isinstance(part, ast.FunctionDef) and part.name == "get_experiment" for part in statements)


def load(given: str, command: str = "") -> ml_collections.ConfigDict:
    """Returns the config that --config=NAME[:ARG] or --config=PATH[:ARG] names.

    Args:
        given: the value of --config.
        command: the command that the config is for; "" for any.

    Raises:
        UserError: there is no such config, its file raised an error or does not return a config, or the
            config is of the other kind of training.
    """
    group = _group(command) if command else ""
    config = call(given, "config", "get_config", ml_collections.ConfigDict, group)
    if command:
        _check_kind(config, given, command)
    return config


def call(given: str, flag: str, function: str, kind: type[Any], group: str) -> Any:
    """Returns what a function of a config file returns.

    Args:
        given: the name or path of the file, optionally followed by `:ARG`.
        flag: the flag that has it, for messages.
        function: the name of the function.
        kind: the expected type.
        group: see `find`.
    """
    name, argument = split(given)
    path = find(name, group)
    try:
        get = runpy.run_path(str(path)).get(function)
        if get is None:
            raise UserError(
                f"{path}: a{'n' * (flag[0] == 'e')} {flag} file defines {function}(), and this one does not; "
                "`bert-jax configs NAME --output=FILE` writes one to start from"
            )
        found = get(*([] if argument is None else [argument]))
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"--{flag}={given}: {error}") from error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        text = str(error)
        if isinstance(error, SyntaxError) and error.filename == str(path):
            lines, text = [error.lineno], error.msg
        where = f"{path}, line {lines[-1]}: " if lines else f"{path}: "
        raise UserError(f"{where}{type(error).__name__}: {text}") from error
    if not isinstance(found, kind):
        raise UserError(f"{path}: its {function}() returned {type(found).__name__}, expected {kind.__name__}")
    return found


def _group(command: str) -> str:
    """Returns the beginning of the names of the configs that a command takes."""
    return example(command).partition("/")[0]


def _check_kind(config: ml_collections.ConfigDict, given: str, command: str) -> None:
    """Raises UserError if a config is not of the kind of training that the command takes."""
    kind = _group(command)
    # Every fine-tuning config has the field task, every pre-training config has masking, and none has both.
    of = "finetune" if "task" in config else "pretrain" if "masking" in config else None
    if of not in (None, kind):
        raise UserError(
            f"{given} is a config of `bert-jax {of}`; {command} takes those of {kind}/, such as "
            f"{example(command)}"
        )
    if of is None and kind == "finetune":
        raise UserError(
            f"{given}: the config has no field task, which every fine-tuning has; start it from "
            "bert_jax.tasks.default_config()"
        )
