"""The rendezvous of the processes of a run, which reports missing processes by their index.

If some processes do not connect, jax.distributed aborts the others without naming the missing ones. The
rendezvous runs before it. Process 0 listens at the coordinator's address. Every other process sends its index
and its host name in a line of JSON, and receives a line in reply: start, or an error that names the missing
processes, or that a process was preempted. Then the port is free for jax.distributed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import selectors
import socket
import time
from collections.abc import Callable

from bert_jax.errors import ClusterError, Preempted, UserError
from bert_jax.parallel import addresses

_MAX_MESSAGE_BYTES = 4096
_LOG_EVERY = 10.0  # seconds
_RETRY_AFTER = 0.2
_GRACE = 10.0
_PORT_TIMEOUT = 30.0
_MAX_NAMED = 8
_OTHER_PREEMPTED = "another process was stopped before all had connected; run the same command to go on"


def meet(
    coordinator: str,
    processes: int,
    process: int,
    bind_address: str,
    timeout: float,
    log: Callable[[str], None] = print,
) -> None:
    """Waits until all processes have connected.

    Args:
        coordinator: HOST:PORT of process 0, as the other processes reach it.
        processes: the number of processes.
        process: the index of this process.
        bind_address: HOST:PORT that process 0 listens on.
        timeout: seconds from the call of this function.
        log: called in process 0 with a line every ten seconds of waiting.

    Raises:
        ClusterError: some processes did not connect; the message names them.
        UserError: the processes disagree about their number, two have the same index, or process 0 cannot
            listen on its port.
        Preempted: a process received a request to stop.
    """
    deadline = time.monotonic() + timeout
    if process == 0:
        _Coordinator(processes, timeout, log).run(bind_address, deadline)
    else:
        _join(coordinator, processes, process, timeout, deadline)


class _Coordinator:
    """The rendezvous in process 0, which waits for all other processes."""

    def __init__(self, processes: int, timeout: float, log: Callable[[str], None]):
        self._processes, self._timeout, self._log = processes, timeout, log
        self._selector = selectors.DefaultSelector()
        # {connection: bytes received since its last complete message}, whoever the connection is from.
        self._received: dict[socket.socket, bytes] = {}
        # {process index: (connection, host name)} of the processes that have connected.
        self._workers: dict[int, tuple[socket.socket, str]] = {}

    def run(self, bind_address: str, deadline: float) -> None:
        with self._listen(bind_address, deadline) as listener, self._selector:
            self._selector.register(listener, selectors.EVENT_READ)
            try:
                self._wait(listener, deadline)
                self._send({"go": True})
            except (ClusterError, UserError) as error:
                self._send({"error": str(error), "mistake": isinstance(error, UserError)})
                raise
            except Preempted:
                self._send({"preempted": True})
                raise
            finally:
                self._close()

    def _listen(self, bind_address, deadline):
        host, port = addresses.split(bind_address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        deadline = min(deadline, time.monotonic() + _PORT_TIMEOUT)
        while True:
            listener = socket.socket(family, socket.SOCK_STREAM)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((host, port))
                listener.listen(self._processes)
                return listener
            except OSError as error:
                listener.close()
                in_use = error.errno == errno.EADDRINUSE
                # If this run was restarted, its previous process 0 may still be shutting down.
                if in_use and time.monotonic() < deadline:
                    time.sleep(_RETRY_AFTER)
                    continue
                hint = "; another run may be using it, so choose another port" if in_use else ""
                raise UserError(
                    f"process 0 cannot listen on {bind_address}: {error.strerror}{hint}"
                ) from error

    def _wait(self, listener, deadline):
        next_line = time.monotonic() + _LOG_EVERY
        while missing := sorted(set(range(1, self._processes)) - set(self._workers)):
            now = time.monotonic()
            if now >= deadline:
                raise ClusterError(
                    f"{_names(missing)} of {self._processes} did not connect within {self._timeout:g} s; see "
                    f"the logs of {'this one' if len(missing) == 1 else 'these'}, or allow more time with "
                    "--meet_timeout"
                )
            if now >= next_line:
                self._log(f"waiting for {_names(missing)} of {self._processes} processes")
                next_line = now + _LOG_EVERY
            for key, _ in self._selector.select(min(deadline, next_line) - now):
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    connection.setblocking(False)
                    self._received[connection] = b""
                    self._selector.register(connection, selectors.EVENT_READ)
                else:
                    self._read(key.fileobj)

    def _read(self, connection):
        """Reads from a connection, which may also have closed or belong to a foreign program."""
        try:
            received = connection.recv(_MAX_MESSAGE_BYTES)
        except OSError:
            received = b""
        content = self._received[connection] + received
        if received and b"\n" not in content and len(content) < _MAX_MESSAGE_BYTES:
            self._received[connection] = content
            return
        self._received[connection] = b""
        message = _parse(content) if received else {}
        if message.get("preempted"):
            raise Preempted(_OTHER_PREEMPTED)
        if not self._admit(connection, message):
            self._selector.unregister(connection)
            del self._received[connection]
            self._workers = {i: worker for i, worker in self._workers.items() if worker[0] is not connection}
            connection.close()

    def _admit(self, connection, message) -> bool:
        """Returns whether a message introduces a process of this run, whose connection is then kept."""
        process, count, host = message.get("process"), message.get("processes"), message.get("host")
        if not isinstance(process, int) or not isinstance(host, str):
            return False
        if count != self._processes or not 0 < process < self._processes:
            raise UserError(
                f"process {process} on {host} was started as one of {count} processes and process 0 as one "
                f"of {self._processes}; give all of them the same --num_processes, and each its own "
                "--process_id"
            )
        if process in self._workers:
            raise UserError(
                f"both {self._workers[process][1]} and {host} were started as process {process}; give each "
                "process its own --process_id"
            )
        self._workers[process] = connection, host
        return True

    def _send(self, message):
        for connection in self._received:
            with contextlib.suppress(OSError):
                connection.sendall(_line(message))

    def _close(self):
        """Waits for the other side of each connection to close first, so that the port is free at once."""
        workers = [connection for connection, _ in self._workers.values()]
        for connection in self._received:
            with contextlib.suppress(OSError):
                connection.settimeout(2.0 if connection in workers else 0.0)
                connection.recv(1)
            connection.close()


def _join(coordinator, processes, process, timeout, deadline):
    """Connects to process 0 and waits for its reply; the rendezvous in all other processes."""
    unresolved: socket.gaierror | None = None
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(addresses.split(coordinator), _left(deadline)) as connection:
                unresolved = None
                hello = {"process": process, "processes": processes, "host": socket.gethostname()}
                connection.sendall(_line(hello))
                # Process 0 may have started later and waits for its own timeout. Its error names the missing
                # processes, so this process waits long enough to receive it.
                connection.settimeout(timeout + _GRACE)
                if _await_start(connection):
                    return
        except socket.gaierror as error:
            unresolved = error  # The name may become known while a cluster starts.
        except OSError:
            unresolved = None  # Process 0 does not listen yet, or no longer.
        time.sleep(min(_RETRY_AFTER, _left(deadline)))
    if unresolved is not None:
        raise addresses.unresolved(coordinator, unresolved) from unresolved
    raise ClusterError(
        f"process 0 did not answer at {coordinator} within {timeout:g} s; check that it is running and that "
        "its machine accepts connections on that port"
    )


def _await_start(connection) -> bool:
    """Returns whether all processes have connected; False if process 0 closed the connection."""
    try:
        with connection.makefile("rb") as lines:
            message = _parse(lines.readline(_MAX_MESSAGE_BYTES))
    except Preempted:
        with contextlib.suppress(OSError):
            connection.sendall(_line({"preempted": True}))
        raise
    if message.get("error"):
        raise (UserError if message.get("mistake") else ClusterError)(message["error"])
    if message.get("preempted"):
        raise Preempted(_OTHER_PREEMPTED)
    return bool(message.get("go"))


def _left(deadline: float) -> float:
    return max(0.01, deadline - time.monotonic())


def _line(message: dict) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _parse(line: bytes) -> dict:
    try:
        message = json.loads(line.partition(b"\n")[0])
    except (ValueError, RecursionError):  # of a foreign program; the latter for brackets within brackets
        return {}
    return message if isinstance(message, dict) else {}


def _names(processes: list[int]) -> str:
    named = ", ".join(map(str, processes[:_MAX_NAMED]))
    more = f" and {len(processes) - _MAX_NAMED} more" if len(processes) > _MAX_NAMED else ""
    return f"process{'es' if len(processes) > 1 else ''} {named}{more}"
