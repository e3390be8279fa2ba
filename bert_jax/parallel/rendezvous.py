"""The rendezvous of the processes of a run, which reports missing processes by their index.

If some processes do not connect, jax.distributed aborts the others without naming the missing ones. The
rendezvous runs before it. Process 0 listens at the coordinator's address. Every other process sends its index
and its host name in a line of JSON, and receives a line in reply: start, or the error that all of them raise.
Then the port is free for jax.distributed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from bert_jax.errors import ClusterError, Preempted, UserError
from bert_jax.parallel import addresses

_MAX_MESSAGE_BYTES = 4096
_LOG_EVERY = 10.0  # seconds
_RETRY_AFTER = 0.2
_GRACE = 10.0
_PORT_TIMEOUT = 30.0
_MAX_NAMED = 8
_STOPPED = "another process was stopped before all had connected; run the same command to resume"
_ERRORS = {error.__name__: error for error in (ClusterError, UserError, Preempted)}


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
    if process:
        return _join(coordinator, processes, process, timeout, deadline)
    reply = ["start", ""]
    with _listen(bind_address, processes, deadline) as listener, selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        try:
            _wait(listener, selector, processes, timeout, deadline, log)
        except (ClusterError, UserError, Preempted) as error:
            reply = [type(error).__name__, str(error)]
            raise
        finally:
            for key in selector.get_map().values():
                if isinstance(key.fileobj, socket.socket) and key.fileobj is not listener:
                    with key.fileobj as connection, contextlib.suppress(OSError):
                        connection.sendall(_line(reply))


def _listen(bind_address: str, processes: int, deadline: float) -> socket.socket:
    host, port = addresses.split(bind_address)
    deadline = min(deadline, time.monotonic() + _PORT_TIMEOUT)
    while True:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(processes)
            return listener
        except OSError as error:
            listener.close()
            # If this run was restarted, its previous process 0 may still be shutting down.
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                why = f"{error.strerror}; choose a free port of this machine"
                raise UserError(f"process 0 cannot listen on {bind_address}: {why}") from error
            time.sleep(_RETRY_AFTER)


def _wait(listener, selector, processes, timeout, deadline, log) -> None:
    """Waits in process 0 until all others have connected."""
    workers: dict[int, tuple[socket.socket, str]] = {}  # {process index: (connection, host name)}
    next_line = time.monotonic() + _LOG_EVERY
    while missing := sorted({*range(1, processes)} - {*workers}):
        now = time.monotonic()
        if now >= deadline:
            raise ClusterError(
                f"{_names(missing)} of {processes} did not connect within {timeout:g} s; see the logs there, "
                "or allow more time with --initialization_timeout"
            )
        if now >= next_line:
            log(f"waiting for {_names(missing)} of {processes} processes")
            next_line = now + _LOG_EVERY
        for key, _ in selector.select(min(deadline, next_line) - now):
            if key.fileobj is listener:
                connection = listener.accept()[0]
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ)
            elif not _admit(key.fileobj, processes, workers):
                # Closed, or of a foreign program. A process of the run connects again.
                workers = {i: worker for i, worker in workers.items() if worker[0] is not key.fileobj}
                selector.unregister(key.fileobj)
                key.fileobj.close()


def _admit(connection: socket.socket, processes: int, workers: dict[int, tuple[socket.socket, str]]) -> bool:
    """Adds a process of this run that has introduced itself; returns False if there is none."""
    match _receive(connection):
        case ["Preempted", str(message)]:
            raise Preempted(message)
        case [int(process), int(count), str(host)]:
            if count != processes or not 0 < process < processes:
                raise UserError(
                    f"process {process} on {host} was started as one of {count} processes and process 0 as "
                    f"one of {processes}; give all the same --num_processes, and each its own --process_id"
                )
            if process in workers:
                raise UserError(
                    f"both {workers[process][1]} and {host} were started as process {process}; give each "
                    "process its own --process_id"
                )
            workers[process] = connection, host
            return True
    return False


def _join(coordinator: str, processes: int, process: int, timeout: float, deadline: float) -> None:
    """Connects to process 0 and waits for its reply; the rendezvous in all other processes."""
    failure = no_answer = ClusterError(
        f"process 0 did not answer at {coordinator} within {timeout:g} s; check that it is running and that "
        "its machine accepts connections on that port"
    )
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection(addresses.split(coordinator), left) as connection:
                failure = no_answer
                connection.sendall(_line([process, processes, socket.gethostname()]))
                # Process 0 may have started later and waits for its own timeout. Its error names the missing
                # processes, so this process waits long enough to receive it.
                connection.settimeout(timeout + _GRACE)
                try:
                    reply = _receive(connection)
                except Preempted:
                    with contextlib.suppress(OSError):
                        connection.sendall(_line(["Preempted", _STOPPED]))
                    raise
            match reply:
                case ["start", _]:
                    return
                case [str(kind), str(message)] if kind in _ERRORS:
                    raise _ERRORS[kind](message)
        except socket.gaierror as error:
            failure = addresses.unresolved(coordinator, error)  # A starting cluster may learn it later.
        except OSError:
            failure = no_answer  # Process 0 does not listen yet, or no longer.
        time.sleep(min(_RETRY_AFTER, max(0.0, deadline - time.monotonic())))
    raise failure


def _line(message: list) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _receive(connection: socket.socket) -> Any:
    """Returns a message, which comes at once as it is small; None from a closed or foreign connection."""
    try:
        return json.loads(connection.recv(_MAX_MESSAGE_BYTES).partition(b"\n")[0])
    except (OSError, ValueError, RecursionError):  # the last one for brackets within brackets
        return None


def _names(processes: list[int]) -> str:
    named = ", ".join(map(str, processes[:_MAX_NAMED]))
    more = f" and {len(processes) - _MAX_NAMED} more" if len(processes) > _MAX_NAMED else ""
    return f"process{'es' if len(processes) > 1 else ''} {named}{more}"
