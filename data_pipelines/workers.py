"""Independent tasks on local processes, in any order, each with a result that outlives an interruption."""

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
    """The number of workers: as requested, or one for each core that this process may use.

    Raises:
        UserError: negative.
    """
    if requested < 0:
        raise UserError(f"--workers={requested}: expected 0 (one for each core) or more")
    if requested:
        return requested
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """Runs tasks on `workers` processes, or in this one if `workers` is 1.

    Processes are spawned, so they inherit no locks and no threads; they import what the task's module
    imports. They end with this process, however it ends.
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
        """Calls `function(task)` for each task that has not been done before; returns all results in order.

        Args:
            function: a module's function that returns what JSON can hold, having made its files atomically.
            tasks: (path, task) pairs: where the task's result is kept (None: nowhere), and its argument.
            on_done: called with the task's place and result as each is done.

        Raises:
            ClusterError: a worker died. What the function raised.
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
        """Ends the processes, whatever they are doing."""
        if self._executor is None:
            return
        if hasattr(self._executor, "kill_workers"):  # Python 3.14
            self._executor.kill_workers()
            return
        # By SIGKILL, since files are written atomically and a worker ignores every other signal; before the
        # shutdown, since after a crash Python 3.13 joins all workers while it holds the lock of shutdown.
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
    """Signals that come to all processes at once are the parent's to handle; a worker without its parent
    ends.
    """
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
    """Calls `function(task)`, and keeps its result at `path` if there is one."""
    result = function(task) | {"peak_memory": peak_memory()}
    if path:
        atomic.write_file(path, json.dumps(result).encode())
    return result


def load_result(path: str) -> dict[str, Any] | None:
    """The result that is kept at a path, or None."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads(files.read(path))
    return None


def peak_memory() -> int:
    """The most bytes of memory that this process has held."""
    with contextlib.suppress(OSError, AttributeError), open("/proc/self/status") as file:
        # getrusage() would count what the parent held when it forked.
        if peak := re.search(r"VmHWM:\s+(\d+) kB", file.read()):
            return 1024 * int(peak[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
