"""Time the train step on synthetic rows or on records, and the data loader alone.

    bert-jax bench --config=pretrain/base --batch_size=8 --seq_length=128
    bert-jax bench --config=pretrain/base --config.data.dir=records --json

It prints the best and the median step, on synthetic rows and, if config.data.dir is set, on records. Rates
are in sequences and tokens without padding. FLOPs are computed from the sizes of the model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import shared
from bert_jax.errors import check_flag
from bert_jax.io import progress
from bert_jax.io.wording import counted
from bert_jax.settings import config_flag
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax.data import loader
    from bert_jax.kernels import dispatch, platform
    from bert_jax.models import config as model_config
    from bert_jax.runs import benchmark, distillation, pretrain
    from bert_jax.settings import pretrain_config
    from bert_jax.training import step as step_module


def define_flags(define: Define) -> None:
    config_flag.add(define, "bench")
    define.integer("batch_size", "Rows per step. Default: the config's.")
    define.integer("seq_length", "Tokens per synthetic row.", 128)
    define.choice(
        "rows",
        ["full", "padded", "packed"],
        "Synthetic rows: full (one full sequence), padded (one short sequence) or packed (several short "
        "sequences).",
        "full",
    )
    define.integer("steps", "Number of steps to time, after two warm-up steps.", 10)
    define.json()


def run(flags: absl_flags.FlagValues, args: list[str]) -> None:
    shared.at_least(flags, steps=1, seq_length=1, batch_size=1)
    if flags.batch_size is not None:
        flags.config.batch_size, flags.config.batch_ramp = flags.batch_size, ""
    config = shared.pretraining_config(flags)
    steps = config.accumulate_steps
    check_flag("config.accumulate_steps", steps, steps, "a number of microbatches to time, such as 1")
    dtype = dispatch.resolve_dtype(config.model.dtype, platform.target())
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, dtype=dtype))
    dataset = None
    if config.data.dir:
        dataset = pretrain.open_training_set(config.data, progress.log)
    result = measure(config, flags.rows, flags.seq_length, flags.steps, dataset)
    print(json.dumps(result, indent=1) if flags.json else report(result))


def measure(
    config: pretrain_config.PretrainConfig, rows: str, length: int, steps: int, dataset: Any = None
) -> dict[str, Any]:
    """Returns a JSON object: `rows`, `config`, `benchmark.environment()`, and times of the train step.

    With a dataset, it also has `train_step_on_records` and `loader`.
    """
    vocab_size = config.model.vocab_size or (
        dataset.vocab_size if dataset else model_config.EncoderConfig.vocab_size
    )
    model = model_config.from_dict(config.model.to_dict() | {"vocab_size": vocab_size})

    def time_steps(batches, length, next_sentence=True):
        masked_lm = benchmark.make_masked_lm(model, length, config.masking.options(length), next_sentence)
        learned = pretrain.make_objective(config, masked_lm, length)
        learned = distillation.read_teacher(
            learned, config.distillation.teacher, pretrain.HEAD, "", progress.log
        )
        objective = pretrain.trainable(config, learned)
        return benchmark.time_train_step(
            masked_lm,
            step_module.TrainSetup.from_config(config, objective),
            batches,
            steps=steps,
            accumulate_steps=config.accumulate_steps,
            seed=config.seed,
            objective=objective,
            log=progress.log,
        )

    copies = config.masking.copies
    batch = benchmark.synthetic_batch(rows, config.batch_size, length, vocab_size, mask_copies=copies)
    result = {"rows": rows, "train_step": time_steps(batch, length)}
    if dataset is not None:
        supply = loader.train_batches(dataset, config.batch_size, config.seed, 0, mask_copies=copies)
        with contextlib.closing(supply) as batches:
            result["train_step_on_records"] = time_steps(
                batches, dataset.max_seq_length, dataset.manifest.get("nsp") != "none"
            )
        progress.log("timing the loader")
        result["loader"] = benchmark.time_loader(dataset, config.batch_size, config.seed)
    return result | benchmark.environment() | {"config": config.to_dict()}


def report(result: dict[str, Any]) -> str:
    """Returns the result of `measure` as text, with the rates of the best and of the median step."""
    model, device, versions = result["config"]["model"], result["device"], result["versions"]
    lines = [
        f"{counted(model['num_hidden_layers'], 'layer')} of {model['hidden_size']}, {model['dtype']}; "
        f"{device['count']} x {device['kind']} ({result['host']['processor']}); jax {versions['jax']}"
    ]
    for name, title in (("train_step", f"{result['rows']} rows"), ("train_step_on_records", "records")):
        if step := result.get(name):
            memory = f", {step['memory_bytes'] / 2**30:.2f} GiB a device" if step["memory_bytes"] else ""
            lines.append(
                f"{title}: {counted(step['rows'], 'row')} of {step['length']}, {step['fill']:.1%} filled; "
                f"compiled in {step['compile_seconds']:.1f} s{memory}"
            )
            for rate in ("sequences_per_second", "tokens_per_second", "model_flops_per_second"):
                lines.append(f"  {rate}: {step[rate]['best']:,.4g} ({step[rate]['median']:,.4g})")
            if share := step["share_of_peak"]:
                lines.append(
                    f"  fraction of the peak of matmuls: {share['best']:.1%} ({share['median']:.1%})"
                )
    if "loader" in result:
        lines.append(f"loader: {result['loader']['tokens_per_second']:,.4g} tokens_per_second")
    return "\n".join(lines)
