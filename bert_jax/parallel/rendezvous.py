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
from collections.abc import Callable, Iterable

from bert_jax.errors import ClusterError, Preempted, UserError

_LONGEST_LINE = 4096
_TELL_EVERY = 10.0  # seconds
_RETRY_AFTER = 0.2
_GRACE = 10.0
_PORT_TIMEOUT = 30.0
_SHOWN = 8
_OTHER_STOPPED = "another process was stopped before all had met; run the same command to go on"


def meet(
    coordinator: str,
    processes: int,
    process: int,
    bind_address: str,
    timeout: float,
    *,
    host: str = "",
    say: Callable[[str], None] = print,
) -> None:
    """Waits until all processes have connected.

    Args:
        coordinator: HOST:PORT of process 0, as the other processes reach it.
        processes: the number of processes.
        process: the index of this process.
        bind_address: HOST:PORT that process 0 listens on.
        timeout: seconds from the call of this function.
        host: the name of this machine in messages; by default its host name.
        say: called in process 0 with a line every ten seconds of waiting.

    Raises:
        ClusterError: some processes did not connect; the message names them.
        UserError: the processes disagree about their number, two have the same index, or process 0 cannot
            listen on its port.
        Preempted: a process received a request to stop.
    """
    host = host or socket.gethostname()
    deadline = time.monotonic() + timeout
    if process == 0:
        _Host(processes, timeout, say).receive(bind_address, deadline)
    else:
        _join(coordinator, processes, process, host, timeout, deadline)


class _Host:
    """The rendezvous in process 0, which waits for all other processes."""

    def __init__(self, processes: int, timeout: float, say: Callable[[str], None]):
        self._processes, self._timeout, self._say = processes, timeout, say
        # {process index: (connection, host)} of the processes that have connected.
        self._guests: dict[int, tuple[socket.socket, str]] = {}
        # {connection: bytes received} of the connections that have not identified themselves yet.
        self._strangers: dict[socket.socket, bytes] = {}

    def receive(self, bind_address: str, deadline: float) -> None:
        with self._listen(bind_address, deadline) as listener, selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            try:
                self._wait(listener, selector, deadline)
                self._tell({"go": True})
            except (ClusterError, UserError) as error:
                self._tell({"error": str(error), "mistake": isinstance(error, UserError)})
                raise
            except Preempted:
                self._tell({"preempted": True})
                raise
            finally:
                self._part()

    def _listen(self, bind_address, deadline):
        host, _, port = bind_address.rpartition(":")
        host = host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        deadline = min(deadline, time.monotonic() + _PORT_TIMEOUT)
        while True:
            listener = socket.socket(family, socket.SOCK_STREAM)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((host, int(port)))
                listener.listen(self._processes)
                return listener
            except OSError as error:
                listener.close()
                taken = error.errno == errno.EADDRINUSE
                # If this run was restarted, its previous process 0 may still be shutting down.
                if taken and time.monotonic() < deadline:
                    time.sleep(_RETRY_AFTER)
                    continue
                hint = "; another run may be using it, so take another port" if taken else ""
                raise UserError(
                    f"process 0 cannot listen on {bind_address}: {error.strerror}{hint}"
                ) from error

    def _wait(self, listener, selector, deadline):
        next_line = time.monotonic() + _TELL_EVERY
        while missing := sorted(set(range(1, self._processes)) - set(self._guests)):
            now = time.monotonic()
            if now >= deadline:
                raise ClusterError(_missing(missing, self._processes, self._timeout))
            if now >= next_line:
                self._say(f"waiting for {_names(missing)} of {self._processes} processes")
                next_line = now + _TELL_EVERY
            for key, _ in selector.select(min(deadline, next_line) - now):
                if key.fileobj is listener:
                    guest, _ = listener.accept()
                    guest.setblocking(False)
                    self._strangers[guest] = b""
                    selector.register(guest, selectors.EVENT_READ)
                else:
                    self._hear(key.fileobj, selector)

    def _hear(self, guest, selector):
        """Reads from a connection, which may also have closed or belong to a foreign program."""
        try:
            received = guest.recv(_LONGEST_LINE)
        except OSError:
            received = b""
        heard = self._strangers.get(guest, b"") + received
        if received and b"\n" not in heard and len(heard) < _LONGEST_LINE:
            self._strangers[guest] = heard
            return
        said = _parse(heard) if received else {}
        if said.get("preempted"):
            raise Preempted(_OTHER_STOPPED)
        if not self._admit(guest, said):
            selector.unregister(guest)
            self._strangers.pop(guest, None)
            self._guests = {number: known for number, known in self._guests.items() if known[0] is not guest}
            guest.close()

    def _admit(self, guest, said) -> bool:
        number, count, host = said.get("process"), said.get("processes"), said.get("host")
        if not isinstance(number, int) or not isinstance(host, str):
            return False
        if count != self._processes or not 0 < number < self._processes:
            raise UserError(
                f"process {number} on {host} was started as one of {count} processes and process 0 as one of "
                f"{self._processes}; give all of them the same --num_processes, and each its own --process_id"
            )
        if number in self._guests:
            raise UserError(
                f"both {self._guests[number][1]} and {host} say that they are process {number}; give each "
                "process its own --process_id"
            )
        self._strangers.pop(guest, None)
        self._guests[number] = guest, host
        return True

    def _tell(self, message):
        line = json.dumps(message).encode() + b"\n"
        for guest in self._all():
            with contextlib.suppress(OSError):
                guest.sendall(line)

    def _all(self):
        return [*(guest for guest, _ in self._guests.values()), *self._strangers]

    def _part(self):
        """Waits for the other side of each connection to close first, so that the port is free at once."""
        for guest in self._all():
            with contextlib.suppress(OSError):
                guest.setblocking(True)
                guest.settimeout(2.0 if guest not in self._strangers else 0.0)
                guest.recv(1)
            guest.close()


