"""Defines what every pool does: runs the tasks that have no stored result."""

from __future__ import annotations

import abc
import contextlib
import json
import re
import resource
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bert_jax.io import atomic, files

Result = dict[str, Any]
Function = Callable[[Any], Result]
Todo = Sequence[tuple[int, str | None, Any]]  # (index, path of the result, task)


class Pool(abc.ABC):
    """Runs tasks and stores their results. It is closed as a context manager."""

    def run(
        self,
        function: Function,
        tasks: Sequence[tuple[str | None, Any]],
        on_done: Callable[[int, Result], None] = lambda index, result: None,
    ) -> list[Result]:
        """Calls `function(task)` for each task without a stored result; returns all results in order.

        An exception that `function` raises is raised again here.

        Args:
            function: a module-level function that writes its files atomically and returns a dictionary that
                JSON can represent.
            tasks: (path, task) pairs: the file in which the result is stored (None for no file), and the
                argument of the function.
            on_done: called with the index and the result of each task when it is done.

        Raises:
            ClusterError: a worker died, or a pipeline failed.
        """
        results: dict[int, Result] = {}
        todo = []
        for index, (path, task) in enumerate(tasks):
            result = load_result(path) if path else None
            if result is None:
                todo.append((index, path, task))
            else:
                results[index] = result
                on_done(index, result)
        for index, result in self._run(function, todo):
            results[index] = result
            on_done(index, result)
        return [results[index] for index in range(len(tasks))]

    @abc.abstractmethod
    def _run(self, function: Function, todo: Todo) -> Iterator[tuple[int, Result]]:
        """Runs tasks and yields the index and the result of each when it is done."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the workers, even if they are running tasks, and removes temporary files."""

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run_task(function: Callable[[Any], dict[str, Any]], path: str | None, task: Any) -> dict[str, Any]:
    """Returns the result of `function(task)`, after storing it in the file `path` if that is not None."""
    result = function(task) | {"peak_memory": peak_memory()}
    if path:
        atomic.write_file(path, json.dumps(result).encode())
    return result


def load_result(path: str) -> dict[str, Any] | None:
    """Returns the result stored in a file, or None if there is none."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads(files.read(path))
    return None


def peak_memory() -> int:
    """Returns the peak memory of this process, in bytes."""
    with contextlib.suppress(OSError, AttributeError), open("/proc/self/status") as file:
        # getrusage() would include the memory of the parent at the time of the fork.
        if peak := re.search(r"VmHWM:\s+(\d+) kB", file.read()):
            return 1024 * int(peak[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
