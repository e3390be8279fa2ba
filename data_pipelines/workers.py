"""Runs independent tasks in local processes and stores each result, so that a build can be resumed."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import re
import resource
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from bert_jax.errors import ClusterError, UserError
from bert_jax.io import atomic, files


def count(requested: int) -> int:
    """Returns the number of workers: `requested`, or if that is 0, one per core that this process may use.

    Raises:
        UserError: `requested` is negative.
    """
    if requested < 0:
        raise UserError(f"--workers={requested}: expected 0 (one for each core) or more")
    if requested:
        return requested
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """Runs tasks in `workers` processes, or in this process if `workers` is 1.

    The processes are spawned, so they inherit no locks and no threads. They end when this process ends,
    however it ends.
    """

    def __init__(self, workers: int):
        self._executor = None
        if workers > 1:
            self._executor = concurrent.futures.ProcessPoolExecutor(
                workers, multiprocessing.get_context("spawn"), initializer=_start_worker
            )

    def run(
        self,
        function: Callable[[Any], dict[str, Any]],
        tasks: Sequence[tuple[str | None, Any]],
        on_done: Callable[[int, dict[str, Any]], None] = lambda index, result: None,
    ) -> list[dict[str, Any]]:
        """Calls `function(task)` for each task without a stored result; returns all results in order.

        An exception that `function` raises is raised again here.

        Args:
            function: a module-level function that writes its files atomically and returns a dictionary that
                JSON can represent.
            tasks: (path, task) pairs: the file in which the result is stored (None for no file), and the
                argument of the function.
            on_done: called with the index and the result of each task when it is done.

        Raises:
            ClusterError: a worker process died.
        """
        results: dict[int, dict[str, Any]] = {}
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

    def _run(self, function, todo) -> Iterator[tuple[int, dict[str, Any]]]:
        if self._executor is None:
            for index, path, task in todo:
                yield index, run_task(function, path, task)
            return
        futures = {self._executor.submit(run_task, function, path, task): index for index, path, task in todo}
        try:
            for future in concurrent.futures.as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise ClusterError(
                "a worker process died, perhaps for lack of memory; run the same command again, which "
                "continues from what is done, with fewer --workers if it was the memory"
            ) from error

    def close(self) -> None:
        """Kills the worker processes, even if they are running tasks."""
        if self._executor is None:
            return
        if hasattr(self._executor, "kill_workers"):  # Python 3.14
            self._executor.kill_workers()
            return
        # SIGKILL is safe because files are written atomically, and necessary because workers ignore SIGINT
        # and SIGTERM. It precedes the shutdown because after a crash, Python 3.13 joins all workers while it
        # holds the shutdown lock.
        processes = list((self._executor._processes or {}).values())
        for process in processes:
            process.kill()
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.join()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _start_worker() -> None:
    """Makes a worker ignore the signals that its parent handles, and exit when the parent ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


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