def _join(coordinator, processes, process, host, timeout, deadline):
    """Connects to process 0 and waits for its reply; the rendezvous in all other processes."""
    address, _, port = coordinator.rpartition(":")
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((address.strip("[]"), int(port)), _left(deadline)) as connection:
                hello = {"process": process, "processes": processes, "host": host}
                connection.sendall(json.dumps(hello).encode() + b"\n")
                # Process 0 may have started later and waits for its own timeout. Its error names the missing
                # processes, so this process waits long enough to receive it.
                connection.settimeout(timeout + _GRACE)
                if _listen_to_host(connection):
                    return
        except OSError:
            pass  # Process 0 does not listen yet, or no longer.
        time.sleep(min(_RETRY_AFTER, _left(deadline)))
    raise ClusterError(
        f"process 0 did not answer at {coordinator} within {timeout:g} s; see whether it is running, and "
        "whether its machine lets others reach that port"
    )


def _listen_to_host(connection) -> bool:
    """Returns whether all processes have connected; False if process 0 closed the connection."""
    heard = b""
    try:
        while b"\n" not in heard and len(heard) < _LONGEST_LINE:
            received = connection.recv(_LONGEST_LINE)
            if not received:
                return False
            heard += received
    except Preempted:
        with contextlib.suppress(OSError):
            connection.sendall(b'{"preempted": true}\n')
        raise
    said = _parse(heard)
    if said.get("error"):
        raise (UserError if said.get("mistake") else ClusterError)(said["error"])
    if said.get("preempted"):
        raise Preempted(_OTHER_STOPPED)
    return bool(said.get("go"))


def _left(deadline: float) -> float:
    return max(0.01, deadline - time.monotonic())


def _parse(line: bytes) -> dict:
    try:
        said = json.loads(line.partition(b"\n")[0])
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _missing(missing: Iterable[int], processes: int, timeout: float) -> str:
    missing = list(missing)
    return (
        f"{_names(missing)} of {processes} did not come within {timeout:g} s; see the logs of "
        f"{'that one' if len(missing) == 1 else 'those'}, or give all of them longer by --meet_timeout"
    )


def _names(missing: list[int]) -> str:
    shown = ", ".join(map(str, missing[:_SHOWN]))
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return f"process{'es' if len(missing) > 1 else ''} {shown}{more}"
