"""Errors that the command line turns into one line and an exit code."""

import contextlib
import errno
import importlib.util
from collections.abc import Iterator

from etils import epy

# What the operating system says of a path that was given wrongly; anything else is the storage's own failure.
_WRONG_PATH = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
_WRONG_PATH_NUMBERS = frozenset({errno.ENAMETOOLONG, errno.EROFS, errno.ELOOP, errno.EINVAL})


class UserError(Exception):
    """A user's mistake: one line that says what was given, what was expected and what to try. Exit code 2."""


class ClusterError(Exception):
    """Other processes of the run, or the network, are not there: one line, exit code 1, to be tried again."""


class StorageError(Exception):
    """A disk or a bucket failed (full, broken, not reachable): one line, exit code 1, to be tried again."""


class Preempted(BaseException):
    """Stopped on purpose, with everything saved, to be started again with the same command. Exit code 3.

    As KeyboardInterrupt it is no Exception: it may come at any point, and no library should take it for an
    error of its own.
    """


class Terminated(BaseException):
    """Stopped by SIGTERM with nothing to go on from; nothing half is left. Exit code 143."""


def file_error(message: str, error: OSError) -> UserError | StorageError:
    """The error to raise from `error`: a UserError where the path is at fault, else a StorageError.

    Args:
        message: the line for the user; it says what was being done, and to which path.
        error: what the operating system, or a remote file system, raised.
    """
    return UserError(message) if is_wrong_path(error) else StorageError(message)


def is_wrong_path(error: OSError) -> bool:
    """Whether the path that was given is at fault: missing, forbidden, or of another kind."""
    return isinstance(error, _WRONG_PATH) or error.errno in _WRONG_PATH_NUMBERS


@contextlib.contextmanager
def optional_imports(extra: str) -> Iterator[None]:
    """Imports modules of an extra of setup.py at their first use, which raises a UserError if one is missing.

    Example:
        with optional_imports("metrics"):
            from sklearn import metrics
    """

    def refuse(error: Exception) -> None:
        name = getattr(error, "name", None)
        if not name or is_installed(name.partition(".")[0]):  # it is there, and fails for another reason
            raise error
        raise _missing(name.partition(".")[0], extra) from None

    with epy.lazy_imports(error_callback=refuse):
        yield


def check_installed(package: str, extra: str, wanted_by: str = "this command") -> None:
    """Raises a UserError if a package of an extra is missing, before any work that would be lost later.

    Args:
        package: the name that is imported.
        extra: the extra of setup.py that has it.
        wanted_by: what needs the package, such as a flag with its value.
    """
    if not is_installed(package):
        raise _missing(package, extra, wanted_by)


def is_installed(package: str) -> bool:
    """Returns whether a package can be found by the name that is imported; it is not imported."""
    return importlib.util.find_spec(package) is not None


def _missing(package: str, extra: str, wanted_by: str = "this command") -> UserError:
    hint = install_hint(extra)
    return UserError(f"{wanted_by} needs the package {package}, which is not installed; {hint}")


def install_hint(extra: str) -> str:
    """Returns the end of a message about a missing package. The project is installed from a clone."""
    return f"install the extra `{extra}`: pip install '.[{extra}]' in the clone"
