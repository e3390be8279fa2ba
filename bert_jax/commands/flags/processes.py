"""The flags of a run of several processes, and its start."""

from __future__ import annotations

from typing import Any

from absl import flags as absl_flags
from etils import epy

from bert_jax.errors import UserError
from bert_jax.parallel import addresses, distributed
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax.training.metrics import profiling


# Default for runs with several processes. A single process at a terminal may be suspended for any time.
_STALL_TIMEOUT = 900.0


def add(define: Define) -> None:
    """Defines how many processes there are, how they find each other and how long they wait."""
    define.string(
        "profile_steps",
        "FIRST:LAST: write a profile of these steps for xprof to WORKDIR/profile.",
        "",
    )
    define.choice(
        "distributed",
        ["auto", "off"],
        "auto: join the other processes of the job if Cloud TPU, GKE, Slurm or Open MPI started several; "
        "off: run as a single process.",
        "auto",
    )
    define.string(
        "coordinator_address",
        "HOST:PORT of process 0, if the environment does not contain it. The connection is not encrypted, so "
        "it has to be a private network.",
    )
    define.integer("num_processes", "Number of processes of the run.")
    define.integer("process_id", "Number of this process, from 0.")
    define.string(
        "coordinator_bind_address",
        "HOST:PORT on which process 0 listens. Default: the coordinator's address.",
    )
    define.integer("meet_timeout", "Seconds to wait at the start until all processes have connected.", 300)
    define.integer(
        "heartbeat_timeout",
        "Seconds without a sign of life from a process after which the others end.",
        100,
    )
    define.number(
        "stall_timeout",
        "Seconds without a step after which a process prints the stacks of its threads and ends; 0: never. "
        f"Default: {_STALL_TIMEOUT:g} with several processes, else 0.",
    )


def start(flags: absl_flags.FlagValues) -> dict[str, Any]:
    """Joins the other processes of the run, if there are any.

    Returns:
        The arguments of `train.fit` that flags set: `stall_timeout` and `profile_steps`.

    Raises:
        UserError, ClusterError, Preempted: see `distributed.start`; UserError, too, if a flag is not valid.
    """
    profile_steps = profiling.parse_steps(flags.profile_steps)
    for name in ("meet_timeout", "heartbeat_timeout"):
        if getattr(flags, name) < 1:
            raise UserError(f"--{name}={flags[name].value}: expected 1 second or more")
    if flags.coordinator_bind_address is not None:
        addresses.check(flags.coordinator_bind_address, "coordinator_bind_address")
    place = distributed.find_place(
        flags.coordinator_address,
        flags.num_processes,
        flags.process_id,
        detect=flags.distributed == "auto",
        timeout=flags.meet_timeout,
    )
    if place is not None:
        distributed.start(
            place,
            bind_address=flags.coordinator_bind_address,
            meet_timeout=flags.meet_timeout,
            heartbeat_timeout=flags.heartbeat_timeout,
        )
    default = 0.0 if place is None else _STALL_TIMEOUT
    stall_timeout = default if flags.stall_timeout is None else flags.stall_timeout
    return {"stall_timeout": stall_timeout, "profile_steps": profile_steps}
