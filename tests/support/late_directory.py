"""Runs `bert-jax` in a process that sees the files of a directory late, as some see those of a network drive.

    python late_directory.py DIRECTORY SECONDS ARGUMENTS...

For SECONDS after the first look, what is in DIRECTORY is missing for this process. What is new in a
directory that was there is seen at once, as no process has looked for its name.
"""

import os
import sys
import time
from pathlib import Path

from bert_jax import cli
from bert_jax.io import files


def hide(directory, seconds):
    """Lets `files` see nothing in a directory, except what is new there, for a time."""
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
