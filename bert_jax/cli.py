"""The command line `bert-jax <command> [flags] [arguments]`: parses the flags and runs the command.

Exit codes:
  0    done
  1    failure that may pass: a crash, a full disk, a bucket that does not answer, a lost process; try again
  2    user error, explained in one line
  3    demo, data, pretrain, finetune: stopped by SIGTERM with all work saved; run the same command to resume
  130  stopped by Ctrl-C; pretrain and finetune save the step first, unless Ctrl-C is pressed again
  143  another command stopped by SIGTERM; no partial output is left
"""

from __future__ import annotations

import ast
import difflib
import errno
import importlib
import importlib.util
import inspect
import os
import re
import sys
import textwrap
import traceback
import types
from collections.abc import Sequence
from pathlib import Path

from absl import flags as absl_flags
from etils import epy

import bert_jax
from bert_jax import signals
from bert_jax.errors import ClusterError, Preempted, StorageError, Terminated, UserError, is_wrong_path
from bert_jax.parallel import distributed, host_tuning

with epy.lazy_imports():
    from bert_jax.settings import config_fields, config_files

# In the order of a typical workflow. A command's module is imported only when called: most of them need jax.
COMMANDS = (
    "doctor", "demo", "configs", "vocab", "data", "inspect", "pretrain", "finetune", "evaluate", "predict",
    "fill-mask", "embed", "convert", "estimate", "bench", "plot",
)  # fmt: skip

# Commands that run long enough to benefit from huge pages.
_ON_HUGE_PAGES = ("demo", "pretrain", "finetune", "evaluate", "predict", "embed", "bench")

# The messages of int() and float(), reworded for the user.
_PYTHONS_WORDS = {
    r"invalid literal for int\(\) with base \d+: .*": "expected a whole number",
    r"could not convert string to float: .*": "expected a number",
}

_HELP = ("--help", "-help", "-h", "-?")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: The arguments after the program's name; by default those of the process.

    Returns:
        The exit code.
    """
    if argv is not None:
        return _main(argv)
    argv = sys.argv[1:]
    try:
        if argv and argv[0] in _ON_HUGE_PAGES:
            signals.block()  # a signal that arrives now is handled by the program that replaces this one
            host_tuning.use_huge_pages()
        signals.install(argv[0] if argv else "")
        host_tuning.hide_gpu_plugins()
        host_tuning.hide_libtpu()
        code = _main(argv)
    except (Preempted, Terminated, KeyboardInterrupt) as stop:  # raised while an error was being reported
        code = _stopped(stop)
    except Exception:
        if not signals.received():
            raise
        code = _stopped(signals.stop_of(signals.received()))  # a library turned the signal into an error
    # A stop may leave threads in which JAX compiles or writes. The process does not wait for them.
    if code not in (0, 2) and "jax" in sys.modules and not distributed.is_one_of_several():
        signals.leave(code)
    return code


def _main(argv: Sequence[str]) -> int:
    try:
        code = _run([_with_home(arg) for arg in argv])
    except Exception:
        if distributed.is_one_of_several():
            traceback.print_exc()
            distributed.leave(1)
        raise
    distributed.leave(code)
    return code


def _run(argv: list[str]) -> int:
    try:
        return _dispatch(argv)
    except UserError as error:
        return _fail(error, 2)
    except (ClusterError, StorageError) as error:
        return _fail(error, 1)
    except (Preempted, Terminated, KeyboardInterrupt) as stop:
        return _stopped(stop)
    except BrokenPipeError:
        # The reader of the output has gone (`| head`). Otherwise Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        # An error without a file name, or about a missing file, is likely a bug, so its traceback is needed.
        if (error.filename is None and not _is_full(error)) or isinstance(error, FileNotFoundError):
            raise
        code = 2 if is_wrong_path(error) else 1
        return _fail(f"{error.filename or 'storage'}: {error.strerror or error}", code)
    except Exception as error:
        if _is_full(error):
            return _fail(error, 1)
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        what = str(error).splitlines()[0][:200]
        hint = "a smaller --config.batch_size, more --config.accumulate_steps, or --config.model.remat=full"
        return _fail(f"out of device memory ({what}); try {hint}", 1)


def _stopped(stop: BaseException) -> int:
    code = {Preempted: 3, Terminated: 143, KeyboardInterrupt: 130}[type(stop)]
    print(f"bert-jax: {str(stop) or 'interrupted'}", file=sys.stderr)
    return code


def _is_full(error: Exception) -> bool:
    """Returns whether a disk is full, also if a library has wrapped the operating system's error."""
    return any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT))


