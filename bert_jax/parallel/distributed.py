"""Runs of several processes: cluster detection, startup and shutdown.

On Cloud TPU, GKE, Slurm and Open MPI the environment gives the number and the index of the processes;
elsewhere flags do. Before jax.distributed starts, the processes rendezvous at the coordinator's address: each
sends one line and receives one line. A run that cannot start therefore reports which processes are missing
instead of aborting after the timeout.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import ipaddress
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping

from etils import epy

from bert_jax import signals
from bert_jax.errors import Preempted, UserError
from bert_jax.parallel import addresses, rendezvous

with epy.lazy_imports():
    import jax

_FLAGS = ("coordinator_address", "num_processes", "process_id")


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of one process in a run of several processes.

    Attributes:
        coordinator: HOST:PORT of process 0.
        processes: the number of processes of the run.
        process: the index of this process, from 0.
        local_devices: the ids of the devices that this process uses on a machine that several processes
            share; None for all of the machine's devices.
    """

    coordinator: str
    processes: int
    process: int
    local_devices: tuple[int, ...] | None = None


def find_place(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    detect: bool = True,
    timeout: int = 300,
    environ: Mapping[str, str] = os.environ,
) -> Place | None:
    """Returns the place of this process in its run, or None if the run has one process.

    Args:
        coordinator_address: HOST:PORT of process 0. Either all of this and the next two arguments are given,
            or none of them.
        num_processes: the number of processes.
        process_id: the index of this process.
        detect: whether to read the environment when none of the three is given.
        timeout: seconds to wait until the coordinator's name can be resolved.
        environ: the environment variables.

    Raises:
        UserError: some of the three arguments are missing or invalid.
    """
    given = (coordinator_address, num_processes, process_id)
    if any(value is not None for value in given):
        return _given_place(*given)
    return _detected_place(timeout, environ) if detect else None


def _given_place(address, processes, process):
    given = dict(zip(_FLAGS, (address, processes, process), strict=True))
    missing = [f"--{name}" for name, value in given.items() if value is None]
    if missing:
        raise UserError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; every process of a run "
            "needs --coordinator_address=HOST:PORT of process 0, --num_processes and its own --process_id"
        )
    addresses.check(address, "coordinator_address")
    if processes < 1 or not 0 <= process < processes:
        raise UserError(
            f"--process_id={process} of --num_processes={processes}: expected a number from 0 to "
            f"{max(0, processes - 1)}"
        )
    return Place(address, processes, process) if processes > 1 else None


def _detected_place(timeout, environ):
    """Returns the place that JAX's cluster detection finds; None, after a warning, if it fails.

    `jax.distributed.initialize` detects the cluster too, but only as it connects, and could not say which
    processes are missing. A process of a cluster that runs alone by mistake does no harm: the others find the
    work directory in use.
    """
    try:
        with warnings.catch_warnings():
            # JAX warns on every Kubernetes pod that lacks the client package.
            warnings.simplefilter("ignore")
            clusters = importlib.import_module("jax._src.clusters")
            address, processes, process, local = clusters.ClusterEnv.auto_detect_unset_distributed_params(
                None, None, None, None, None, timeout
            )
    except Exception as error:
        signals.print_line(
            f"warning: this process runs alone, as its place in a cluster cannot be determined ({error}); "
            "--coordinator_address, --num_processes and --process_id set it, and --distributed=off sets none"
        )
        return None
    if address is None or not processes or processes == 1:
        return None
    if local is not None and not _shares_devices(processes, environ):
        local = None
    return Place(address, int(processes), int(process), None if local is None else tuple(local))


def _shares_devices(processes: int, environ: Mapping[str, str]) -> bool:
    """Returns whether several processes see all devices of one machine.

    They do not if Slurm gives each process its own device, or starts one process per node.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and len(visible.split(",")) == 1:
        return False
    nodes = environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_NNODES")
    return nodes is None or int(nodes) < processes


def bind_host(coordinator: str, timeout: float = 0.0) -> str:
    """Returns the IP address that process 0 listens on, which is the coordinator's address and no other.

    The /etc/hosts of a machine may map its own name to a loopback address, which other machines cannot reach.
    The result is then the address of the interface that routes to other networks.

    Args:
        coordinator: HOST:PORT of process 0.
        timeout: seconds to wait until the name can be resolved, which takes a while when a cluster starts.

    Raises:
        ClusterError: the name cannot be resolved after `timeout` seconds.
    """
    host, _ = addresses.split(coordinator)
    deadline = time.monotonic() + timeout
    while True:
        try:
            address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
            break
        except OSError as error:
            if time.monotonic() < deadline:
                time.sleep(1.0)
                continue
            raise addresses.unresolved(coordinator, error) from error
    if ipaddress.ip_address(address).is_loopback and host not in ("localhost", address):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outward:
            outward.connect(("192.0.2.1", 9))  # Connecting a UDP socket sends nothing; it selects the route.
            return str(outward.getsockname()[0])
    return address


def start(
    place: Place,
    *,
    bind_address: str | None = None,
    meet_timeout: int = 300,
    heartbeat_timeout: int = 100,
) -> None:
    """Waits for the other processes and starts jax.distributed.

    Call it once, before any other use of JAX's devices.

    Args:
        place: the place of this process.
        bind_address: HOST:PORT that process 0 listens on; by default the coordinator's own address.
        meet_timeout: seconds within which all processes have to connect.
        heartbeat_timeout: seconds without a heartbeat of a process after which the other processes end.

    Raises:
        ClusterError: some processes did not connect; the message names them.
        UserError: the port is in use, or two processes have the same index.
        Preempted: a process received SIGTERM before all had connected.
    """
    if bind_address is None:
        _, port = addresses.split(place.coordinator)
        host = bind_host(place.coordinator, meet_timeout) if place.process == 0 else ""
        bind_address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with _leaving_on_sigterm():
        rendezvous.meet(place.coordinator, place.processes, place.process, bind_address, meet_timeout)
    jax.distributed.initialize(
        place.coordinator,
        place.processes,
        place.process,
        local_device_ids=place.local_devices,
        cluster_detection_method="deactivate",
        initialization_timeout=meet_timeout,
        heartbeat_timeout_seconds=heartbeat_timeout,
        coordinator_bind_address=bind_address,
    )


@contextlib.contextmanager
def _leaving_on_sigterm() -> Iterator[None]:
    def leave(number, frame):
        raise Preempted("stopped before all processes had connected; run the same command to go on")

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def leave(code: int) -> None:
    """Ends this process immediately if it failed and is one of several.

    At a normal exit JAX would wait for the other processes, which in turn wait for this one in a collective.
    An immediate exit lets them notice that it is gone.

    Args:
        code: the exit code. With 0 (success) or 3 (a stop that all processes agreed on), the function
            returns, as it does in a run of one process.
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


def log_of_each(log: Callable[[str], None]) -> Callable[[str], None]:
    """Returns `log` in process 0 of a run, and a function that prints lines to stderr in the others.

    The lines of the others begin with the number of the process.
    """
    if jax.process_index() == 0:
        return log
    return lambda line: signals.print_line(f"{line_prefix()}{line}")


def line_prefix() -> str:
    """Returns "process 1 of 4: " for the lines of process 1 of 4; "" if the run has one process."""
    several = jax.process_count() > 1
    return f"process {jax.process_index()} of {jax.process_count()}: " if several else ""


def is_one_of_several() -> bool:
    """Returns whether jax.distributed has been started in this process."""
    return "jax" in sys.modules and jax.distributed.is_initialized()
