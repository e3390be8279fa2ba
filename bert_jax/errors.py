"""Errors that the command line turns into one line and an exit code."""

import errno

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


def install_hint(extra: str) -> str:
    """What a message says where a package is missing: the project is installed from a clone."""
    return f"install the extra `{extra}`: pip install '.[{extra}]' in the clone"
