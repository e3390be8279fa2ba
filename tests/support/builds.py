"""What tests of `bert-jax data` share: the files of a directory, and interruptions."""

import contextlib
import os
from pathlib import Path

import pytest


def contents(directory):
    """{relative path: bytes} of all files under a directory."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in Path(directory).rglob("*") if p.is_file()}


@contextlib.contextmanager
def interrupted(moment, match=None):
    """Interrupts the block, as Ctrl-C would, at the n-th file that is about to be renamed to its name."""
    replace, count = os.replace, iter(range(10**6))

    def stop(*args):
        if next(count) == moment:
            raise KeyboardInterrupt
        replace(*args)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt, match=match):
        patch.setattr(os, "replace", stop)
        yield
