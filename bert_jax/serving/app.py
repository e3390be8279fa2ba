"""The HTTP interface: JSON in, JSON out, with health and metrics."""

from __future__ import annotations

import asyncio
import base64
import bisect
import collections
import contextlib
import itertools
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.convert.sentences import unit_length
from bert_jax.errors import UserError, optional_imports
from bert_jax.io.wording import alternatives, counted
from bert_jax.serving.batching import Batcher, Overloaded
from bert_jax.serving.services import Embedding, FillMask, Service, as_list
from bert_jax.tasks.table import Malformed

with optional_imports("serve"):
    from starlette import applications, exceptions, requests, responses, routing

_logger = logging.getLogger(__name__)

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
_RETRY_SECONDS = "1"
_STALLED_SECONDS = 10  # without a byte of a request; shorter than the time that a stop waits for requests
_HUNG_UP = 499  # as nginx counts such requests; nobody gets the answer
_OF_BATCHERS = {"items": "counter", "batches": "counter", "compute_seconds": "counter", "waiting": "gauge"}


class _Refused(Exception):
    """A request that is not answered: the status code, one line, and headers of the answer."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers


class _Histogram:
    """Counts times by `_BUCKETS`."""

    def __init__(self):
        self._counts, self._total = [0] * (len(_BUCKETS) + 1), 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect.bisect_left(_BUCKETS, seconds)] += 1
        self._total += seconds

    def lines(self, name: str, label: str) -> list[str]:
        """Returns the histogram in the text format of Prometheus."""
        sums = list(itertools.accumulate(self._counts))
        bounds = [*(f"{bound:g}" for bound in _BUCKETS), "+Inf"]
        found = [f'{name}_bucket{{{label},le="{bound}"}} {n}' for bound, n in zip(bounds, sums, strict=True)]
        return [*found, f"{name}_sum{{{label}}} {self._total:.6f}", f"{name}_count{{{label}}} {sums[-1]}"]


class Server:
    """Answers requests with some services.

    Args:
        services: the services.
        model: the name of the model, for answers.
        most: maximum number of items of a batch.
        limit: maximum number of items that wait, and of a request.
        body_bytes: maximum size of a request.

    Attributes:
        app: the ASGI application.
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
        self._answers: collections.Counter[tuple[str, int]] = collections.Counter()
        self._times: dict[str, _Histogram] = {}
        routes = [self._route("/health", self._health, "GET"), self._route("/metrics", self._metrics, "GET")]
        answers = {"embed": self._embed, "fill-mask": self._fill_mask, "predict": self._predict}
        routes += [self._route(f"/{name}", answers[name]) for name in self._services]
        if "embed" in self._services:
            routes.append(self._route("/v1/embeddings", self._openai))
            routes.append(self._route("/v1/models", self._models, "GET"))
        self.paths = [route.path for route in routes]
        handlers = {exceptions.HTTPException: self._http_error}
        self.app = applications.Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers)
        # A redirection has the scheme and host of this server, not those of a proxy in front of it.
        self.app.router.redirect_slashes = False

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        self._batchers = {
            name: Batcher(service.compute, self._most, self._limit)
            for name, service in self._services.items()
        }
        for batcher in self._batchers.values():
            await batcher.start()
        try:
            yield
        finally:
            for batcher in self._batchers.values():
                await batcher.stop()

    def _route(self, path: str, answer: Callable[[Any], Awaitable[Any]], method: str = "POST") -> Any:
        async def handle(request: requests.Request) -> responses.Response:
            began = time.monotonic()
            try:
                if {"content-length", "transfer-encoding"} <= {*request.headers.keys()}:  # RFC 9112, 6.3
                    line = "expected Content-Length or Transfer-Encoding, found both"
                    raise _Refused(400, line, {"Connection": "close"})
                # Other requests wait less while a large answer is written.
                response = await asyncio.to_thread(_response, await answer(request))
            except _Refused as error:
                response = _error(error.message, error.status, error.headers)
            except (Malformed, UserError) as error:
                response = _error(str(error), 400)
            except Overloaded:
                retry = {"Retry-After": _RETRY_SECONDS}
                response = _error("too many requests are waiting; try again", 503, retry)
            except asyncio.CancelledError:  # by a stop that does not wait any longer
                response = _error("the server stops before it has an answer", 503)
            except requests.ClientDisconnect:
                response = _error("the client hung up", _HUNG_UP)
            except Exception:
                _logger.exception("%s failed", path)
                response = _error("the server failed; its log has the reason", 500)
            self._answers[path, response.status_code] += 1
            self._times.setdefault(path, _Histogram()).add(time.monotonic() - began)
            return response

        return routing.Route(path, handle, methods=[method])

    async def _http_error(self, request: Any, error: Any) -> Any:
        """Returns the answer to a request for a path or with a method that there is not."""
        path, message = request.url.path, error.detail
        if error.status_code == 404:
            message = f"{path:.60}: expected one of {', '.join(self.paths)}"
        elif error.status_code == 405:
            message = f"{path}: expected {error.headers['Allow']}, found {request.method}"
        return _error(message, error.status_code, error.headers)

    # Requests

    async def _content(self, request: Any) -> bytes:
        """Returns the bytes of a request. Raises _Refused if they are too many, or do not arrive."""
        too_large = _Refused(413, f"a request has at most {self._body_bytes:,} bytes")
        given = request.headers.get("content-length", "0")
        if not given.isdecimal() or int(given) > self._body_bytes:
            raise too_large
        content = bytearray()
        now = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(_STALLED_SECONDS) as limit:
                async for chunk in request.stream():
                    limit.reschedule(now() + _STALLED_SECONDS)
                    content += chunk
                    if len(content) > self._body_bytes:
                        raise too_large
        except TimeoutError:
            line = f"no more of the request arrived within {_STALLED_SECONDS} s"
            raise _Refused(408, line, {"Connection": "close"}) from None
        return bytes(content)

    async def _body(self, request: Any, fields: Sequence[str] = ()) -> dict[str, Any]:
        """Returns the object of a request, which may have some fields; by default any.

        Raises:
            _Refused: it is too large, does not arrive, is no JSON object, or has another field.
        """
        content = await self._content(request)
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            raise _Refused(400, "the request is no JSON") from None
        if not isinstance(found, dict):
            raise _Refused(400, "expected a JSON object")
        if unknown := [name for name in found if fields and name not in fields]:
            raise _Refused(400, f"unknown field {unknown[0]!r:.60}: expected {alternatives(fields)}")
        return found

    async def _results(
        self, request: Any, name: str, items: Any, prefix: str = "", field: str = ""
    ) -> list[Any]:
        """Returns the results of the items of a request, which are in `field`; by default the service's.

        Raises:
            _Refused: there are no items or too many, or one is malformed.
            Overloaded: too many items are waiting.
            requests.ClientDisconnect: the client hung up; items that still wait are not computed.
        """
        service = self._services[name]
        field = field or service.field
        if not isinstance(items, list) or not items:
            raise _Refused(400, f"expected a list of one or more items in {field!r}")
        if len(items) > self._limit:
            raise _Refused(413, f"a request has at most {counted(self._limit, 'item')}, found {len(items):,}")
        parsed = []
        for number, item in enumerate(items):
            try:
                parsed.append(service.parse(item))
            except Malformed as error:
                raise _Refused(400, f"{field}[{number}]: {error}") from None
        if prefix:
            parsed = [prefix + text for text in parsed]
        return await _while_connected(request, self._batchers[name].submit(parsed))

    # Answers

    async def _embed(self, request: Any) -> dict[str, Any]:
        body = await self._body(request, ("texts", "prompt"))
        service = self._services["embed"]
        assert isinstance(service, Embedding)
        found = await self._results(request, "embed", body.get("texts"), service.prompt(body.get("prompt")))
        return {"vectors": [one.values for one in found]}

    async def _openai(self, request: Any) -> dict[str, Any]:
        """Answers a request as the embeddings endpoint of OpenAI does. Its clients also send other fields."""
        body = await self._body(request)
        given = {name: value for name, value in body.items() if value is not None}
        items, encoding = given.get("input"), given.get("encoding_format", "float")
        service = self._services["embed"]
        assert isinstance(service, Embedding)
        width = service.embedder.width
        size = given.get("dimensions", width)
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= width:
            raise _Refused(400, f"dimensions: expected 1 to {width}")
        if encoding not in ("float", "base64"):
            raise _Refused(400, "encoding_format: expected float or base64")
        found = await self._results(
            request, "embed", [items] if isinstance(items, str) else items, field="input"
        )
        tokens = sum(len(one.token_ids) for one in found)
        vectors = [_cut(one.values, size) for one in found]
        return {
            "object": "list",
            "data": [
                {
                    "object": "embedding",
                    "index": number,
                    "embedding": vector
                    if encoding == "float"
                    else base64.b64encode(vector.astype("<f4").tobytes()).decode(),
                }
                for number, vector in enumerate(vectors)
            ],
            "model": self._model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    async def _models(self, request: Any) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": self._model, "object": "model", "owned_by": "bert_jax"}]}

    async def _fill_mask(self, request: Any) -> dict[str, Any]:
        body = await self._body(request, ("texts", "top"))
        top = body.get("top", 5)
        if not isinstance(top, int) or isinstance(top, bool) or not 1 <= top <= FillMask.most:
            raise _Refused(400, f"top: expected 1 to {FillMask.most}")
        found = await self._results(request, "fill-mask", body.get("texts"))
        results = [
            [
                [{"token": one.token, "probability": round(one.probability, 6)} for one in mask[:top]]
                for mask in masks
            ]
            for masks in found
        ]
        return {"results": results}

    async def _predict(self, request: Any) -> dict[str, Any]:
        body = await self._body(request, ("rows",))
        return {"predictions": await self._results(request, "predict", body.get("rows"))}

    async def _health(self, request: Any) -> dict[str, Any]:
        if failed := [name for name, batcher in self._batchers.items() if not batcher.running]:
            raise _Refused(503, f"{', '.join(failed)} failed; restart the server")
        return {"status": "ok", "model": self._model, "services": list(self._services)}

    async def _metrics(self, request: Any) -> str:
        """Returns the metrics in the text format of Prometheus."""
        lines = ["# TYPE bert_jax_requests_total counter"]
        for (path, status), count in sorted(self._answers.items()):
            lines.append(f'bert_jax_requests_total{{path="{path}",status="{status}"}} {count}')
        lines.append("# TYPE bert_jax_request_seconds histogram")
        for path, times in sorted(self._times.items()):
            lines += times.lines("bert_jax_request_seconds", f'path="{path}"')
        for name, kind in _OF_BATCHERS.items():
            total = f"bert_jax_{name}" if kind == "gauge" else f"bert_jax_{name}_total"
            lines.append(f"# TYPE {total} {kind}")
            for service, batcher in self._batchers.items():
                lines.append(f'{total}{{service="{service}"}} {getattr(batcher, name)}')
        return "\n".join(lines) + "\n"


async def _while_connected(request: Any, work: Coroutine[Any, Any, list[Any]]) -> list[Any]:
    """Returns what a coroutine does. Cancels it and raises ClientDisconnect if the client hangs up before."""

    async def hung_up():
        while (await request.receive())["type"] != "http.disconnect":  # the request was read to its end
            pass

    working, gone = asyncio.create_task(work), asyncio.create_task(hung_up())
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise requests.ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        gone.cancel()


def _cut(vector: np.ndarray, size: int) -> np.ndarray:
    """Returns the leading dimensions of a vector, scaled to length 1 if some are left out."""
    if size == len(vector):
        return vector
    return unit_length(vector[:size])


def _response(found: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> responses.Response:
    """Returns an answer: a string as plain text, anything else as JSON, in which vectors are lists."""
    if isinstance(found, str):
        return responses.PlainTextResponse(found, status, headers)
    text = json.dumps(found, default=as_list, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return responses.Response(text.encode("utf-8", "replace"), status, headers, "application/json")


def _error(message: str, status: int, headers: Mapping[str, str] | None = None) -> responses.Response:
    return _response({"error": {"message": message}}, status, headers)
