"""The HTTP server for JSON requests, with dynamic batching and endpoints for health and metrics."""

from __future__ import annotations

import asyncio
import base64
import collections
import contextlib
import dataclasses
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.convert.sentences import unit_length
from bert_jax.errors import UserError, optional_imports
from bert_jax.inference.embedding import Embedder
from bert_jax.inference.fill_mask import MaskFiller
from bert_jax.inference.predictor import Predictor
from bert_jax.tasks.table import Malformed, encodable

with optional_imports("serve"):
    import uvicorn
    from starlette import applications, exceptions, requests, responses, routing

_logger = logging.getLogger(__name__)
_MOST_WORDS = 50  # words for each mask
_OF_BATCHERS = {"items": "counter", "batches": "counter", "compute_seconds": "counter", "waiting": "gauge"}


@dataclasses.dataclass(frozen=True)
class Service:
    """A computation with a model. A request has the path /`name` and a JSON object with `fields`.

    `fields[0]` is a list of items, each of which `parse` maps to an item for `compute`. `answer` maps the
    results and the object of the request to the answer. `warm_up` compiles the programs for a batch size and
    returns their number. `width` is the size of the vectors of an embedding service.
    """

    name: str
    fields: tuple[str, ...]
    parse: Callable[[Any, Mapping[str, Any]], Any]
    compute: Callable[[list[Any]], Sequence[Any]]
    answer: Callable[[Sequence[Any], Mapping[str, Any]], dict[str, Any]]
    warm_up: Callable[[int, Callable[[int, int], None]], int]
    width: int = 0


def _text(item: Any) -> str:
    if not isinstance(item, str):
        raise Malformed(f"expected a text, found {type(item).__name__}")
    return encodable(item)


def _number(body: Mapping[str, Any], name: str, most: int, default: int) -> int:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise Malformed(f"{name}: expected 1 to {most}")
    return value


def embedding(embedder: Embedder) -> Service:
    """Returns the service /embed, which computes text embeddings."""

    def parse(item, body):
        return embedder.sentence.prompt(_text(body.get("prompt") or "")) + _text(item)

    def answer(results, body):
        return {"vectors": [_as_list(result.values) for result in results]}

    def warm_up(most, on_program):
        return embedder.engine.warm_up(most, lambda rows, size: {}, on_program)

    def compute(items):
        return list(embedder.stream(items))

    return Service("embed", ("texts", "prompt"), parse, compute, answer, warm_up, embedder.width)


def fill_mask(filler: MaskFiller) -> Service:
    """Returns the service /fill-mask, which predicts words for the masks of texts."""

    def parse(item, body):
        _number(body, "top", _MOST_WORDS, 5)
        return _text(item)

    def answer(results, body):
        def words(mask):
            top = mask[: body.get("top", 5)]
            return [{"token": one.token, "probability": round(one.probability, 6)} for one in top]

        return {"results": [[words(mask) for mask in masks] for masks in results]}

    def compute(items):
        return filler(items, _MOST_WORDS)

    return Service("fill-mask", ("texts", "top"), parse, compute, answer, filler.warm_up)


def prediction(predictor: Predictor) -> Service:
    """Returns the service /predict; items are the rows of `bert-jax predict --input=-`, or texts."""
    predictor.reader  # noqa: B018 (it raises, or warns, before the first request)

    def parse(item, body):
        return predictor.row_of(item if isinstance(item, dict) else _text(item))

    def answer(results, body):
        return {"predictions": results}

    def warm_up(most, on_program):  # the predictor has its own maximum batch size
        return predictor.warm_up(on_program)

    return Service("predict", ("rows",), parse, predictor.records_of, answer, warm_up)


