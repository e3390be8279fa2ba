"""Runs independent tasks and stores each result, so that a build can resume.

Tasks run in processes of this machine, or on Apache Beam (Dataflow, Spark, Flink, or its DirectRunner). With
Beam, each stage is one pipeline. The stages exchange data through files, so every worker must see the input
and the output directory under the same names: in an object store (gs://...), or on a shared disk.
"""

import concurrent.futures
import contextlib
import functools
import json
import multiprocessing
import os
import shlex
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Self

from bert_jax.errors import ClusterError, UserError, optional_imports
from bert_jax.io import atomic, files

with optional_imports("beam"):
    import apache_beam as beam
    from apache_beam.options import pipeline_options

Result = dict[str, Any]
Function = Callable[[Any], Result]
Todo = Sequence[tuple[int, str | None, Any]]  # (index, path of the result, task)


class LocalPool:
    """Runs tasks in `workers` processes, or in this process if `workers` is 1, and stores their results.

    The processes are spawned, so they inherit no locks and no threads. They end when this process ends.
    """

    def __init__(self, workers: int):
        self._executor = None
        if workers > 1:
            self._executor = concurrent.futures.ProcessPoolExecutor(
                workers, multiprocessing.get_context("spawn"), initializer=_start_worker
            )

    def run(
        self,
        function: Function,
        tasks: Sequence[tuple[str | None, Any]],
        on_done: Callable[[int, Result], None] = lambda index, result: None,
    ) -> list[Result]:
        """Calls `function(task)` for each (path of the result, task) without a stored result.

        Returns all results in order; `on_done` gets the index and the result of each. A module-level
        `function` writes its files atomically and returns a dictionary that JSON can represent. ClusterError
        if a worker died or a pipeline failed.
        """
        results: dict[int, Result] = {}
        todo = []
        for index, (path, task) in enumerate(tasks):
            result = _load_result(path) if path else None
            if result is None:
                todo.append((index, path, task))
            else:
                results[index] = result
                on_done(index, result)
        for index, result in self._run(function, todo):
            results[index] = result
            on_done(index, result)
        return [results[index] for index in range(len(tasks))]

    def _run(self, function: Function, todo: Todo) -> Iterator[tuple[int, Result]]:
        """Runs tasks and yields the index and the result of each when it is done."""
        if self._executor is None:
            for index, path, task in todo:
                yield index, _run_task(function, path, task)
            return
        futures = {
            self._executor.submit(_run_task, function, path, task): index for index, path, task in todo
        }
        try:
            for future in concurrent.futures.as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise ClusterError(
                "a worker process died, perhaps for lack of memory; run the same command again to resume"
            ) from error

    def close(self) -> None:
        """Kills the worker processes, even if they are running tasks."""
        if self._executor is None:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _run_task(function: Function, path: str | None, task: Any) -> Result:
    result = function(task)
    if path:
        atomic.write_file(path, json.dumps(result).encode())
    return result


def _load_result(path: str) -> Result | None:
    with contextlib.suppress(OSError, ValueError):
        return json.loads(files.read(path))
    return None


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


class BeamPool(LocalPool):
    """Runs tasks in Beam pipelines instead of processes of this machine.

    `scratch` is the prefix of the path of a temporary folder, which the workers must see.
    """

    def __init__(self, arguments: str, scratch: str):
        super().__init__(1)
        self._options = pipeline_options.PipelineOptions(shlex.split(arguments))
        self._scratch = f"{scratch}-{uuid.uuid4().hex}"

    def _run(self, function: Function, todo: Todo) -> Iterator[tuple[int, Result]]:
        """Runs tasks; yields the first result after the whole pipeline has finished."""
        if not todo:
            return
        stored = [(path or f"{self._scratch}/{index:06d}.json", task) for index, path, task in todo]
        if any(path is None for _, path, _ in todo):
            files.make_directory(self._scratch)
        self._run_pipeline(function, stored)
        for (index, *_), (path, _) in zip(todo, stored, strict=True):
            result = _load_result(path)
            if result is None:
                raise ClusterError(f"{path} was not made: do all Beam workers see --output?")
            yield index, result

    def _run_pipeline(self, function: Function, todo: Sequence[tuple[str, Any]]) -> None:
        pipeline = beam.Pipeline(options=self._options)
        _ = (
            pipeline
            | "Tasks" >> beam.Create(list(todo))
            | "Spread" >> beam.Reshuffle()
            | function.__name__ >> beam.MapTuple(functools.partial(_perform, function))
        )
        try:
            pipeline.run().wait_until_finish()
        except Exception as error:
            lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            raise ClusterError(
                f"the Beam pipeline of {function.__name__} failed ({lines[-1].strip()}); run the same "
                "command again to resume"
            ) from error
        messages = []
        for path, _ in todo:
            with contextlib.suppress(FileNotFoundError):
                messages.append(files.read(f"{path}.error").decode())
                # All messages are removed, so that the next run does not report them again.
                files.remove(f"{path}.error")
        if messages:
            raise UserError(messages[0])

    def close(self) -> None:
        """Removes the temporary results."""
        files.remove_tree(self._scratch)


def _perform(function: Function, path: str, task: Any) -> None:
    """Runs a task and writes the message of a UserError to a file.

    If the error were raised, Beam would retry the task and wrap the message in a long traceback.
    """
    try:
        _run_task(function, path, task)
    except UserError as error:
        atomic.write_file(f"{path}.error", str(error).encode())
