"""Functions that numba compiles once a machine. Importing numba takes half a second: import this where it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(signature: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compiles a function, or loads what an earlier process compiled: from `__pycache__` beside the source, or
    from the user's cache (`NUMBA_CACHE_DIR` names another). Where nothing can be kept, it is compiled anew."""

    def compile_function(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return numba.njit(signature, cache=True)(function)
        except (OSError, RuntimeError):  # a full disk; no folder that can be written
            return numba.njit(signature)(function)

    return compile_function