class Batcher:
    """Computes items in batches, in one thread, in their order of arrival.

    All items that are waiting when the thread becomes idle form the next batch, up to `most`. Single requests
    are therefore not delayed, and batches grow with the load. At most `limit` items may wait.
    """

    def __init__(self, compute: Callable[[list[Any]], Sequence[Any]], most: int, limit: int):
        self._compute, self._most, self._limit = compute, most, limit
        self._waiting: collections.deque[tuple[Any, asyncio.Future]] = collections.deque()
        self._arrived = asyncio.Event()
        self.batches = self.items = 0
        self.compute_seconds = 0.0

    @property
    def waiting(self) -> int:
        """Returns the number of waiting items."""
        return len(self._waiting)

    async def submit(self, items: Sequence[Any]) -> list[Any]:
        """Returns the results of items, or raises what `compute` raises; HTTPException if too many wait."""
        if self.waiting + len(items) > self._limit:
            message = "too many requests are waiting; try again"
            raise exceptions.HTTPException(503, message, {"Retry-After": "1"})
        futures = [asyncio.get_running_loop().create_future() for _ in items]
        self._waiting.extend(zip(items, futures, strict=True))
        self._arrived.set()
        try:
            return list(await asyncio.gather(*futures))
        finally:
            for future in futures:  # items that are still waiting are dropped, which frees their slots
                future.cancel()
            self._waiting = collections.deque(each for each in self._waiting if not each[1].done())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Batcher]:
        """Computes items in this context, which ends after the current batch."""
        task = asyncio.create_task(self._run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                most = min(len(self._waiting), self._most)
                await self._answer([self._waiting.popleft() for _ in range(most)])

    async def _answer(self, batch: Sequence[tuple[Any, asyncio.Future]]) -> None:
        began = time.monotonic()
        results = await asyncio.to_thread(self._try, [item for item, _ in batch])
        if not isinstance(results, Exception):
            self.compute_seconds += time.monotonic() - began
            self.batches, self.items = self.batches + 1, self.items + len(batch)
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():  # a request may have been cancelled
                    future.set_result(result)
        elif len(batch) > 1:  # an item that fails must not fail other requests
            for each in batch:
                await self._answer([each])
        elif not batch[0][1].done():
            batch[0][1].set_exception(results)

    def _try(self, items: list[Any]) -> Sequence[Any] | Exception:
        try:
            results = self._compute(items)
            if len(results) != len(items):
                raise RuntimeError(f"{len(results)} results of {len(items)} items")
            return results
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                return error
            # A panic of a Rust library is not an Exception, and a future cannot hold StopIteration.
            return RuntimeError(repr(error))


class Server:
    """Answers HTTP requests with some services.

    Args:
        model: the name of the model in answers.
        most: maximum number of items in a batch.
        limit: maximum number of waiting items, and of items in a request.
        body_bytes: maximum size of a request in bytes.
    """

    def __init__(
        self,
        services: Sequence[Service],
        model: str,
        *,
        most: int = 32,
        limit: int = 1024,
        body_bytes: int = 1 << 20,
    ):
        self._model, self._most, self._limit, self._body_bytes = model, most, limit, body_bytes
        self._services = {service.name: service for service in services}
        self._batchers: dict[str, Batcher] = {}
        self._requests: collections.Counter[tuple[str, int]] = collections.Counter()
        self._seconds: collections.defaultdict[str, float] = collections.defaultdict(float)
        routes = [self._route("/health", self._health, "GET"), self._route("/metrics", self._metrics, "GET")]
        for service in services:
            routes.append(self._route(f"/{service.name}", self._answering(service)))
            if service.width:
                routes.append(self._route("/v1/embeddings", self._openai(service)))
                routes.append(self._route("/v1/models", self._models, "GET"))
        self.paths = [route.path for route in routes]
        handlers = {exceptions.HTTPException: self._http_error}
        self.app = applications.Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers)
        # A redirect would have the scheme and host of this server instead of the proxy in front of it.
        self.app.router.redirect_slashes = False

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for name, service in self._services.items():
                batcher = Batcher(service.compute, self._most, self._limit)
                self._batchers[name] = await stack.enter_async_context(batcher.running())
            yield

    def _route(self, path: str, answer: Callable[[Any], Awaitable[Any]], method: str = "POST") -> Any:
        async def handle(request: requests.Request) -> responses.Response:
            began = time.monotonic()
            try:
                # In a thread, writing a large answer does not block other requests.
                response = await asyncio.to_thread(_response, await answer(request))
            except exceptions.HTTPException as error:
                response = _error(error.detail, error.status_code, error.headers)
            except (Malformed, UserError) as error:
                response = _error(str(error), 400)
            except Exception:
                _logger.exception("%s failed", path)
                response = _error("the server failed; its log has the reason", 500)
            self._requests[path, response.status_code] += 1
            self._seconds[path] += time.monotonic() - began
            return response

        return routing.Route(path, handle, methods=[method])

    async def _http_error(self, request: Any, error: Any) -> Any:
        paths = ", ".join(self.paths)
        return _error(f"{error.detail}; the paths are {paths}", error.status_code, error.headers)

    async def _body(self, request: Any) -> dict[str, Any]:
        content = bytearray()
        async for chunk in request.stream():
            content += chunk
            if len(content) > self._body_bytes:
                raise exceptions.HTTPException(413, f"a request has at most {self._body_bytes:,} bytes")
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(body := json.loads(bytes(content)), dict):
                return body
        raise Malformed("expected a JSON object")

    async def _results(self, service: Service, field: str, items: Any, body: Mapping[str, Any]) -> list[Any]:
        if not isinstance(items, list) or not items:
            raise Malformed(f"expected a list of one or more items in {field!r}")
        if len(items) > self._limit:
            raise exceptions.HTTPException(413, f"a request has at most {self._limit:,} items")
        parsed = []
        for number, item in enumerate(items):
            try:
                parsed.append(service.parse(item, body))
            except Malformed as error:
                raise Malformed(f"{field}[{number}]: {error}") from None
        return await self._batchers[service.name].submit(parsed)

    def _answering(self, service: Service) -> Callable[[Any], Awaitable[Any]]:
        async def answer(request: Any) -> Any:
            body = await self._body(request)
            if unknown := [name for name in body if name not in service.fields]:
                expected = " or ".join(service.fields)
                raise Malformed(f"unknown field {unknown[0]!r:.60}: expected {expected}")
            field = service.fields[0]
            return service.answer(await self._results(service, field, body.get(field), body), body)

        return answer

    def _openai(self, service: Service) -> Callable[[Any], Awaitable[Any]]:
        """Returns the OpenAI-compatible embeddings endpoint, which ignores other fields that clients send."""

        async def answer(request: Any) -> Any:
            body = {name: value for name, value in (await self._body(request)).items() if value is not None}
            items, encoding = body.get("input"), body.get("encoding_format", "float")
            size = _number(body, "dimensions", service.width, service.width)
            if encoding not in ("float", "base64"):
                raise Malformed("encoding_format: expected float or base64")
            items = [items] if isinstance(items, str) else items
            results = await self._results(service, "input", items, {})
            data = []
            for index, result in enumerate(results):
                vector = result.values if size == service.width else unit_length(result.values[:size])
                values = base64.b64encode(vector.astype("<f4").tobytes()).decode()
                values = values if encoding == "base64" else _as_list(vector)
                data.append({"object": "embedding", "index": index, "embedding": values})
            tokens = sum(len(result.token_ids) for result in results)
            usage = {"prompt_tokens": tokens, "total_tokens": tokens}
            return {"object": "list", "data": data, "model": self._model, "usage": usage}

        return answer

    async def _models(self, request: Any) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": self._model, "object": "model", "owned_by": "bert_jax"}]}

    async def _health(self, request: Any) -> dict[str, Any]:
        return {"status": "ok", "model": self._model, "services": list(self._services)}

    async def _metrics(self, request: Any) -> str:
        """Returns the metrics in Prometheus' text format."""
        lines = ["# TYPE bert_jax_requests_total counter"]
        for (path, status), count in sorted(self._requests.items()):
            lines.append(f'bert_jax_requests_total{{path="{path}",status="{status}"}} {count}')
        lines.append("# TYPE bert_jax_request_seconds_total counter")
        for path, seconds in sorted(self._seconds.items()):
            lines.append(f'bert_jax_request_seconds_total{{path="{path}"}} {seconds:.6f}')
        for name, kind in _OF_BATCHERS.items():
            full = f"bert_jax_{name}" if kind == "gauge" else f"bert_jax_{name}_total"
            lines.append(f"# TYPE {full} {kind}")
            for service, batcher in self._batchers.items():
                lines.append(f'{full}{{service="{service}"}} {getattr(batcher, name)}')
        return "\n".join(lines) + "\n"


