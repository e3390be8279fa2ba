"""Chooses the fewest parts in which the gradient of a batch fits into the memory of the devices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.io.wording import counted
from bert_jax.kernels import check as kernel_check
from bert_jax.objectives.adapters import encoder_config
from bert_jax.objectives.base import Objective
from bert_jax.parallel import device_memory
from bert_jax.settings.typed.run_config import RunConfig
from bert_jax.training import compiled_step
from bert_jax.training.compiled_step import Program, Programs
from bert_jax.training.train_program import TrainProgram
from bert_jax.workdir.run_directory import WorkDir

FIELD = "accumulate_steps"
_GIB = 2.0**30

Result = TypeVar("Result")
Config = TypeVar("Config", bound=RunConfig)
Rows = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Attempt(Generic[Result]):
    """What was found out about a number of parts.

    Attributes:
        parts: the number of parts.
        needed: bytes on each device; None if the compiler refuses the program and does not say how many.
        program: the compiled program; None if the compiler refuses it.
    """

    parts: int
    needed: float | None
    program: Result | None

    def fits(self, limit: float) -> bool:
        """Returns whether the program fits into `limit` bytes."""
        return self.program is not None and self.needed is not None and self.needed <= limit


def divisors(batch_sizes: Sequence[int], mesh: jax.sharding.Mesh) -> list[int]:
    """Returns the numbers of parts into which batches of all of these sizes can be divided, ascending."""
    rows = math.gcd(*batch_sizes) // (mesh.shape["data"] * mesh.shape["fsdp"])
    return [parts for parts in range(1, rows + 1) if rows % parts == 0]


def search(
    candidates: Sequence[int], attempt: Callable[[int], Attempt[Result]], fixed: float, limit: float
) -> Attempt[Result]:
    """Returns the attempt with the fewest parts that fits, or that with the most parts if none fits.

    Of the memory that a program needs beyond `fixed`, one with more parts needs at least the proportion of
    its rows: gradients take as much in any number of parts. What cannot fit therefore is not attempted.

    Args:
        candidates: numbers of parts, ascending.
        attempt: compiles the program with a number of parts.
        fixed: bytes that every program needs on each device: its arguments.
        limit: bytes that it may need.
    """
    of_whole_batch = 0.0  # bytes beyond the fixed ones, divided by the parts: at least
    for parts in candidates:
        if parts < candidates[-1] and fixed + of_whole_batch / parts > limit:
            continue
        found = attempt(parts)
        if found.fits(limit):
            break
        if found.needed is not None:
            of_whole_batch = (found.needed - fixed) * parts
    return found


def choose(
    config: Config,
    objective: Objective,
    workdir: WorkDir,
    largest_batch: Callable[[int], Rows],
    log: Callable[[str], None],
    *,
    batch_sizes: Sequence[int] = (),
    limit: float | None = None,
) -> tuple[Config, Programs]:
    """Returns the configuration with the number of parts that `accumulate_steps=0` stands for.

    The number is written to config.json. A run that resumes keeps it, if it still divides the batch. Every
    process of a run has to call the function.

    Args:
        config: the configuration of the run, which is returned if it has a number.
        objective: the training objective.
        workdir: the work directory, whose run has been opened.
        largest_batch: maps a number of parts to this process's rows of the batch of the largest shape.
        log: called with one line that describes the choice.
        batch_sizes: rows of the global batches, if they differ.
        limit: bytes of memory of each device; by default what the devices report.

    Returns:
        The configuration, and the programs that have been compiled for the chosen number of parts.

    Raises:
        UserError: a batch does not fit, even if each part has one row on each device.
    """
    if config.accumulate_steps:
        return config, {}
    program = TrainProgram.of(config, objective)
    mesh = program.mesh
    candidates = divisors(batch_sizes or (config.batch_size,), mesh)
    recorded = (workdir.recorded("config") or {}).get(FIELD, 0)
    programs: Programs = {}
    if recorded in candidates:
        parts = recorded
        log(f"{FIELD}={parts}, as this run was started")
    elif limit is None and (limit := device_memory.available(mesh)) is None:
        parts = 1
        log(f"{FIELD}=1: the devices ({mesh.devices.flat[0].platform}) report no limit of memory")
    else:
        if (model := encoder_config(objective)) is not None:
            kernel_check.ensure(model, log)
        parts, programs = _fitting(program, config, candidates, largest_batch, limit, log)
    workdir.record_field(FIELD, parts)
    return dataclasses.replace(config, accumulate_steps=parts), programs


def _fitting(
    program: TrainProgram,
    config: RunConfig,
    candidates: Sequence[int],
    largest_batch: Callable[[int], Rows],
    limit: float,
    log: Callable[[str], None],
) -> tuple[int, Programs]:
    mesh, state = program.mesh, program.abstract_state
    devices = mesh.shape["data"] * mesh.shape["fsdp"]

    def global_batch(parts):
        return program.placed(largest_batch(parts))

    def attempt(parts):
        batch = global_batch(parts)
        step = program.in_parts(parts)
        return attempted(
            parts,
            mesh.devices.flat[0].platform,
            lambda: compiled_step.lower_and_compile(step, state, batch, np.uint32(config.seed)),
        )

    of_batch = device_memory.bytes_on_device(global_batch(1))
    room = limit - of_batch  # The next batch is on the devices, too.
    found = search(candidates, attempt, device_memory.bytes_on_device(state) + of_batch, room)
    batch = global_batch(found.parts)
    total = next(iter(batch.values())).shape[0] // devices
    at_a_time = f"{total // found.parts} of {counted(total, 'row')} at a time on each device"
    needed = "more than" if found.needed is None else f"{(found.needed + of_batch) / _GIB:.2f} of"
    memory = f"{needed} {limit / _GIB:.2f} GiB of memory"
    if not found.fits(room):
        raise UserError(
            f"{FIELD}=0: a batch does not fit into the devices in any number of parts: {at_a_time} take "
            f"{memory}; try --config.model.remat=full, shorter rows, a smaller model, or more devices along "
            "--config.mesh.fsdp"
        )
    log(f"{FIELD}={found.parts}: {at_a_time} take {memory}")
    assert found.program is not None
    return found.parts, {compiled_step.shape_key(batch): found.program}


def attempted(parts: int, platform: str, compile_: Callable[[], Program]) -> Attempt[Program]:
    """Returns the attempt to compile a program; one that the compiler refuses for its memory does not fit."""
    try:
        program = compile_()
    except jax.errors.JaxRuntimeError as error:
        refused = device_memory.parse_out_of_memory(str(error))
        if refused is None and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return Attempt(parts, refused.needed if refused else None, None)
    return Attempt(parts, device_memory.program_bytes(program[0].memory_analysis(), platform), program)
