"""The command line `bert-jax <command> [flags] [arguments]`: parses the flags and runs the command.

Exit codes:
  0    done
  1    failure that may pass: a crash, a full disk, a bucket that does not answer, a lost process; try again
  2    user error, explained in one line
  3    demo, data, pretrain, finetune, sweep: stopped by SIGTERM with all work saved; the same command resumes
  130  stopped by Ctrl-C; pretrain and finetune save the step first, unless Ctrl-C is pressed again
  134  JAX aborted this process, as another one of its run was lost; the same command resumes
  143  another command stopped by SIGTERM; no partial output is left
"""

import ast
import importlib
import inspect
import io
import itertools
import os
import sys
import textwrap
import traceback
import types
from collections.abc import Sequence
from pathlib import Path

from absl import flags as absl_flags

import bert_jax
from bert_jax import signals
from bert_jax.errors import (
    ClusterError,
    Preempted,
    StorageError,
    Terminated,
    UserError,
    hide_secrets,
    is_full,
    is_wrong_path,
)
from bert_jax.parallel import distributed, host
from bert_jax.settings import config_flag
from bert_jax.settings.flags import Define

# In the order of a typical workflow. A command's module is imported only when called: most of them need jax.
COMMANDS = (
    "doctor", "demo", "configs", "vocab", "data", "inspect", "pretrain", "finetune", "sweep", "evaluate",
    "predict", "fill-mask", "embed", "search", "serve", "convert", "estimate", "bench", "plot",
)  # fmt: skip

_TRAINING = ("demo", "pretrain", "finetune", "sweep", "bench")

