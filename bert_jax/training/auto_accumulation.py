"""Resolves `accumulate_steps=0`: the fewest microbatches with which a batch fits into the devices' memory."""

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
from bert_jax.parallel import device_memory, sharding
from bert_jax.settings.run_config import RunConfig
from bert_jax.training.step import Program, Programs, TrainSetup, lower_and_compile, shape_key
from bert_jax.workdir.run_directory import WorkDir

FIELD = "accumulate_steps"
_GIB = 2.0**30

Result = TypeVar("Result")
Config = TypeVar("Config", bound=RunConfig)


@dataclasses.dataclass(frozen=True)
class CompileResult(Generic[Result]):
    """The memory that a number of microbatches needs.

    Attributes:
        microbatches: their number.
        needed: bytes on each device; None if the compiler refuses the program without a figure.
        program: the compiled program; None if the compiler refuses it.
    """

    microbatches: int
    needed: float | None
    program: Result | None

    def fits(self, limit: float) -> bool:
        """Whether the program fits into `limit` bytes."""
        return self.program is not None and self.needed is not None and self.needed <= limit


def divisors(batch_sizes: Sequence[int], mesh: jax.sharding.Mesh) -> list[int]:
    """Returns the numbers of microbatches into which all of these batches can be divided, ascending."""
    rows = math.gcd(*batch_sizes) // (mesh.shape["data"] * mesh.shape["fsdp"])
    return [number for number in range(1, rows + 1) if rows % number == 0]


def search(
    candidates: Sequence[int], attempt: Callable[[int], CompileResult[Result]], fixed: float, limit: float
) -> CompileResult[Result]:
    """Returns the result with the fewest microbatches that fits, or the one with the most if none fits.

    Of the memory that a program needs beyond `fixed`, one with more microbatches needs at least the
    proportion of its rows, because gradients take the same. Numbers that cannot fit are not compiled.

    Args:
        candidates: numbers of microbatches, ascending.
        attempt: compiles the program with a number of microbatches.
        fixed: bytes that every program needs on each device: its arguments.
        limit: bytes that it may need.
    """
    whole_batch = 0.0  # a lower bound of the bytes of one microbatch beyond the fixed ones
    for number in candidates:
        if number < candidates[-1] and fixed + whole_batch / number > limit:
            continue
        result = attempt(number)
        if result.fits(limit):
            break
        if result.needed is not None:
            whole_batch = (result.needed - fixed) * number
    return result


def choose(
    config: Config,
    objective: Objective,
    workdir: WorkDir,
    largest_batch: Callable[[int], Mapping[str, np.ndarray]],
    log: Callable[[str], None],
    *,
    batch_sizes: Sequence[int] = (),
    limit: float | None = None,
) -> tuple[Config, Programs]:
    """Returns the configuration with `accumulate_steps` resolved.

    The number is written to config.json. A run that resumes keeps it, if it still divides the batch. Every
    process of a run has to call the function.

    Args:
        config: the configuration of the run, which is returned if it has a number.
        objective: the training objective.
        workdir: the work directory, whose run has been opened.
        largest_batch: maps a number of microbatches to this process's rows of the batch of the largest shape.
        log: called with one line that describes the choice.
        batch_sizes: rows of the global batches, if they differ.
        limit: bytes of memory of each device; by default what the devices report.

    Returns:
        The configuration, and the programs that have been compiled for the chosen number.

    Raises:
        UserError: a batch does not fit, even if each microbatch has one row on each device.
    """
    if config.accumulate_steps:
        return config, {}
    setup = TrainSetup.from_config(config, objective)
    mesh = setup.mesh
    candidates = divisors(batch_sizes or (config.batch_size,), mesh)
    recorded = (workdir.recorded("config") or {}).get(FIELD, 0)
    programs: Programs = {}
    if recorded in candidates:
        number = recorded
        log(f"{FIELD}={number}, as this run was started")
    elif limit is None and (limit := device_memory.available(mesh)) is None:
        number = 1
        log(f"{FIELD}=1: the devices ({mesh.devices.flat[0].platform}) report no limit of memory")
    else:
        if (model := encoder_config(objective)) is not None:
            kernel_check.ensure(model, log)
        number, programs = _fitting(setup, config, candidates, largest_batch, limit, log)
    workdir.record_field(FIELD, number)
    return dataclasses.replace(config, accumulate_steps=number), programs


def _fitting(
    setup: TrainSetup,
    config: RunConfig,
    candidates: Sequence[int],
    largest_batch: Callable[[int], Mapping[str, np.ndarray]],
    limit: float,
    log: Callable[[str], None],
) -> tuple[int, Programs]:
    mesh, state = setup.mesh, setup.abstract_state
    devices = mesh.shape["data"] * mesh.shape["fsdp"]

    def attempt(number):
        batch, step = sharding.global_batch(largest_batch(number), mesh), setup.step_with(number)
        platform = mesh.devices.flat[0].platform
        return try_to_compile(
            number, platform, lambda: lower_and_compile(step, state, batch, np.uint32(config.seed))
        )

    batch_bytes = device_memory.bytes_on_device(sharding.global_batch(largest_batch(1), mesh))
    room = limit - batch_bytes  # The next batch is on the devices, too.
    result = search(candidates, attempt, device_memory.bytes_on_device(state) + batch_bytes, room)
    batch = sharding.global_batch(largest_batch(result.microbatches), mesh)
    total = next(iter(batch.values())).shape[0] // devices
    at_a_time = f"{total // result.microbatches} of {counted(total, 'row')} at a time on each device"
    needed = "more than" if result.needed is None else f"{(result.needed + batch_bytes) / _GIB:.2f} of"
    memory = f"{needed} {limit / _GIB:.2f} GiB of memory"
    if not result.fits(room):
        raise UserError(
            f"{FIELD}=0: a batch does not fit into the devices in any number of microbatches: {at_a_time} "
            f"take {memory}; try --config.model.remat=full, shorter rows, a smaller model, or more devices "
            "along --config.mesh.fsdp"
        )
    log(f"{FIELD}={result.microbatches}: {at_a_time} take {memory}")
    assert result.program is not None
    return result.microbatches, {shape_key(batch): result.program}


def try_to_compile(number: int, platform: str, compile_: Callable[[], Program]) -> CompileResult[Program]:
    """Compiles a program. If the compiler refuses it for lack of memory, the result does not fit."""
    try:
        program = compile_()
    except jax.errors.JaxRuntimeError as error:
        refused = device_memory.parse_out_of_memory(str(error))
        if refused is None and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return CompileResult(number, refused.needed if refused else None, None)
    return CompileResult(number, device_memory.program_bytes(program[0].memory_analysis(), platform), program)