def _as_list(vector: np.ndarray) -> list[float]:
    return np.round(vector.astype(np.float64), 8).tolist()


def _response(answer: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> responses.Response:
    if isinstance(answer, str):
        return responses.PlainTextResponse(answer, status, headers)
    text = json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return responses.Response(text.encode("utf-8", "replace"), status, headers, "application/json")


def _error(message: str, status: int, headers: Mapping[str, str] | None = None) -> responses.Response:
    return _response({"error": {"message": message}}, status, headers)


class HttpServer(uvicorn.Server):
    """Runs a server with options of `uvicorn.Config`. After a signal, it exits normally."""

    def __init__(self, server: Server, log: Callable[[str], None] = print, **options: Any):
        super().__init__(uvicorn.Config(server.app, **options))
        self._log, self._paths = log, server.paths

    async def startup(self, sockets: Any = None) -> None:
        """Starts to listen, and logs the URL."""
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            host = f"[{host}]" if ":" in host else host  # as IPv6 is written in a URL
            self._log(f"ready: http://{host}:{port} answers {', '.join(self._paths)}")

    async def shutdown(self, sockets: Any = None) -> None:
        """Answers pending requests and closes all connections."""
        self._captured_signals.clear()  # uvicorn would raise these signals again
        await super().shutdown(sockets)
