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
    """Computes items in batches, in one thread, in the order in which they come.

    All items that are waiting when the thread becomes idle form the next batch, up to `most`. So a single
    request is not delayed, and batches grow with the load.

    Args:
        compute: maps a list of items to a list of results; called in a thread.
        most: maximum number of items of a batch.
        limit: maximum number of items that wait.

    Attributes:
        batches: number of batches so far.
        items: number of items so far.
        compute_seconds: seconds of computation so far.
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
        """Returns the number of items that wait."""
        return len(self._waiting)

    @property
    def running(self) -> bool:
        """True from `start` to `stop`, unless the task that computes batches failed."""
        return self._task is not None and not self._task.done()

    async def submit(self, items: Sequence[Any]) -> list[Any]:
        """Returns the results of some items. If it is cancelled, those that still wait are not computed.

        Raises:
            Overloaded: too many items are waiting.
            Exception: what the computation of a batch has raised.
        """
        if not self.running:
            raise RuntimeError("the batcher does not run")
        if self.waiting + len(items) > self._limit:
            raise Overloaded
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in items]
        self._waiting.extend(zip(items, futures, strict=True))
        self._arrived.set()
        try:
            return list(await asyncio.gather(*futures))
        except BaseException:
            for future in futures:  # those that still wait are not computed, and leave their places to others
                future.cancel()
            self._waiting = collections.deque(each for each in self._waiting if not each[1].done())
            raise

    async def start(self) -> None:
        """Starts to compute."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stops after the batch that is being computed."""
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
                if not await self._answer(batch) and len(batch) > 1:
                    for each in batch:  # one item must not fail the requests that came with it
                        await self._answer([each])

    async def _answer(self, batch: Sequence[tuple[Any, asyncio.Future]]) -> bool:
        """Computes items and sets their futures. Returns False on an error, which a single item gets."""
        batch = [each for each in batch if not each[1].done()]  # a request may have ended
        if not batch:
            return True
        items, futures = zip(*batch, strict=True)
        loop, began = asyncio.get_running_loop(), time.monotonic()
        try:
            results = await loop.run_in_executor(self._thread, self._computed, list(items))
        except Exception as error:
            if len(batch) == 1 and not futures[0].done():
                futures[0].set_exception(error)
            return False
        self.compute_seconds += time.monotonic() - began
        self.batches, self.items = self.batches + 1, self.items + len(items)
        for future, result in zip(futures, results, strict=True):
            if not future.done():
                future.set_result(result)
        return True

    def _computed(self, items: list[Any]) -> Sequence[Any]:
        try:
            return [result for _, result in zip(items, self._compute(items), strict=True)]
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                raise
            # A panic of a Rust library is not an Exception, and a future takes no StopIteration.
            raise RuntimeError(repr(error)) from error
