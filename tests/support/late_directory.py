"""Runs `bert-jax` in a process that sees the files of a directory late, as on some network drives.

    python late_directory.py DIRECTORY SECONDS ARGUMENTS...

For SECONDS after the first access, existing files in DIRECTORY are missing for this process. A new file is
visible immediately, as no process has looked up its name.
"""

import os
import sys
import time
from pathlib import Path

from bert_jax import cli
from bert_jax.io import files


def hide(directory, seconds):
    """Hides the files of a directory from `files` for a time, except new ones."""
    directory = os.path.abspath(directory)
    old = {str(path) for path in [Path(directory), *Path(directory).rglob("*")] if path.exists()}
    began = []

    def is_hidden(path):
        path = os.path.abspath(path)
        if not (path in old if old else path.startswith(directory)):
            return False
        began.append(time.monotonic())
        return time.monotonic() - began[0] < seconds

    def late(function, hidden):
        return lambda path, *args: hidden(path) if is_hidden(path) else function(path, *args)

    def missing(path):
        raise FileNotFoundError(2, "No such file or directory", os.fspath(path))

    for name in ("exists", "exists_on_server", "is_directory", "is_file"):
        setattr(files, name, late(getattr(files, name), lambda path: False))
    for name in ("read", "open_read", "size"):
        setattr(files, name, late(getattr(files, name), missing))
    files.names = late(files.names, lambda path: [])


if __name__ == "__main__":
    hide(sys.argv[1], float(sys.argv[2]))
    sys.exit(cli.main(sys.argv[3:]))
