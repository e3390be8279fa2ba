"""A pipe with a path, as the shell makes it for `<(command)`."""

import contextlib
import os


@contextlib.contextmanager
def pipe_of(text):
    """Yields the path of a pipe that holds a short text, and whose writer has gone."""
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    yield f"/dev/fd/{reader}"
    os.close(reader)
