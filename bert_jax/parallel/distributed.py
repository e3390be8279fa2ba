"""Several processes as one run: which of them this is, how they meet, and how they end.

On Cloud TPU, GKE, Slurm and Open MPI the environment tells; elsewhere flags do. Before jax.distributed starts
the processes meet at the coordinator's address by a protocol of one line each way, so that a run that cannot
begin says who is missing instead of aborting after the time-out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
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

from bert_jax.errors import ClusterError, Preempted, UserError
from bert_jax.parallel import rendezvous

with epy.lazy_imports():
    import jax

_FLAGS = ("coordinator_address", "num_processes", "process_id")

# Variables of Slurm, Open MPI, Cloud TPU and GKE from which the number of processes can be read.
_CLUSTER_SIZES = (
    "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Place:
    """One process among those of a run.

    Attributes:
      coordinator: HOST:PORT of process 0.
      processes: how many there are; process: which one this is, from 0.
      local_devices: the numbers of the devices that are this process's own on a machine that several share;
        None for all.
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
    """Where this process stands; None when it is alone.

    Args:
      coordinator_address, num_processes, process_id: as given; all three or none.
      detect: look at the environment when none is given.
      timeout: seconds to wait for the coordinator's name to be known.

    Raises:
      UserError: some of the three are missing or wrong, or the environment cannot be read.
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
            f"{' and '.join(missing)} not given; the processes of a run need --coordinator_address=HOST:PORT "
            "of process 0, --num_processes and, each its own, --process_id"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"--coordinator_address={address}: expected HOST:PORT, like 10.0.0.2:8476")
    if processes < 1 or not 0 <= process < processes:
        raise UserError(
            f"--process_id={process} of --num_processes={processes}: expected a number from 0 to "
            f"{max(0, processes - 1)}"
        )
    return Place(address, processes, process) if processes > 1 else None


def _detected_place(timeout, environ):
    """Returns the place that JAX's cluster detection finds.

    The detection has no public name (`jax.distributed.initialize` calls it after connecting), so a JAX that
    moves it must not make the processes of a cluster run alone, each as if it were the only one.
    """
    try:
        clusters = importlib.import_module("jax._src.clusters")
    except ImportError as error:
        several = [name for name in _CLUSTER_SIZES if _is_several(environ.get(name, ""))]
        if several:
            raise UserError(
                f"{several[0]}={environ[several[0]]} says that this process belongs to a cluster, which "
                "this version of JAX cannot detect; give --coordinator_address, --num_processes and "
                "--process_id, or --distributed=off to run alone"
            ) from error
        return None

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on any Kubernetes pod without the client package
            address, processes, process, local = clusters.ClusterEnv.auto_detect_unset_distributed_params(
                None, None, None, None, None, timeout
            )
    except Exception as error:
        raise UserError(
            f"this looks like one process of a cluster, which does not tell its place ({error}); give "
            "--coordinator_address, --num_processes and --process_id, or --distributed=off to run alone"
        ) from error
    if address is None or not processes or processes == 1:
        return None
    if local is not None and not _shares_devices(processes, environ):
        local = None
    return Place(address, int(processes), int(process), None if local is None else tuple(local))


def _is_several(value: str) -> bool:
    """Whether a variable names more than one process: a count, or a list of hosts."""
    return int(value) > 1 if value.isdigit() else "," in value


def _shares_devices(processes: int, environ: Mapping[str, str]) -> bool:
    """Whether several processes see the devices of one machine. Slurm may give each of them its own, or
    start one a node.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and len(visible.split(",")) == 1:
        return False
    nodes = environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_NNODES")
    return nodes is None or int(nodes) < processes


def bind_host(coordinator: str, timeout: float = 0.0) -> str:
    """The address that process 0 listens on: the coordinator's own, and no other interface.

    A machine's name may stand for its loopback address in its own /etc/hosts, where nobody else would find
    it: then the address of its route outwards.

    Raises:
      ClusterError: the name is not known after `timeout` seconds; a cluster's takes a while to be.
    """
    host = coordinator.rpartition(":")[0].strip("[]")
    deadline = time.monotonic() + timeout
    while True:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
            break
        except OSError as error:
            if time.monotonic() < deadline:
                time.sleep(1.0)
                continue
            why = error.strerror or error
            raise ClusterError(
                f"the coordinator's address {coordinator}: {host} is not known here ({why})"
            ) from error
    if ipaddress.ip_address(found).is_loopback and host not in ("localhost", found):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outward:
            outward.connect(("192.0.2.1", 9))  # sends nothing: it asks for the route
            return str(outward.getsockname()[0])
    return str(found)


def start(
    place: Place,
    *,
    bind_address: str | None = None,
    meet_timeout: int = 300,
    heartbeat_timeout: int = 100,
    say: Callable[[str], None] = print,
) -> None:
    """Meets the other processes and starts jax.distributed. Once, before any other use of JAX's devices.

    Args:
      place: of this process.
      bind_address: HOST:PORT that process 0 listens on; by default the coordinator's own address.
      meet_timeout: seconds until all have to be there.
      heartbeat_timeout: seconds after which a process that is no longer heard of ends the others.
      say: gets one line when there is something to wait for.

    Raises:
      ClusterError: some did not come, and which.
      UserError: the port is taken; two have one number.
      Preempted: SIGTERM came to one of them before all were there.
    """
    port = place.coordinator.rpartition(":")[2]
    if bind_address is None:
        host = bind_host(place.coordinator, meet_timeout) if place.process == 0 else ""
        bind_address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    faulthandler.enable()  # what ends a process in C++ leaves the stacks of its threads
    with _leaving_on_sigterm():
        rendezvous.meet(
            place.coordinator, place.processes, place.process, bind_address, meet_timeout, say=say
        )
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
        raise Preempted("stopped before the processes had met; run the same command to go on")

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def leave(code: int) -> None:
    """Ends this process of several at once after a failure.

    JAX would wait at its end for the others, which wait for this one in a collective: they should see that it
    is gone. After success, or a stop that all agreed on, it returns.
    """
    if code in (0, 3) or not is_one_of_several():
        return
    print(f"bert-jax: process {jax.process_index()} of {jax.process_count()} ends", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def log_of_primary(log: Callable[[str], None]) -> Callable[[str], None]:
    """Returns `log` in the first process of a run, and a function that drops its lines in the others."""
    return log if jax.process_index() == 0 else lambda line: None


def is_one_of_several() -> bool:
    """Whether `start` has joined this process to others."""
    if "jax" not in sys.modules:
        return False
    return jax.distributed.is_initialized()
