"""Items of concurrent requests are computed together, in order, within limits."""

import asyncio
import threading

import pytest
from starlette.exceptions import HTTPException

from bert_jax.serving.server import Batcher


def run(compute, body, most=4, limit=100):
    """Runs a coroutine function with a batcher."""

    async def main():
        async with Batcher(compute, most, limit).running() as batcher:
            return await body(batcher)

    return asyncio.run(main())


def test_waiting_items_form_batches_and_each_request_gets_its_own_results():
    batches = []

    def compute(items):
        batches.append(items)
        return [2 * item for item in items]

    async def body(batcher):
        requests = [batcher.submit(range(10 * n, 10 * n + 3)) for n in range(5)]
        found = await asyncio.gather(*requests)
        return found, batcher.items, batcher.batches

    found, items, count = run(compute, body)
    assert found == [[2 * i for i in range(10 * n, 10 * n + 3)] for n in range(5)]
    assert [item for batch in batches for item in batch] == [10 * n + i for n in range(5) for i in range(3)]
    assert max(map(len, batches)) == 4 and (items, count) == (15, len(batches)) and count < 15


def test_more_items_than_may_wait_are_refused():
    release = threading.Event()

    def compute(items):
        release.wait(10)
        return items

    async def body(batcher):
        first = asyncio.create_task(batcher.submit([1, 2]))
        await asyncio.sleep(0.05)  # they are being computed
        second = asyncio.create_task(batcher.submit([3, 4, 5]))
        await asyncio.sleep(0.05)
        with pytest.raises(HTTPException):
            await batcher.submit([6])
        release.set()
        return await first, await second, batcher.waiting

    assert run(compute, body, limit=3) == ([1, 2], [3, 4, 5], 0)


class Panic(BaseException):
    """As the panic of a Rust library, which is no Exception."""


def panics():
    raise Panic


@pytest.mark.parametrize("fail", [list, lambda: [0] * 9, lambda: 1 / 0, lambda: next(iter(())), panics])
def test_an_error_ends_the_request_that_causes_it_only(fail):
    def compute(items):
        return fail() if 0 in items else items

    async def body(batcher):
        failed = await asyncio.wait_for(
            asyncio.gather(batcher.submit([0]), batcher.submit([1]), return_exceptions=True), 10
        )
        return failed, await asyncio.wait_for(batcher.submit([2]), 10)

    (failed, alone), later = run(compute, body)
    assert isinstance(failed, Exception) and (alone, later) == ([1], [2])
