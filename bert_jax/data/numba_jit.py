"""Functions that numba compiles, once on each machine.

Importing numba takes half a second, so modules with such functions are imported where they are used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(signature: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compiles a function for arguments of these types, or loads what an earlier process compiled.

    That is kept in `__pycache__` beside the source, or else in the user's cache (NUMBA_CACHE_DIR names
    another); where neither can be written, each process compiles. What a compiled function calls is compiled
    with it, and must be in the same file: changes are told by that file alone.
    """

    def compile_function(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return numba.njit(signature, cache=True)(function)
        except Exception:  # no folder that can be written, a full disk, a torn file from earlier, ...
            return numba.njit(signature)(function)

    return compile_function
