"""Runs tasks in processes of this machine."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool

from bert_jax.errors import ClusterError, UserError
from data_pipelines.pools.base import Function, Pool, Result, Todo, run_task


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


class LocalPool(Pool):
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

    def _run(self, function: Function, todo: Todo) -> Iterator[tuple[int, Result]]:
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