def _fail(error: object, code: int) -> int:
    if signals.received():
        return _stopped(signals.stop_of(signals.received()))
    print("bert-jax: error: " + " ".join(str(error).split()), file=sys.stderr)
    return code


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in (*_HELP, "help"):
        print(_overview())
        return 0 if argv else 2
    if argv[0] == "--version":
        print(f"bert-jax {bert_jax.__version__}")
        return 0
    name, *rest = argv
    if name not in commands():
        near = _did_you_mean(name, commands())
        raise UserError(f"{name!r} is not a command{near}; bert-jax --help lists them")
    module = importlib.import_module(_module_name(name))
    flags, args = parse_flags(module, name, rest)
    return (module.run(flags, args) or 0) if flags is not None else 0


def commands() -> list[str]:
    """Returns the commands that this installation has."""
    return [name for name in COMMANDS if importlib.util.find_spec(_module_name(name))]


def parse_flags(
    module: types.ModuleType, name: str, argv: list[str]
) -> tuple[absl_flags.FlagValues | None, list[str]]:
    """Parses the flags of a command.

    Returns:
        The flags and the remaining arguments; (None, []) after printing the command's help.

    Raises:
        UserError: A flag is unknown, a value has the wrong type, or a config cannot be read.
    """
    flags = absl_flags.FlagValues()
    flags.set_gnu_getopt(True)
    # ml_collections finds the overrides of a config (--config.a.b=V) in sys.argv.
    saved, sys.argv = sys.argv, ["bert-jax", *argv]
    try:
        module.define_flags(flags)
        if any(arg in _HELP for arg in _before_separator(argv)):
            print(_command_help(module, name, flags))
            return None, []
        config_paths = _config_paths(flags, argv)
        try:
            args = flags(["bert-jax", *argv])[1:]
        except absl_flags.UnrecognizedFlagError as error:
            raise UserError(_unknown_flag(name, flags, error.flagname)) from error
        except UserError:
            raise
        except Exception as error:  # a config file is Python and may raise anything
            given = _unknown_override(flags, argv, error)
            raise UserError(given or f"{_line_of_config(config_paths, error)}{_last_line(error)}") from error
        _check_configs(flags)
        return flags, args
    finally:
        sys.argv = saved


def _with_home(arg: str) -> str:
    """Expands ~ in --name=~/x, which bash leaves as it is, so that no folder named ~ is created."""
    name, _, value = arg.partition("=")
    return f"{name}={os.path.expanduser(value)}" if name.startswith("--") and value[:2] == "~/" else arg


def _before_separator(argv: list[str]) -> list[str]:
    return argv[: argv.index("--")] if "--" in argv else argv


def _config_flags(flags: absl_flags.FlagValues) -> list[str]:
    config_flags = sys.modules.get("ml_collections.config_flags.config_flags")
    return [name for name in flags if config_flags and config_flags.is_config_flag(flags[name])]


def _config_paths(flags: absl_flags.FlagValues, argv: list[str]) -> list[Path]:
    """Returns the files that `--config=CONFIG[:ARG]` and `--config CONFIG[:ARG]` refer to.

    Raises:
        UserError: A CONFIG is neither a name nor a file. ml_collections would report this only when the
            config is first used, with a page of attempts.
    """
    return [
        config_files.find(config_files.split(arg.partition("=")[2] or following)[0])
        for name in _config_flags(flags)
        for arg, following in zip(argv, [*argv[1:], ""], strict=False)
        if arg == f"--{name}" or arg.startswith(f"--{name}=")
    ]


def _line_of_config(paths: Sequence[Path], error: Exception) -> str:
    """Returns `FILE, line N: ERROR: ` if a config file raised the error, else ""."""
    files = {str(path.resolve()) for path in paths}
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame for frame in frames if str(Path(frame.filename).resolve()) in files]
    return f"{lines[-1].filename}, line {lines[-1].lineno}: {type(error).__name__}: " if lines else ""


