"""Runs of several processes: detection of the cluster, rendezvous, start and end.

On Cloud TPU, GKE, Slurm and Open MPI the environment gives the number and the index of the processes;
elsewhere flags do. If some processes are missing, jax.distributed aborts the others without naming them.
Before it starts, each process therefore sends a line of JSON to process 0 and receives one: an empty text, or
the error that all of them raise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import re
import socket
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from etils import epy

from bert_jax import signals
from bert_jax.errors import ClusterError, UserError

with epy.lazy_imports():
    import jax

_MAX_MESSAGE_BYTES = 4096
_LOG_SECONDS, _RETRY_SECONDS, _GRACE_SECONDS, _PORT_SECONDS = 10.0, 0.2, 10.0, 30.0


@dataclasses.dataclass(frozen=True)
class ProcessInfo:
    """One process in a run of several processes."""

    coordinator: str  # HOST:PORT of process 0
    processes: int  # of the run
    process: int  # the index of this one
    local_devices: tuple[int, ...] | None = None  # the ids of its devices; None for all of the machine


def process_info(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    detect: bool = True,
    timeout: int = 300,
    environ: Mapping[str, str] = os.environ,
) -> ProcessInfo | None:
    """Describes this process in its run. None if the run has one process.

    Without an address, a number of processes and an index, the environment is read if `detect`. `timeout` is
    in seconds, until the coordinator's name can be resolved. It raises UserError if some of the three are
    missing or invalid.
    """
    if coordinator_address is None and num_processes is None and process_id is None:
        return _detect(timeout, environ) if detect else None
    if (
        coordinator_address is None
        or num_processes is None
        or process_id is None
        or not re.fullmatch(r".+:\d{1,5}", coordinator_address)
        or not 0 <= process_id < num_processes
    ):
        raise UserError(
            f"--coordinator_address={coordinator_address} --num_processes={num_processes} "
            f"--process_id={process_id}: expected HOST:PORT of process 0, the number of processes, and this "
            "one's index from 0"
        )
    return ProcessInfo(coordinator_address, num_processes, process_id) if num_processes > 1 else None


def _detect(timeout: int, environ: Mapping[str, str]) -> ProcessInfo | None:
    # A process of a cluster that runs alone by mistake does no harm: the others find the directory in use.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on every Kubernetes pod without the client package
            # jax.distributed.initialize() also does this, but does not return the address for `rendezvous`.
            clusters = importlib.import_module("jax._src.clusters")
            address, processes, process, local = clusters.ClusterEnv.auto_detect_unset_distributed_params(
                None, None, None, None, None, timeout
            )
    except Exception as error:
        signals.print_line(
            f"warning: this process runs alone, because its cluster cannot be determined ({error}); set "
            "--coordinator_address, --num_processes and --process_id, or --distributed=off"
        )
        return None
    if address is None or not processes or processes == 1:
        return None
    # JAX gives each process of Slurm one device, also if Slurm starts one process per node.
    nodes = environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_NNODES")
    has_own_devices = len(environ.get("CUDA_VISIBLE_DEVICES", ",").split(",")) == 1
    if has_own_devices or (nodes is not None and int(nodes) >= processes):
        local = None
    return ProcessInfo(address, int(processes), int(process), None if local is None else tuple(local))


def start(info: ProcessInfo, *, meet_timeout: int = 300, heartbeat_timeout: int = 100) -> None:
    """Waits for the other processes and starts jax.distributed, before any other use of JAX's devices.

    All processes have to connect within `meet_timeout` seconds. If a process has no heartbeat for
    `heartbeat_timeout` seconds, the others end. It raises the errors of `rendezvous`.
    """
    rendezvous(info, meet_timeout)
    jax.distributed.initialize(
        info.coordinator,
        info.processes,
        info.process,
        local_device_ids=info.local_devices,
        cluster_detection_method="deactivate",
        initialization_timeout=meet_timeout,
        heartbeat_timeout_seconds=heartbeat_timeout,
    )


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def rendezvous(info: ProcessInfo, timeout: float, log: Callable[[str], None] = print) -> None:
    """Waits until all processes have connected to process 0, which listens on all of its addresses.

    It raises ClusterError, which names the missing processes, after `timeout` seconds, and UserError if the
    processes disagree about their number, if two have one index, or if process 0 cannot listen on its port.
    """
    deadline = time.monotonic() + timeout
    if info.process:
        return _join(info, timeout, deadline)
    problem: Exception | None = None
    hosts: dict[int, str] = {}
    with contextlib.ExitStack() as connections:
        connected: list[socket.socket] = []
        listener = connections.enter_context(_listen(_split(info.coordinator)[1], info.processes, deadline))
        while not problem and (missing := sorted({*range(1, info.processes)} - {*hosts})):
            named = f"process{'es' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
            if (left := deadline - time.monotonic()) <= 0:
                problem = ClusterError(
                    f"{named} of {info.processes} did not connect within {timeout:g} s; see the logs "
                    "there, or allow more time with --initialization_timeout"
                )
                continue
            listener.settimeout(min(left, _LOG_SECONDS))
            try:
                connection = connections.enter_context(listener.accept()[0])
            except TimeoutError:
                log(f"waiting for {named} of {info.processes} processes")
                continue
            connection.settimeout(1.0)
            match _receive(connection):
                case [int(process), int(count), str(host)]:
                    connected.append(connection)
                    is_valid = count == info.processes and 0 < process < count
                    # A process that was restarted connects again.
                    if is_valid and hosts.setdefault(process, host) == host:
                        continue
                    problem = UserError(
                        f"process {process} on {host} has --num_processes={count}, process 0 has "
                        f"{info.processes}, and connected are {hosts}; each needs another --process_id"
                    )
        for connection in connected:
            with contextlib.suppress(OSError):
                is_of_user = isinstance(problem, UserError)
                connection.sendall(_line([is_of_user, "" if problem is None else str(problem)]))
    if problem:
        raise problem


def _listen(port: int, processes: int, deadline: float) -> socket.socket:
    deadline = min(deadline, time.monotonic() + _PORT_SECONDS)
    has_both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if has_both else socket.AF_INET
    while True:
        try:
            return socket.create_server(("", port), family=family, backlog=processes, dualstack_ipv6=has_both)
        except OSError as error:
            # If this run was restarted, its previous process 0 may still be shutting down.
            if time.monotonic() >= deadline:
                raise UserError(f"process 0 cannot listen on port {port}: {error.strerror}") from error
            time.sleep(_RETRY_SECONDS)


def _join(info: ProcessInfo, timeout: float, deadline: float) -> None:
    while (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(OSError), socket.create_connection(_split(info.coordinator), left) as link:
            link.sendall(_line([info.process, info.processes, socket.gethostname()]))
            # Process 0 may have started later. Its error names the missing processes, so wait for that.
            link.settimeout(timeout + _GRACE_SECONDS)
            match _receive(link):
                case [_, ""]:
                    return
                case [bool(is_of_user), str(message)]:
                    raise (UserError if is_of_user else ClusterError)(message)
        time.sleep(min(_RETRY_SECONDS, max(0.0, deadline - time.monotonic())))
    raise ClusterError(
        f"process 0 did not answer at {info.coordinator} within {timeout:g} s; check that it is running and "
        "that its machine accepts connections on that port"
    )


def _line(message: list) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _receive(connection: socket.socket) -> Any:
    try:
        return json.loads(connection.recv(_MAX_MESSAGE_BYTES).partition(b"\n")[0])
    except (OSError, ValueError, RecursionError):
        return None


def exit_process(code: int) -> None:
    """Ends this process immediately if it is one of several, and not all of them end with the same code.

    At a normal exit JAX would wait for the other processes, which in turn wait for this one in a collective.
    Only the codes 0 (success) and 3 (a stop) are the same in all processes, which then end normally.
    """
    if code in (0, 3) or not is_one_of_several():
        return
    print(f"bert-jax: process {jax.process_index()} of {jax.process_count()} ends", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def log_of_primary(log: Callable[[str], None]) -> Callable[[str], None]:
    """Returns `log` in process 0 of a run, and a function that discards its lines in the others."""
    return log if jax.process_index() == 0 else lambda line: None


def is_one_of_several() -> bool:
    """Whether jax.distributed has been started in this process."""
    return "jax" in sys.modules and jax.distributed.is_initialized()
