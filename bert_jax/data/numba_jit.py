"""Functions that numba compiles when they are first called, once on each machine."""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable
from typing import Any

from bert_jax.errors import optional_imports

with optional_imports("corpus"):
    import numba
    from numba import extending

_lock = threading.Lock()
_helpers: dict[str, list[Callable[..., Any]]] = collections.defaultdict(list)  # by the name of their module


def helper(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lets the compiled functions of the same module call a function, which is compiled with them."""
    _helpers[function.__module__].append(function)
    return function


def compiled(signature: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compiles a function for arguments of these types, or loads what an earlier process compiled.

    The result is kept in `__pycache__` beside the source, or else in the user's cache (NUMBA_CACHE_DIR names
    another); where neither can be written, each process compiles. The functions that a compiled function
    calls are compiled with it. They must be in the same file, since numba compares that file alone with what
    it has kept.

    Args:
        signature: the types of the result and of the arguments, as numba writes them.

    Raises:
        UserError: when the function is called and numba is not installed.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.cache
        def compile_function() -> Callable[..., Any]:
            with _lock:
                for callee in _helpers.pop(function.__module__, ()):
                    extending.register_jitable(callee)
            try:
                return numba.njit(signature, cache=True)(function)
            except Exception:  # no folder that can be written, a full disk, a torn file from earlier, ...
                return numba.njit(signature)(function)

        @functools.wraps(function)
        def call(*args: Any) -> Any:
            return compile_function()(*args)

        call.compile = compile_function  # type: ignore[attr-defined]
        return call

    return decorate
