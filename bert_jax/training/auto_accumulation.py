"""Resolves `accumulate_steps=0`: the fewest microbatches with which a batch fits into the devices' memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.io.wording import counted
from bert_jax.kernels import check as kernel_check
from bert_jax.objectives.adapters import encoder_config
from bert_jax.objectives.base import Objective
from bert_jax.parallel import device_memory, sharding
from bert_jax.settings.run_config import RunConfig
from bert_jax.training.step import TrainSetup, lower_and_compile
from bert_jax.workdir.run_directory import WorkDir

FIELD = "accumulate_steps"
_GIB = 2.0**30

Config = TypeVar("Config", bound=RunConfig)


def divisors(batch_sizes: Sequence[int], mesh: jax.sharding.Mesh) -> list[int]:
    """Returns the numbers of microbatches into which all of these batches can be divided, ascending."""
    rows = math.gcd(*batch_sizes) // (mesh.shape["data"] * mesh.shape["fsdp"])
    return [number for number in range(1, rows + 1) if rows % number == 0]


def search(
    candidates: Sequence[int], needed_by: Callable[[int], float], fixed: float, limit: float
) -> tuple[int, float]:
    """Returns the fewest microbatches that fit, or the most if none does, and the bytes that they need.

    `needed_by` compiles the program with one of the ascending `candidates` and returns the bytes that it
    needs on each device; infinity if the compiler fails without a figure. `fixed` are the bytes of the
    program's arguments. With more microbatches, the memory beyond these decreases at most in proportion to
    the rows, because gradients take the same space. Numbers of microbatches that cannot fit are not compiled.
    """
    whole_batch = 0.0  # a lower bound of the bytes of one microbatch beyond the fixed ones
    for number in candidates:
        if number < candidates[-1] and fixed + whole_batch / number > limit:
            continue
        needed = needed_by(number)
        if needed <= limit:
            break
        if math.isfinite(needed):
            whole_batch = (needed - fixed) * number
    return number, needed


def choose(
    config: Config,
    objective: Objective,
    workdir: WorkDir,
    largest_batch: Callable[[int], Mapping[str, np.ndarray]],
    log: Callable[[str], None],
    *,
    batch_sizes: Sequence[int] = (),
    limit: float | None = None,
) -> Config:
    """Returns the configuration with `accumulate_steps` resolved, unless it already has a number.

    The number is written to config.json. A resumed run keeps it if it still divides the batches
    (`batch_sizes`, if their rows differ). `largest_batch` maps a number of microbatches to this process's
    rows of the batch of the largest shape. The limit is in bytes of memory of each device, by default the
    value that the devices report. Every process of a run has to call the function, after the run has been
    opened. It raises UserError if a batch does not fit even with one row on each device at a time.
    """
    if config.accumulate_steps:
        return config
    setup = TrainSetup.from_config(config, objective)
    mesh = setup.mesh
    candidates = divisors(batch_sizes or (config.batch_size,), mesh)
    number = (workdir.recorded("config") or {}).get(FIELD, 0)
    if number in candidates:
        log(f"{FIELD}={number}, as at the start of this run")
    elif limit is None and (limit := device_memory.available(mesh)) is None:
        number = 1
        log(f"{FIELD}=1: the devices ({mesh.devices.flat[0].platform}) report no memory limit")
    else:
        if (model := encoder_config(objective)) is not None:
            kernel_check.ensure(model, log)
        number = _fitting(setup, config, candidates, largest_batch, limit, log)
    workdir.record_field(FIELD, number)
    return dataclasses.replace(config, accumulate_steps=number)


def _fitting(
    setup: TrainSetup,
    config: RunConfig,
    candidates: Sequence[int],
    largest_batch: Callable[[int], Mapping[str, np.ndarray]],
    limit: float,
    log: Callable[[str], None],
) -> int:
    mesh, state = setup.mesh, setup.abstract_state

    def needed_by(number: int) -> float:
        batch = sharding.global_batch(largest_batch(number), mesh)
        try:
            program, _ = lower_and_compile(setup.step_with(number), state, batch, np.uint32(config.seed))
        except jax.errors.JaxRuntimeError as error:
            refused = device_memory.parse_out_of_memory(str(error))
            if refused is None and "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return refused.needed if refused else math.inf
        return device_memory.program_bytes(program.memory_analysis(), mesh.devices.flat[0].platform)

    batch = sharding.global_batch(largest_batch(1), mesh)
    batch_bytes = device_memory.bytes_on_device(batch)
    room = limit - batch_bytes  # The next batch is also on the devices.
    number, needed = search(candidates, needed_by, device_memory.bytes_on_device(state) + batch_bytes, room)
    total = next(iter(batch.values())).shape[0] // (mesh.shape["data"] * mesh.shape["fsdp"])
    at_a_time = f"{total // number} of {counted(total, 'row')} at a time on each device"
    memory = f"{(needed + batch_bytes) / _GIB:.2f} of {limit / _GIB:.2f} GiB of memory"
    if needed > room:
        raise UserError(
            f"{FIELD}=0: no number of microbatches fits: {at_a_time} take {memory}; try "
            "--config.model.remat=full or a larger --config.mesh.fsdp"
        )
    log(f"{FIELD}={number}: {at_a_time} take {memory}")
    return number
