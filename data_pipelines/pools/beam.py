"""Runs the tasks of `bert-jax data` on Apache Beam: Dataflow, Spark, Flink, or the local DirectRunner.

Each stage is one pipeline: its tasks are created, distributed to the workers, and run by the same functions
as in local processes. The stages exchange data through files, so every worker must see the input and the
output directory under the same names: in an object store (gs://...), or on a shared disk.
"""

from __future__ import annotations

import contextlib
import functools
import shlex
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from bert_jax.errors import UserError, check_installed, optional_imports
from bert_jax.io import atomic, files
from data_pipelines.pools.base import Function, Pool, Result, Todo, load_result, run_task

with optional_imports("beam"):
    import apache_beam as beam
    from apache_beam.options import pipeline_options


class BeamPool(Pool):
    """Runs tasks in Beam pipelines.

    Args:
        arguments: the arguments of the pipelines as one string: `--runner=DataflowRunner --project=...`.
        scratch: the prefix of the path of a temporary folder for results that are not kept; the workers must
            see it.

    Raises:
        UserError: Beam is not installed, or rejects an argument.
    """

    def __init__(self, arguments: str, scratch: str):
        check_installed("apache_beam", "beam", "--runner=beam")
        try:
            self._options = pipeline_options.PipelineOptions(shlex.split(arguments))
        except (SystemExit, ValueError) as error:
            raise UserError(f"--beam_args={arguments!r}: Beam does not take that ({error})") from None
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
            result = load_result(path)
            if result is None:
                raise UserError(f"{path} was not made: do the Beam workers see the --output of this machine?")
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
            raise UserError(
                f"the Beam pipeline of {function.__name__} failed ({lines[-1].strip()}); the same command "
                "goes on from what is done"
            ) from error
        messages = []
        for path, _ in todo:
            with contextlib.suppress(FileNotFoundError):
                messages.append(files.read(f"{path}.error").decode())
                # All of them are removed: the next run would report one that is left as its own error.
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
        run_task(function, path, task)
    except UserError as error:
        atomic.write_file(f"{path}.error", str(error).encode())
