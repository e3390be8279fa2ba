"""What has to be set before the process starts, for speed on the host."""

from __future__ import annotations

import os
import sys

# The host allocates and frees each step's activations anew. In 4 KiB pages their first touch takes a fifth of
# a CPU train step; with this glibc asks the kernel for huge pages. Read once, when a process starts.
_MALLOC = "glibc.malloc.hugetlb=1"


def use_huge_pages() -> None:
    """Starts this Python program again, in the same process, with huge pages for its heap. Linux only, and
    once.

    A GLIBC_TUNABLES in the environment, also an empty one, is left as it is and nothing is started again.
    """
    if sys.platform != "linux" or "GLIBC_TUNABLES" in os.environ:
        return
    os.environ["GLIBC_TUNABLES"] = _MALLOC
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
