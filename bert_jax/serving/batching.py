"""Dynamic batching: items of concurrent requests are computed together."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any


class Overloaded(Exception):
    """More items are waiting than the server accepts."""


class Batcher:
    """Computes items in batches, in one thread, in their order of arrival.

    All items that are waiting when the thread becomes idle form the next batch, up to `most`. Single requests
    are therefore not delayed, and batches grow with the load.

    Args:
        compute: maps a list of items to a list of results; called in a thread.
        most: maximum number of items in a batch.
        limit: maximum number of waiting items.

    Attributes:
        batches: number of batches so far.
        items: number of items so far.
        compute_seconds: total time of computation so far.
    """

    def __init__(self, compute: Callable[[list[Any]], Sequence[Any]], most: int, limit: int):
        self._compute, self._most, self._limit = compute, most, limit
        self._waiting: collections.deque[tuple[Any, asyncio.Future]] = collections.deque()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "compute")
        self._arrived = asyncio.Event()
        self._task: asyncio.Task | None = None
        self.batches = self.items = 0
        self.compute_seconds = 0.0

    @property
    def waiting(self) -> int:
        """Returns the number of waiting items."""
        return len(self._waiting)

    async def submit(self, items: Sequence[Any]) -> list[Any]:
        """Returns the results of items. After a cancellation, items that are still waiting are dropped.

        Raises:
            Overloaded: too many items are waiting.
            Exception: any exception of `compute`.
        """
        if self.waiting + len(items) > self._limit:
            raise Overloaded
        futures = [asyncio.get_running_loop().create_future() for _ in items]
        self._waiting.extend(zip(items, futures, strict=True))
        self._arrived.set()
        try:
            return list(await asyncio.gather(*futures))
        finally:
            for future in futures:  # items that are still waiting are dropped, which frees their slots
                future.cancel()
            self._waiting = collections.deque(each for each in self._waiting if not each[1].done())

    async def start(self) -> None:
        """Starts the computation."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stops after the current batch."""
        if self._task:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await asyncio.to_thread(self._thread.shutdown)

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._most))]
                if (error := await self._answer(batch)) is not None:
                    for each in batch:  # an item that fails must not fail other requests
                        error = await self._answer([each]) if len(batch) > 1 else error
                        if error is not None and not each[1].done():
                            each[1].set_exception(RuntimeError(repr(error)) if _is_panic(error) else error)

    async def _answer(self, batch: Sequence[tuple[Any, asyncio.Future]]) -> BaseException | None:
        """Computes items and sets their results; returns the exception if the computation fails."""
        items, began = [item for item, _ in batch], time.monotonic()
        error, results = await asyncio.get_running_loop().run_in_executor(self._thread, self._try, items)
        if error is not None:
            return error
        self.compute_seconds += time.monotonic() - began
        self.batches, self.items = self.batches + 1, self.items + len(items)
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():  # a request may have been cancelled
                future.set_result(result)
        return None

    def _try(self, items: list[Any]) -> tuple[BaseException | None, Sequence[Any]]:
        try:
            results = self._compute(items)
            if len(results) != len(items):
                raise RuntimeError(f"{len(results)} results of {len(items)} items")
        except BaseException as error:
            return error, ()
        return None, results


def _is_panic(error: BaseException) -> bool:
    # A panic of a Rust library is not an Exception, and a future cannot hold StopIteration.
    return not isinstance(error, Exception) or isinstance(error, StopIteration)