def _unknown_flag(command: str, flags: absl_flags.FlagValues, unknown: str) -> str:
    """Returns the message for a flag that a command does not have."""
    near = ""
    for name in _config_flags(flags):
        config, example = flags[name].value, config_files.example(command)
        if config is None and unknown.startswith(f"{name}."):
            return f"which run? give --{name}=NAME, such as {example} (`bert-jax configs` lists them)"
        if config is None:
            config = flags[name].parser.parse(str(config_files.find(example)))
        fields = [f"{name}.{field}" for field, _ in config_files.fields(config)]
        near = config_fields.closest(unknown, [*flags, *fields])
    hint = f"; did you mean --{near}?" if near else _did_you_mean(unknown, list(flags), "--")
    return f"{command} has no flag --{unknown}{hint}; bert-jax {command} --help lists them"


def _unknown_override(flags: absl_flags.FlagValues, argv: list[str], error: Exception) -> str:
    """Returns the message for an override `--config.a.b=V` of a field that does not exist, or ""."""
    if not isinstance(error, KeyError | AttributeError):
        return ""
    for name in _config_flags(flags):
        for arg in argv:
            given, _, _ = arg.partition("=")
            parts = given.split(".")[1:] if given.startswith(f"--{name}.") else []
            if any(f"'{part}'" in str(error) or f'"{part}"' in str(error) for part in parts):
                hint = re.search(r"[Dd]id you mean \"?([\w.]+)", str(error))
                return f"{given}: the config has no such field; " + (
                    f"did you mean {hint[1]}?" if hint else _likely_field(flags[name], argv, parts)
                )
    return ""


def _likely_field(flag: absl_flags.Flag, argv: list[str], parts: Sequence[str]) -> str:
    """Returns a hint for an override of an unknown field: the closest field, or its possible siblings."""
    given = [value for arg, value in zip(argv, [*argv[1:], ""], strict=True) if arg == f"--{flag.name}"]
    given += [arg.partition("=")[2] for arg in argv if arg.startswith(f"--{flag.name}=")]
    config, within = flag.parser.parse(given[-1]), "it"
    if near := config_fields.closest(".".join(parts), [name for name, _ in config_files.fields(config)]):
        return f"did you mean {near}?"
    for part in parts[:-1]:
        if part not in config or not hasattr(config[part], "keys"):
            break
        config, within = config[part], part
    return f"{within} has {', '.join(sorted(config.keys()))}"


def _check_configs(flags: absl_flags.FlagValues) -> None:
    for name in _config_flags(flags):
        config = flags[name].value
        if config is not None:
            try:
                _ = config.keys
            except OSError as error:  # ml_collections raises the file's own error only at its first use
                raise UserError(f"--{name}={flags[name].config_filename}: {_last_line(error)}") from error


def _last_line(error: BaseException) -> str:
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else type(error).__name__
    for pythons, ours in _PYTHONS_WORDS.items():
        last = re.sub(pythons, ours, last)
    return last


def _did_you_mean(word: str, known: Sequence[str], prefix: str = "") -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def _module_name(command: str) -> str:
    return f"bert_jax.commands.{command.replace('-', '_')}"


def _overview() -> str:
    """Returns the help of `bert-jax`; the lines are read from the sources, so that jax is not imported."""
    lines = ["usage: bert-jax COMMAND [flags] [arguments]", ""]
    for name in commands():
        source = Path(importlib.util.find_spec(_module_name(name)).origin).read_text(encoding="utf-8")
        lines.append(f"  {name:<10} {(ast.get_docstring(ast.parse(source)) or '').partition(chr(10))[0]}")
    lines += ["", "bert-jax COMMAND --help shows the flags of a command and their defaults."]
    return "\n".join([*lines, "", *__doc__.rstrip().partition("\n\n")[2].splitlines()])


def _command_help(module: types.ModuleType, name: str, flags: absl_flags.FlagValues) -> str:
    lines = [f"usage: bert-jax {name} [flags] [arguments]", "", inspect.cleandoc(module.__doc__ or "")]
    lines += ["", "flags:"]
    for flag_name in flags:
        flag = flags[flag_name]
        if flag_name != flag.name:  # the short name of a flag is a second entry
            continue
        lines.append(f"  --[no]{flag_name}" if flag.boolean else f"  --{flag_name}")
        text = " ".join((flag.help or "").split()).replace(".; repeat", "; repeat")
        if flag.default is not None:
            text += " (default: " + str(flag.default_as_str).strip("'") + ")"
        lines.append(textwrap.fill(text, 100, initial_indent="      ", subsequent_indent="      "))
    return "\n".join(lines)
