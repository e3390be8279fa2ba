"""The connections of a server: how long they may wait for a request, how many may, and how they end."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from bert_jax.errors import optional_imports

with optional_imports("serve"):
    import uvicorn
    from uvicorn.protocols.http import h11_impl

_HEADER_SECONDS = 10  # from the start of a connection, or its last response, to complete headers
_LINGER_SECONDS = 0.25
_CLOSE = (b"connection", b"close")


class _Protocol(h11_impl.H11Protocol):
    """Closes connections that wait for a request: each after a time, and some to make room for new ones."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        every: Any = self.connections
        if len(every) > resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2:
            waiting = (x for x in every if x.timeout_keep_alive_task and not x.transport.is_closing())
            next(waiting, self).timeout_keep_alive_handler()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        # The method of the base class stops the timer at the first byte.
        self.conn.receive_data(data)
        self.handle_events()
        if self.cycle and not self.cycle.response_complete:
            self._unset_keepalive_if_required()


class Server(uvicorn.Server):
    """Runs an ASGI application. Its end resets no request that was sent before.

    Args:
        application: the application.
        options: arguments of `uvicorn.Config`.
    """

    def __init__(self, application: Any, **options: Any):
        super().__init__(
            uvicorn.Config(application, http=_Protocol, timeout_keep_alive=_HEADER_SECONDS, **options)
        )

    async def shutdown(self, sockets: Any = None) -> None:
        """Answers what was sent, with `Connection: close`, and then closes all connections."""
        state: Any = self.server_state
        state.default_headers.append(_CLOSE)
        for connection in state.connections:
            if connection.cycle:
                connection.cycle.default_headers = state.default_headers
        await asyncio.sleep(_LINGER_SECONDS)  # accepts connections and reads requests that already arrived
        for server in self.servers:
            server.close()
        await asyncio.sleep(_LINGER_SECONDS)  # reads the requests of the last of these connections
        await super().shutdown(sockets)
