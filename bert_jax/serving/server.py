"""The HTTP server: JSON in, JSON out, with health and metrics, on starlette and uvicorn."""

from __future__ import annotations

import asyncio
import base64
import collections
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bert_jax.convert.sentences import unit_length
from bert_jax.errors import UserError, optional_imports
from bert_jax.inference.embedding import Embedder, Features
from bert_jax.inference.fill_mask import MaskFiller
from bert_jax.inference.predictor import Predictor
from bert_jax.serving.batching import Batcher, Overloaded
from bert_jax.tasks.table import Malformed, encodable

with optional_imports("serve"):
    import uvicorn
    from starlette import applications, exceptions, requests, responses, routing

_logger = logging.getLogger(__name__)
_HUNG_UP = 499  # as nginx counts such requests; nobody gets the answer
_MOST_WORDS = 50  # words for each mask
_OF_BATCHERS = {"items": "counter", "batches": "counter", "compute_seconds": "counter", "waiting": "gauge"}

OnProgram = Callable[[int, int], None]


class Service(Protocol):
    """A computation of a model; requests have the path /`name` and a list of items in `field`."""

    name: str
    field: str

    def parse(self, item: Any) -> Any:
        """Returns an item of a request as `compute` takes it. Raises Malformed."""
        ...

    def compute(self, items: list[Any]) -> Sequence[Any]:
        """Returns the result of each item. Raises UserError if an item has none."""
        ...

    def warm_up(self, most: int, on_program: OnProgram) -> int:
        """Compiles the programs of batches of at most `most` items, and returns their number."""
        ...


def _text(item: Any) -> str:
    if not isinstance(item, str):
        raise Malformed(f"expected a text, found {type(item).__name__}")
    return encodable(item)


class Embedding:
    """Vectors of texts; items are texts with their prompts."""

    name, field = "embed", "texts"

    def __init__(self, embedder: Embedder):
        self.embedder, self.parse = embedder, _text

    def compute(self, items: list[str]) -> list[Features]:
        """Returns the tokens and the vector of each text."""
        return list(self.embedder.stream(items))

    def warm_up(self, most: int, on_program: OnProgram) -> int:
        """Compiles the model for all shapes."""
        return self.embedder.engine.warm_up(most, lambda rows, size: {}, on_program)


class FillMask:
    """Words for the masks of texts; items are texts with a mask."""

    name, field = "fill-mask", "texts"

    def __init__(self, filler: MaskFiller):
        self.filler, self.parse = filler, _text

    def compute(self, items: list[str]) -> list[Any]:
        """Returns the words for each mask of each text."""
        return self.filler(items, _MOST_WORDS)

    def warm_up(self, most: int, on_program: OnProgram) -> int:
        """Compiles the model for all shapes, with one mask in each text."""
        return self.filler.warm_up(most, on_program)


