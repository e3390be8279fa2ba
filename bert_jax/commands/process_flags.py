"""The flags of a run of several processes, and its start."""

from __future__ import annotations

from typing import Any

from absl import flags as absl_flags
from etils import epy

from bert_jax.errors import UserError
from bert_jax.parallel import distributed

with epy.lazy_imports():
    from bert_jax.training.metrics import profiling


# Default for runs with several processes. A single process at a terminal may be suspended for any time.
_STALL_TIMEOUT = 900.0


def define_process_flags(flag_values: absl_flags.FlagValues) -> None:
    """Who and where the processes are, how long they wait for each other, and --profile_steps."""
    absl_flags.DEFINE_string(
        "profile_steps",
        "",
        "FIRST:LAST: a trace of these steps for xprof goes to WORKDIR/profile.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_enum(
        "distributed",
        "auto",
        ["auto", "off"],
        "auto: one of several processes where Cloud TPU, GKE, Slurm or Open MPI say so; off: alone.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_string(
        "coordinator_address",
        None,
        "HOST:PORT of process 0, where the environment does not tell; private, for nothing is encrypted.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_integer(
        "num_processes", None, "How many processes the run has.", flag_values=flag_values
    )
    absl_flags.DEFINE_integer("process_id", None, "Which of them this is, from 0.", flag_values=flag_values)
    absl_flags.DEFINE_string(
        "coordinator_bind_address",
        None,
        "HOST:PORT that process 0 listens on, where it is not the coordinator's address.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_integer(
        "meet_timeout", 300, "Seconds until all processes have to be there.", flag_values=flag_values
    )
    absl_flags.DEFINE_integer(
        "heartbeat_timeout",
        100,
        "Seconds after which a process that died or is stopped ends the others.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_float(
        "stall_timeout",
        None,
        "Seconds without a step after which a process ends itself with the stacks of its threads; 0 for "
        f"never. Default: {_STALL_TIMEOUT:g} with several processes, else 0.",
        flag_values=flag_values,
    )


def start_processes(flags: absl_flags.FlagValues) -> dict[str, Any]:
    """Joins the other processes of the run, if there are any.

    Returns:
        What `train.fit` is told by flags: `stall_timeout` and `profile_steps`.

    Raises:
        UserError, ClusterError, Preempted: as `distributed.start`.
    """
    profile_steps = profiling.parse_steps(flags.profile_steps)
    for name in ("meet_timeout", "heartbeat_timeout"):
        if flags[name].value < 1:
            raise UserError(f"--{name}={flags[name].value}: expected 1 second or more")
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
