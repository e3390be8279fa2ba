"""Estimate memory, FLOPs and traffic of a run on TPUs or GPUs that you do not have; for TPUs time and cost.

    bert-jax estimate --config=pretrain/base --topology=v5e:4x4
    bert-jax estimate --config=pretrain/large --topology=v4:8x8x8 --config.mesh.fsdp=8 --json
    bert-jax estimate --config=pretrain/base_gpu:8 --topology=h100:8

Compiles the train step of the config for the named devices, with their own compiler (pip install
'.[estimate]' in the clone for TPUs, '.[estimate-gpu]' for NVIDIA GPUs), and reads the figures off the
program. They are estimates: nothing is run. For GPUs there is no step time, only its bounds.
"""

from __future__ import annotations

import json
import sys

from absl import flags as absl_flags
from etils import epy

from bert_jax.errors import UserError
from bert_jax.settings import config_fields, config_files

with epy.lazy_imports():
    from bert_jax.estimate import measure, program, report
    from bert_jax.estimate.chips import gpu_topology, gpus, tpu_topology, tpus
    from bert_jax.runs import pretrain


# Fraction of a GPU's memory that jax takes by default.
_MEMORY_FRACTION = 0.75


def define_flags(flag_values: absl_flags.FlagValues) -> None:
    config_files.define_flag(flag_values, "estimate", "The run, such as pretrain/base.")
    absl_flags.DEFINE_string(
        "topology",
        None,
        "Chip and sides of a slice: v4:8x8x8, v5e:4x4, v5p:4x4x4, v6e:16x16; or GPU and number of them: "
        "a100:8, h100:8, h200:8, b200:8, 8 a host.",
        flag_values=flag_values,
    )  # fmt: skip
    absl_flags.DEFINE_integer("slices", 1, "Slices of that shape, of TPUs.", flag_values=flag_values)
    absl_flags.DEFINE_float(
        "memory_fraction",
        None,
        "Of GPUs: the share of the memory that the run will take, as it does by the environment variable "
        f"XLA_PYTHON_CLIENT_MEM_FRACTION. Default: {_MEMORY_FRACTION}.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_integer(
        "seq_length",
        None,
        "Tokens a row, where no config.data.dir tells. Default: the model's positions.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_bool(
        "largest_batch",
        False,
        "Also find the largest batch that fits, by compiling for several.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_float(
        "price_per_chip_hour",
        None,
        "In any currency: also say what the run costs, on TPUs.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_bool("json", False, "Print JSON, for machines.", flag_values=flag_values)


def run(flags, args: list[str]) -> int:
    if args:
        raise UserError(f"estimate takes no arguments besides its flags, but was given {args[0]!r}")
    if flags.config is None:
        raise UserError("what to estimate? give --config=pretrain/SIZE; `bert-jax configs` lists them")
    if not flags.topology:
        raise UserError(
            f"for which devices? give --topology=CHIP:SHAPE, like {tpus.EXAMPLES}, or "
            f"--topology=GPU:NUMBER, like {gpus.EXAMPLES}"
        )
    slices = tpus.parse_topology(flags.topology, flags.slices)
    on_gpus = isinstance(slices, gpus.Hosts)
    if flags.price_per_chip_hour is not None and on_gpus:
        raise UserError("--price_per_chip_hour is for TPUs: of GPUs the time of a step is not known")
    if flags.memory_fraction is not None and not on_gpus:
        raise UserError("--memory_fraction is for GPUs: a run on TPUs takes all of their memory")
    fraction = _MEMORY_FRACTION if flags.memory_fraction is None else flags.memory_fraction
    if not 0 < fraction <= 1:
        raise UserError(f"--memory_fraction={fraction} must be more than 0 and at most 1")
    for name in ("seq_length", "price_per_chip_hour"):
        if flags[name].value is not None and flags[name].value <= 0:
            raise UserError(f"--{name}={flags[name].value} must be more than 0")
    config = flags.config
    if config.data.dir and flags.seq_length is not None:
        raise UserError("--seq_length is for rows without records: leave it, or config.data.dir, out")
    compiler = gpu_topology if on_gpus else tpu_topology
    compiler.prepare()  # before jax is imported
    config_fields.check_pretraining(config)
    if adopted := pretrain.adopt_architecture(config, config_files.overridden(flags, "model")):
        _say(adopted)
    if config.data.dir:
        rows = program.rows_of_records(config, _say)
    else:
        rows = program.synthetic_rows(config, flags.seq_length)
    step = program.TrainStep(
        config,
        rows,
        compiler.devices(slices),
        compiler_options=gpu_topology.COMPILER_OPTIONS if on_gpus else None,
        memory_limit=fraction * slices.chip.hbm_bytes if on_gpus else None,
    )
    result = measure.estimate(
        step, slices, find_largest=flags.largest_batch, price=flags.price_per_chip_hour, log=_say
    )
    result |= {"versions": compiler.versions()}
    print(json.dumps(result, indent=1) if flags.json else "\n".join(report.lines(result)))
    return 0


def _say(line: str) -> None:
    """Prints progress to standard error, because standard output is for the result only."""
    print(line, file=sys.stderr, flush=True)
