"""Estimate memory, FLOPs and traffic on TPUs or GPUs that you do not have, and for TPUs time and cost.

    bert-jax estimate --config=pretrain/base --topology=v5e:4x4
    bert-jax estimate --config=pretrain/large --topology=v4:8x8x8 --config.mesh.fsdp=8 --json
    bert-jax estimate --config=pretrain/base_gpu:8 --topology=h100:8

The command compiles the train step for these devices with their compiler (pip install '.[estimate]' in the
clone for TPUs, '.[estimate-gpu]' for NVIDIA GPUs) and analyzes the program. It runs nothing, so all figures
are estimates. For GPUs, it gives only bounds of the step time.
"""

import functools
import json
import os
from typing import Any

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import shared
from bert_jax.io import progress, scratch
from bert_jax.settings import config_flag
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax.estimate import hardware, measure, program


def define_flags(define: Define) -> None:
    config_flag.add(define, "estimate")
    define.string(
        "topology",
        "TPU and slice shape (v4:8x8x8, v5e:4x4, v5p:4x4x4, v6e:16x16, tpu7x:2x2x1), or GPU and "
        "number, 8 per host (a100:8, h100:8, h200:8).",
        required="CHIP:SHAPE for TPUs, such as v5e:4x4, or GPU:NUMBER, such as h100:8",
    )
    define.integer("slices", "Number of TPU slices.", 1)
    define.integer(
        "seq_length",
        "Tokens per row if config.data.dir is not set. Default: the model's number of positions.",
    )
    define.number(
        "price_per_chip_hour", "Price of a TPU chip per hour, in any currency, to print the cost of the run."
    )
    define.json()


def run(flags: absl_flags.FlagValues, args: list[str]) -> None:
    shared.at_least(flags, slices=1, seq_length=1, price_per_chip_hour=0)
    chips = hardware.parse_topology(flags.topology, flags.slices)
    if isinstance(chips, hardware.Hosts):  # their step time is not estimated
        shared.check_unused(flags, ["price_per_chip_hour"], "GPUs")
    if flags.config.data.dir:
        shared.check_unused(flags, ["seq_length"], "--config.data.dir")
    with scratch.directory() as schedules:
        chips.prepare(schedules)  # before jax is imported
        result = _estimate(flags, chips, schedules)
    print(json.dumps(result, indent=1) if flags.json else "\n".join(measure.lines(result)))


def _estimate(flags: absl_flags.FlagValues, chips: Any, schedules: str) -> dict[str, Any]:
    on_gpus = isinstance(chips, hardware.Hosts)
    config = shared.pretraining_config(flags)
    if config.data.dir:
        rows = program.rows_of_records(config, progress.log)
    else:
        rows = program.synthetic_rows(config, flags.seq_length)
    # On GPUs, jax takes this fraction of the memory; on TPUs, all of it.
    fraction = float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", 0.75))
    limit = fraction * chips.chip.hbm_bytes if on_gpus else None
    make = functools.partial(
        program.TrainStep,
        rows=rows,
        devices=chips.devices(),
        compiler_options=hardware.GPU_COMPILER_OPTIONS if on_gpus else None,
        schedules="" if on_gpus else schedules,
        memory_limit=limit,
        log=progress.log,
    )
    if config.accumulate_steps:
        step = make(config)
    else:
        step = program.with_auto_accumulation(config, make, limit or chips.chip.hbm_bytes)
    return measure.estimate(step, chips, price=flags.price_per_chip_hour)
