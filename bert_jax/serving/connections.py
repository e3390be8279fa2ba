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
_LINGER_SECONDS = 0.25  # for requests that arrived with the signal


class _Protocol(h11_impl.H11Protocol):
    """Closes connections that wait for a request: each after a time, and some to make room for new ones."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        every: Any = self.connections
        if len(every) > resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2:
            waiting = (x for x in every if x.timeout_keep_alive_task and not x.transport.is_closing())
            next(waiting, self).timeout_keep_alive_handler()
        self.timeout_keep_alive_task = self.loop.call_later(_HEADER_SECONDS, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        # The method of the base class stops the timer at the first byte.
        self.conn.receive_data(data)
        self.handle_events()
        if self.cycle and not self.cycle.response_complete:
            self._unset_keepalive_if_required()


class Server(uvicorn.Server):
    """A server of an ASGI application, given options of `uvicorn.Config`. It ends normally after a signal."""

    def __init__(self, application: Any, **options: Any):
        config = uvicorn.Config(application, http=_Protocol, timeout_keep_alive=_HEADER_SECONDS, **options)
        super().__init__(config)

    async def shutdown(self, sockets: Any = None) -> None:
        """Answers the requests that were sent, with `Connection: close`, and closes all connections."""
        self._captured_signals.clear()  # uvicorn would raise them again
        state: Any = self.server_state
        state.default_headers.append((b"connection", b"close"))
        for cycle in filter(None, (connection.cycle for connection in state.connections)):
            cycle.default_headers = state.default_headers
        for _ in range(10):  # also on a busy machine, connections are accepted, and then read
            await asyncio.sleep(_LINGER_SECONDS / 10)
        await super().shutdown(sockets)