_HELP = ("--help", "-help", "-h", "-?")
_OUT_OF_MEMORY = "out of device memory ({}); --config.accumulate_steps=0 divides batches until they fit"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command of these arguments, or of this process, and returns the exit code."""
    if argv is not None:
        return _main(argv)
    argv = sys.argv[1:]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for characters that the terminal lacks
    is_training = bool(argv) and argv[0] in _TRAINING and not set(argv) & set(_HELP)
    try:
        if is_training:
            signals.block()  # a signal that arrives now is handled by the program that replaces this one
            host.use_huge_pages()
        signals.install(argv[0] if argv else "")
        if is_training:
            host.use_one_heap()
        host.ignore_missing_accelerators()
        code = _main(argv)
    except (Preempted, Terminated, KeyboardInterrupt) as stop:  # raised while an error was being reported
        code = _stopped(stop)
    except Exception:
        if not (number := signals.received()):
            raise
        code = _stopped(signals.stop_of(number))  # a library turned the signal into an error
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
            distributed.exit_process(1)
        raise
    distributed.exit_process(code)
    return code


def _run(argv: list[str]) -> int:
    try:
        code = _dispatch(argv)
        sys.stdout.flush()  # here, so that its error is reported
        return code
    except UserError as error:
        return _fail(error, 2)
    except (ClusterError, StorageError) as error:
        return _fail(error, 1)
    except (Preempted, Terminated, KeyboardInterrupt) as stop:
        return _stopped(stop)
    except BrokenPipeError:
        # The reader of the output has ended (`| head`). Otherwise Python would report it again at exit.
        signals.discard_output()
        return 1
    except OSError as error:
        # An error without a file name is likely a bug, so its traceback is needed.
        if error.filename is None and not is_full(error):
            raise
        code = 2 if is_wrong_path(error) else 1
        place = error.filename or ("the output" if signals.discard_full_output() else "storage")
        return _fail(f"{place}: {error.strerror or error}", code)
    except Exception as error:
        if is_full(error):
            return _fail(error, 1)
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return _fail(_OUT_OF_MEMORY.format(str(error).splitlines()[0][:200]), 2)


def _stopped(stop: Preempted | Terminated | KeyboardInterrupt) -> int:
    print(f"bert-jax: {str(stop) or 'interrupted'}", file=sys.stderr)
    return signals.EXIT_CODES[type(stop)]


def _fail(error: object, code: int) -> int:
    if number := signals.received():
        return _stopped(signals.stop_of(number))
    print("bert-jax: error: " + hide_secrets(" ".join(str(error).split())), file=sys.stderr)
    return code


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in (*_HELP, "help"):
        print(_overview())
        return 0 if argv else 2
    if argv[0] == "--version":
        print(f"bert-jax {bert_jax.__version__}")
        return 0
    name, *rest = argv
    if name not in COMMANDS:
        raise UserError(f"{name!r} is not a command; bert-jax --help lists the commands")
    flags, args = parse_flags(name, rest)
    try:
        return (module_of(name).run(flags, args) or 0) if flags is not None else 0
    except (AssertionError, RuntimeError):
        if "jax" in sys.modules:
            host.check_devices()  # raises an error of one line if this is the reason
        raise


def module_of(command: str) -> types.ModuleType:
    """Returns the module of a command."""
    return importlib.import_module(f"bert_jax.commands.{command.replace('-', '_')}")


def parse_flags(name: str, argv: list[str]) -> tuple[absl_flags.FlagValues | None, list[str]]:
    """Returns the flags of a command and the remaining arguments; (None, []) after printing its help."""
    if any(arg in _HELP for arg in itertools.takewhile("--".__ne__, argv)):
        print(help_of(name))
        return None, []
    flags, module = absl_flags.FlagValues(), module_of(name)
    flags.set_gnu_getopt(True)
    define = Define(flags)
    module.define_flags(define)
    try:
        args = config_flag.parse(flags, argv) if "config" in flags else flags(["bert-jax", *argv])[1:]
    except absl_flags.Error as error:
        raise UserError(str(error).removeprefix("flag ")) from error
    for flag, expected in define.required.items():
        if not flags[flag].value:
            raise UserError(f"{name} needs --{flag}={expected}")
    if args and not hasattr(module, "ARGUMENTS"):
        raise UserError(f"{args[0]!r} is not a flag of {name} (see --help); quote patterns such as 'DIR/*'")
    return flags, args


def _with_home(arg: str) -> str:
    """Expands ~ in --name=~/x, which bash leaves as it is, so that no folder named ~ is created."""
    name, _, value = arg.partition("=")
    return f"{name}={os.path.expanduser(value)}" if name.startswith("--") and value[:2] == "~/" else arg


def _overview() -> str:
    """Returns the help of `bert-jax`; the lines are read from the sources, so that jax is not imported."""
    lines = ["usage: bert-jax COMMAND [flags] [arguments]", ""]
    for name in COMMANDS:
        source = (Path(__file__).parent / "commands" / f"{name.replace('-', '_')}.py").read_text("utf-8")
        lines.append(f"  {name:<10} {(ast.get_docstring(ast.parse(source)) or '').partition(chr(10))[0]}")
    lines += ["", "bert-jax COMMAND --help shows the flags of a command and their defaults."]
    return "\n".join([*lines, "", *__doc__.rstrip().partition("\n\n")[2].splitlines()])


def help_of(name: str) -> str:
    """Returns the text of `bert-jax COMMAND --help`: usage, description, and every flag with its default."""
    module, define = module_of(name), Define(absl_flags.FlagValues())
    module.define_flags(define)
    usage = f"usage: bert-jax {name} [flags] {getattr(module, 'ARGUMENTS', '')}".rstrip()
    lines = [usage, "", inspect.cleandoc(module.__doc__ or ""), "", "flags:"]
    for flag_name in define.values:
        flag = define.values[flag_name]
        lines.append(f"  --[no]{flag_name}" if flag.boolean else f"  --{flag_name}")
        text = " ".join((flag.help or "").split()).partition("; repeat this option")[0]
        if flag_name in define.required:  # other flags may replace --config
            text = ("Required without --train. " if getattr(flag, "short", None) else "Required. ") + text
        if flag.default not in (None, "", []):
            text += " (default: " + str(flag.default_as_str).strip("'") + ")"
        lines.append(textwrap.fill(text, 100, initial_indent="      ", subsequent_indent="      "))
    return "\n".join(lines)
