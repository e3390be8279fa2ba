"""Profiler traces of some steps of a run, for xprof."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping

import jax

from bert_jax.errors import UserError
from bert_jax.io import atomic, files, scratch


def parse_steps(text: str) -> tuple[int, int] | None:
    """Parses `A:B` into (A, B), the first and the last step of a trace; "" into None.

    Raises:
        UserError: the text has another form.
    """
    if not text:
        return None
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last)):
        raise UserError(f"--profile_steps={text}: expected FIRST:LAST, such as 100:105")
    return int(first), int(last)


class Profiler:
    """Traces some steps on every process and writes the traces to `directory`.

    Args:
        directory: the log directory of xprof.
        steps: the first and the last step of the trace; None for no trace.
        log: called with a line when the trace has been written, or if none of its steps was trained.
    """

    def __init__(
        self, directory: os.PathLike | str, steps: tuple[int, int] | None, log: Callable[[str], None]
    ):
        self._directory, self._log = os.fspath(directory), log
        self._first, self._last = steps or (-1, -1)
        self._tracing = self._has_traced = False
        self._cleanup = contextlib.ExitStack()
        self._local = self._directory

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, *unused) -> None:
        self._stop()
        if self._last > 0 and not self._has_traced:
            self._log(
                f"warning: --profile_steps={self._first}:{self._last}: no trace, because step {self._first} "
                "is not among those that were trained now"
            )

    def before(self, step: int) -> None:
        """Starts the trace if it begins with this step. Call it before each step.

        A run that goes back to a checkpoint comes to this step again; the trace is of the first time.
        """
        if step == self._first and not self._has_traced:
            if files.is_remote(self._directory):  # xprof reads local files only.
                self._local = self._cleanup.enter_context(scratch.directory())
            jax.profiler.start_trace(self._local)
            self._tracing = self._has_traced = True

    def after(self, step: int, metrics: Mapping[str, jax.Array]) -> None:
        """Ends the trace if this is its last step, after waiting for it. Call it after each dispatch."""
        if self._tracing and step == self._last:
            jax.block_until_ready(metrics)
            self._stop()

    def _stop(self) -> None:
        if self._tracing:
            self._tracing = False
            with self._cleanup:
                jax.profiler.stop_trace()
                if self._local != self._directory:
                    atomic.copy_directory(self._local, self._directory)
            self._log(f"wrote a trace of steps {self._first} to {self._last}: xprof {self._directory}")