class Prediction:
    """Predictions of a fine-tuned model; items are the rows of `bert-jax predict --input=-`, or texts."""

    name, field = "predict", "rows"

    def __init__(self, predictor: Predictor):
        self.predictor, self.compute = predictor, predictor.records_of
        predictor.reader  # noqa: B018 (it raises, or warns, before the first request)

    def parse(self, item: Any) -> dict[str, Any]:
        """Returns the values of a row."""
        return self.predictor.row_of(item if isinstance(item, dict) else _text(item))

    def warm_up(self, most: int, on_program: OnProgram) -> int:
        """Compiles the model for all shapes; the largest batch is that of the predictor."""
        return self.predictor.warm_up(on_program)


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
        paths: the paths that it answers.
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
        self._services: dict[str, Any] = {service.name: service for service in services}
        self._batchers: dict[str, Batcher] = {}
        self._requests: collections.Counter[tuple[str, int]] = collections.Counter()
        self._seconds: collections.defaultdict[str, float] = collections.defaultdict(float)
        routes = [self._route("/health", self._health, "GET"), self._route("/metrics", self._metrics, "GET")]
        answers = {"embed": self._embed, "fill-mask": self._fill_mask, "predict": self._predict}
        routes += [self._route(f"/{name}", answers[name]) for name in self._services]
        if "embed" in self._services:
            routes += [
                self._route("/v1/embeddings", self._openai),
                self._route("/v1/models", self._models, "GET"),
            ]
        self.paths = [route.path for route in routes]
        handlers = {exceptions.HTTPException: self._http_error}
        self.app = applications.Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers)
        # A redirection has the scheme and host of this server, not of a proxy in front of it.
        self.app.router.redirect_slashes = False

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        for name, service in self._services.items():
            self._batchers[name] = Batcher(service.compute, self._most, self._limit)
            await self._batchers[name].start()
        try:
            yield
        finally:
            for batcher in self._batchers.values():
                await batcher.stop()

    def _route(self, path: str, answer: Callable[[Any], Awaitable[Any]], method: str = "POST") -> Any:
        async def handle(request: requests.Request) -> responses.Response:
            began = time.monotonic()
            try:
                # Other requests wait less while a large answer is written.
                response = await asyncio.to_thread(_response, await answer(request))
            except exceptions.HTTPException as error:
                response = _error(error.detail, error.status_code)
            except (Malformed, UserError) as error:
                response = _error(str(error), 400)
            except Overloaded:
                response = _error("too many requests are waiting; try again", 503, {"Retry-After": "1"})
            except asyncio.CancelledError:  # by a stop that does not wait any longer
                response = _error("the server stops before it has an answer", 503)
            except requests.ClientDisconnect:
                response = _error("the client hung up", _HUNG_UP)
            except Exception:
                _logger.exception("%s failed", path)
                response = _error("the server failed; its log has the reason", 500)
            self._requests[path, response.status_code] += 1
            self._seconds[path] += time.monotonic() - began
            return response

        return routing.Route(path, handle, methods=[method])

    async def _http_error(self, request: Any, error: Any) -> Any:
        return _error(
            f"{error.detail}; the paths are {', '.join(self.paths)}", error.status_code, error.headers
        )

    async def _body(self, request: Any, fields: Sequence[str] = ()) -> dict[str, Any]:
        """Returns the object of a request, which may have some fields; by default any."""
        content, size = bytearray(), request.headers.get("content-length", "0")
        if int(size) <= self._body_bytes:
            async for chunk in request.stream():
                content += chunk
                if len(content) > self._body_bytes:
                    break
        if max(int(size), len(content)) > self._body_bytes:
            raise exceptions.HTTPException(413, f"a request has at most {self._body_bytes:,} bytes")
        try:
            body = json.loads(bytes(content))
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise Malformed("expected a JSON object")
        if unknown := [name for name in body if fields and name not in fields]:
            raise Malformed(f"unknown field {unknown[0]!r:.60}: expected {' or '.join(fields)}")
        return body

    async def _results(
        self, request: Any, name: str, items: Any, prefix: str = "", field: str = ""
    ) -> list[Any]:
        """Returns the results of the items of a request, which are in `field`; by default the service's."""
        service = self._services[name]
        field = field or service.field
        if not isinstance(items, list) or not items:
            raise Malformed(f"expected a list of one or more items in {field!r}")
        if len(items) > self._limit:
            raise exceptions.HTTPException(413, f"a request has at most {self._limit:,} items")
        parsed = []
        for number, item in enumerate(items):
            try:
                parsed.append(service.parse(item))
            except Malformed as error:
                raise Malformed(f"{field}[{number}]: {error}") from None
        if prefix:
            parsed = [prefix + text for text in parsed]
        return await _while_connected(request, self._batchers[name].submit(parsed))

    async def _embed(self, request: Any) -> dict[str, Any]:
        body = await self._body(request, ("texts", "prompt"))
        prompt = self._services["embed"].embedder.sentence.prompt(_text(body.get("prompt") or ""))
        results = await self._results(request, "embed", body.get("texts"), prompt)
        return {"vectors": [result.values for result in results]}

    async def _openai(self, request: Any) -> dict[str, Any]:
        """Answers as the embeddings endpoint of OpenAI. Its clients also send other fields."""
        body = {name: value for name, value in (await self._body(request)).items() if value is not None}
        items, encoding = body.get("input"), body.get("encoding_format", "float")
        width = self._services["embed"].embedder.width
        size = body.get("dimensions", width)
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= width:
            raise Malformed(f"dimensions: expected 1 to {width}")
        if encoding not in ("float", "base64"):
            raise Malformed("encoding_format: expected float or base64")
        results = await self._results(
            request, "embed", [items] if isinstance(items, str) else items, field="input"
        )
        vectors: list[Any] = [result.values for result in results]
        if size < width:
            vectors = [unit_length(vector[:size]) for vector in vectors]
        if encoding == "base64":
            vectors = [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in vectors]
        tokens = sum(len(result.token_ids) for result in results)
        return {
            "object": "list",
            "data": [{"object": "embedding", "index": i, "embedding": x} for i, x in enumerate(vectors)],
            "model": self._model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    async def _models(self, request: Any) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": self._model, "object": "model", "owned_by": "bert_jax"}]}

    async def _fill_mask(self, request: Any) -> dict[str, Any]:
        body = await self._body(request, ("texts", "top"))
        top = body.get("top", 5)
        if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= _MOST_WORDS:
            raise Malformed(f"top: expected 1 to {_MOST_WORDS}")
        results = await self._results(request, "fill-mask", body.get("texts"))

        def words(mask):
            return [{"token": one.token, "probability": round(one.probability, 6)} for one in mask[:top]]

        return {"results": [[words(mask) for mask in masks] for masks in results]}

    async def _predict(self, request: Any) -> dict[str, Any]:
        body = await self._body(request, ("rows",))
        return {"predictions": await self._results(request, "predict", body.get("rows"))}

    async def _health(self, request: Any) -> dict[str, Any]:
        if failed := [name for name, batcher in self._batchers.items() if not batcher.running]:
            raise exceptions.HTTPException(503, f"{', '.join(failed)} failed; restart the server")
        return {"status": "ok", "model": self._model, "services": list(self._services)}

    async def _metrics(self, request: Any) -> str:
        """Returns the metrics in the text format of Prometheus."""
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


async def _while_connected(request: Any, work: Coroutine[Any, Any, list[Any]]) -> list[Any]:
    """Returns the result of a coroutine. Cancels it and raises ClientDisconnect if the client hangs up."""

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


def as_list(vector: np.ndarray) -> list[float]:
    """Returns the numbers of a float32 vector, with the 9 digits that distinguish any two of them."""
    exact = vector.astype(np.float64)
    # Twice as fast as formatting each number: the quotient of two whole numbers is the float nearest to 9
    # digits, so that JSON has no more.
    units = 10.0 ** (8 - np.floor(np.log10(np.abs(exact), where=exact != 0, out=np.zeros_like(exact))))
    return (np.rint(exact * units) / units).tolist()


def _response(answer: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> responses.Response:
    """Returns an answer: a string as plain text, anything else as JSON, in which vectors are lists."""
    if isinstance(answer, str):
        return responses.PlainTextResponse(answer, status, headers)
    text = json.dumps(answer, default=as_list, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return responses.Response(text.encode("utf-8", "replace"), status, headers, "application/json")


def _error(message: str, status: int, headers: Mapping[str, str] | None = None) -> responses.Response:
    return _response({"error": {"message": message}}, status, headers)


class HttpServer(uvicorn.Server):
    """Runs an ASGI application, with options of `uvicorn.Config`. It ends normally after a signal."""

    def __init__(self, application: Any, **options: Any):
        super().__init__(uvicorn.Config(application, **options))

    async def shutdown(self, sockets: Any = None) -> None:
        """Answers the requests that were sent, and closes all connections."""
        self._captured_signals.clear()  # uvicorn would raise them again
        await super().shutdown(sockets)
