"""Decorators for functions that numba compiles at their first call, once per machine."""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable
from typing import Any

from bert_jax.errors import optional_imports

with optional_imports("google"):
    import numba
    from numba import extending

_lock = threading.Lock()
_helpers: dict[str, list[Callable[..., Any]]] = collections.defaultdict(list)  # by module name


def helper(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function that compiled functions of the same module call; it is compiled with them."""
    _helpers[function.__module__].append(function)
    return function


def compiled(signature: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator that compiles a function for these types at its first call.

    The compiled code is cached in `__pycache__` beside the source, or else in the user's cache directory
    (NUMBA_CACHE_DIR names another one), and later processes load it from there. If neither is writable, each
    process compiles. Functions that a compiled function calls are compiled with it. They must be in the same
    file, because numba checks only that file for changes since it was compiled.

    Args:
        signature: the types of the result and the arguments, in numba's notation.

    Raises:
        UserError: the function is called and numba is not installed.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.cache
        def compile_function() -> Callable[..., Any]:
            with _lock:
                for callee in _helpers.pop(function.__module__, ()):
                    extending.register_jitable(callee)
            try:
                return numba.njit(signature, cache=True)(function)
            except Exception:  # no writable folder, a full disk, a damaged cache file, ...
                return numba.njit(signature)(function)

        @functools.wraps(function)
        def call(*args: Any) -> Any:
            return compile_function()(*args)

        call.compile = compile_function  # type: ignore[attr-defined]
        return call

    return decorate
