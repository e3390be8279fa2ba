"""Defines the errors that the command line reports as one line and an exit code."""

import contextlib
import errno
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epy

# Errors that mean the path is wrong; any other error is a failure of the storage.
_WRONG_PATH = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
_WRONG_PATH_NUMBERS = frozenset({errno.ENAMETOOLONG, errno.EROFS, errno.ELOOP, errno.EINVAL})

# Secrets: user and password of a URL, but not the container of an Azure URL; the values of a query, such as
# the signature of a signed URL; and the values of flags with the name of a secret.
_SECRETS = re.compile(
    r"""(?<=://)(?<!abfs://)(?<!abfss://)[^\s/?#'"]+(?=@)
    | (?<=[?&])([^\s=&?#'"]+=)[^\s&#'"]+
    | (?<![^\W_])((?:token|secret|password|passwd|credentials?|(?:api_?)?key)=)[^\s&#'"]+""",
    re.IGNORECASE | re.VERBOSE,
)


def hide_secrets(value: Any) -> Any:
    """Returns a text, or a mapping with texts, for publication: "..." replaces secrets."""
    if isinstance(value, Mapping):
        return {name: hide_secrets(each) for name, each in value.items()}
    return _SECRETS.sub(r"\1\2...", value) if isinstance(value, str) else value


class UserError(Exception):
    """A mistake of the user. The one-line message says what was found and what was expected. Exit code 2."""


class ClusterError(Exception):
    """Other processes of the run, or the network, are unreachable: one line, exit code 1, may be retried."""


class StorageError(Exception):
    """A disk or a bucket failed (full, broken, unreachable): one line, exit code 1, may be retried."""


class Preempted(BaseException):
    """The command was stopped with all work saved and resumes when it is run again. Exit code 3.

    Like KeyboardInterrupt, it does not derive from Exception: libraries must not handle it.
    """


class Terminated(BaseException):
    """SIGTERM stopped a command that cannot be resumed; no partial output is left. Exit code 143."""


def check_flag(name: str, value: Any, is_valid: Any, expected: str) -> None:
    """Raises a UserError that says what a flag is expected to be, unless its value is valid."""
    if not is_valid:
        value = str(value).lower() if isinstance(value, bool) else value
        raise UserError(f"--{name}={value}: expected {expected}")


def file_error(message: str, error: OSError) -> UserError | StorageError:
    """Returns a UserError with a message if the path is wrong, else a StorageError."""
    return UserError(message) if is_wrong_path(error) else StorageError(message)


@contextlib.contextmanager
def reading(what: object) -> Iterator[None]:
    """Converts an OSError of the block by `file_error`; `what` is the path that is read, or the setting."""
    try:
        yield
    except OSError as error:
        raise file_error(f"{what}: cannot be read ({error.strerror or error})", error) from error


def is_wrong_path(error: OSError) -> bool:
    """Returns whether the path is wrong: it is missing, forbidden, or of another kind."""
    return isinstance(error, _WRONG_PATH) or error.errno in _WRONG_PATH_NUMBERS


def is_full(error: Exception) -> bool:
    """Returns whether a disk is full, also if a library has wrapped the operating system's error."""
    return any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT))


@contextlib.contextmanager
def optional_imports(extra: str) -> Iterator[None]:
    """Imports modules of an extra of setup.py lazily; a missing one raises a UserError at its first use."""

    def on_error(error: Exception) -> None:
        if name := getattr(error, "name", None):
            check_installed(name.partition(".")[0], extra)
        # A package that is installed fails for another reason: etils raises its error.

    with epy.lazy_imports(error_callback=on_error):
        yield


def check_installed(package: str, extra: str, wanted_by: str = "this command") -> None:
    """Raises a UserError if a package of an extra is missing, before work is done that would be lost."""
    if not is_installed(package):
        hint = install_hint(extra)
        raise UserError(f"{wanted_by} needs the package {package}, which is not installed; {hint}")


def is_installed(package: str) -> bool:
    """Returns whether a package can be found by its import name, without importing it."""
    return importlib.util.find_spec(package) is not None


def install_hint(extra: str) -> str:
    """Returns the end of a message about a missing package: the command that installs an extra."""
    return f"install the extra `{extra}`: pip install '.[{extra}]' in the clone"
