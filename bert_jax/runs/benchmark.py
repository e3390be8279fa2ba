"""Benchmarks of the train step and the loader, on synthetic rows or on records."""

from __future__ import annotations

import importlib.metadata
import itertools
import platform
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import bert_jax
from bert_jax.convert import families
from bert_jax.data import loader, packed
from bert_jax.io import wording
from bert_jax.kernels import check as kernel_check
from bert_jax.kernels import platform as kernel_platform
from bert_jax.models.config import EncoderConfig
from bert_jax.objectives.base import Objective
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.masking import MaskingOptions, Vocabulary, default_max_predictions
from bert_jax.parallel import device_memory, host, sharding
from bert_jax.training import flops
from bert_jax.training.state import init_state
from bert_jax.training.step import TrainSetup, lower_and_compile

Batch = dict[str, np.ndarray]

# In English Wikipedia with rows of 512 tokens (MLPerf's BERT), 23% of the sequences fill a row, and the mean
# length is half a row. The lengths of the other sequences are sampled uniformly, from 8 tokens up to the
# fraction of the row that gives this mean.
_FULL_SHARE = 0.23
_LONGEST_SHORT = 0.685

_WARM_UP_STEPS = 2
_LOADER_SECONDS = 3.0  # duration of the measurement of the loader


def _draw_lengths(count: int, length: int, rng: np.random.Generator) -> np.ndarray:
    short = rng.integers(8, max(9, int(_LONGEST_SHORT * length)), count)
    return np.where(rng.random(count) < _FULL_SHARE, length, np.minimum(short, length))


def synthetic_batch(rows: str, batch_size: int, length: int, vocab_size: int, mask_copies: int = 0) -> Batch:
    """Returns a batch of random tokens, the same in every call, with the fields of `Dataset.batch`.

    With `rows` "full", a row has one sequence of `length` tokens; with "padded", one sequence with a length
    as in Wikipedia; with "packed", as many such sequences as fit. For `mask_copies`, as in
    `loader.train_batches`, the batch is one of the first epoch.
    """
    rng = np.random.default_rng(0)
    most = packed.default_sequences_per_row(length)
    if rows == "packed":
        # The last rows of a packing are not full. Packing more rows than needed and sampling from them keeps
        # their fraction small.
        lengths = _draw_lengths(4 * batch_size * most, length, rng).tolist()
        by_row = [[lengths[i] for i in row] for row in packed.best_fit(lengths, length, most)]
        random.Random(0).shuffle(by_row)
        by_row = by_row[:batch_size]
    else:
        most = 1
        drawn = _draw_lengths(batch_size, length, rng) if rows == "padded" else np.full(batch_size, length)
        by_row = [[n] for n in drawn.tolist()]
    batch = {
        "input_ids": rng.integers(min(1000, vocab_size // 2), vocab_size, (batch_size, length), np.int32),
        "lengths": np.array([sum(lengths) for lengths in by_row], np.int32),
        "starts": np.full((batch_size, most), length, np.int32),
        "first_lengths": np.zeros((batch_size, most), np.int32),
        "next_sentence_labels": np.full((batch_size, most), -1, np.int32),
        "row_ids": np.arange(batch_size, dtype=np.int32),
    }
    if mask_copies:
        batch["mask_keys"] = loader.mask_keys(batch["row_ids"], np.zeros(batch_size, np.int64), 0)
    for row, lengths in enumerate(by_row):
        count = len(lengths)
        batch["starts"][row, :count] = np.cumsum([0, *lengths[:-1]])
        batch["first_lengths"][row, :count] = np.array(lengths) // 2
        batch["next_sentence_labels"][row, :count] = rng.integers(0, 2, count)
    batch["input_ids"][np.arange(length) >= batch["lengths"][:, None]] = 0
    return batch


def make_masked_lm(
    model: EncoderConfig, length: int, masking: MaskingOptions | None = None, next_sentence: bool = True
) -> MaskedLM:
    """Returns masked LM, with the family's heads and with the special token ids of the released vocabularies.

    Token strings do not matter, so no vocabulary file is needed. By default, `masking` has the number of
    predictions for rows of `length` tokens. Without next-sentence labels, the model has no head for them.
    """
    masking = masking or MaskingOptions(max_predictions=default_max_predictions(length, 0.15))
    continues = np.arange(model.vocab_size) % 4 == 3
    special = (0, min(101, model.vocab_size - 3), min(102, model.vocab_size - 2))
    mask_id = min(103, model.vocab_size - 1)
    family = families.of(model)
    counts = np.ones(model.vocab_size)
    return MaskedLM(
        model,
        Vocabulary(model.vocab_size, mask_id, special, continues, counts=counts),
        masking,
        next_sentence=next_sentence,
        head=family.masked_lm,
        next_sentence_head=next_sentence and "pretraining" in family.heads,
    )


def time_train_step(
    masked_lm: MaskedLM,
    program: TrainSetup,
    batches: Batch | Iterator[Batch],
    *,
    steps: int = 10,
    accumulate_steps: int = 1,
    seed: int = 0,
    objective: Objective | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Compiles the train step and measures the duration of some steps after the warm-up.

    `batches` is one batch, which stays on the devices and is used for every step, or an iterator over
    batches; the next batch is assembled and transferred during a step, as in training. `objective` has the
    masks of `masked_lm`, and may be frozen or adapted; it is masked LM by default.

    Of the result, `seconds` are the durations of the steps. Rates, `tokens_per_second` (without padding),
    `model_flops_per_second` (with padding) and others, are {"best", "median"}, as is `share_of_peak`, or None
    if a step was faster than the measured peak. `fill` is the fraction of tokens that are not padding.
    `peak_flops_per_second` is of all devices, and `memory_bytes` of each device, or None if it is not known.
    """
    kernel_check.ensure(masked_lm.config, log)
    mesh = program.mesh
    supply = iter(batches) if isinstance(batches, Iterator) else itertools.repeat(batches)
    objective = objective or masked_lm
    first = next(supply)
    rows, length = first["input_ids"].shape
    sharding.check_batch_size(rows, mesh, accumulate_steps)
    log(f"compiling the train step for {wording.counted(rows, 'row')} of {length} tokens")
    began = time.perf_counter()
    batch = sharding.global_batch(first, mesh)
    train_step = program.step_with(accumulate_steps)
    step, _ = lower_and_compile(train_step, program.abstract_state, batch, np.uint32(seed))
    compile_seconds = time.perf_counter() - began
    host.keep_activations(step, mesh.size)
    log(
        f"compiled in {compile_seconds:.1f} s; timing {wording.counted(steps, 'step')} after "
        f"{_WARM_UP_STEPS} of warm-up"
    )
    state = init_state(objective, program.optimizer, mesh, seed, program.abstract_state)
    host_batch, seconds, sequences, tokens = first, [], [], []
    for _ in range(_WARM_UP_STEPS + steps):
        sequences.append(np.count_nonzero(host_batch["first_lengths"]))
        tokens.append(host_batch["lengths"].sum())
        began = time.perf_counter()
        state, metrics = step(state, batch, np.uint32(seed))
        following = next(supply)
        if following is not host_batch:  # the same object stays on the devices
            host_batch, batch = following, sharding.global_batch(following, mesh)
        jax.block_until_ready((state, metrics, batch))
        seconds.append(time.perf_counter() - began)
    seconds = seconds[_WARM_UP_STEPS:]
    # Batches of records differ slightly in their numbers of sequences and tokens, so rates use the means.
    per_row, per_step = np.mean(sequences[_WARM_UP_STEPS:]) / rows, np.mean(tokens[_WARM_UP_STEPS:])
    row_flops = flops.row_flops(objective)(length, masked_lm.masking.max_predictions, round(per_row))
    device = mesh.devices.flat[0]
    peak = flops.peak_flops(device, masked_lm.config.dtype) * mesh.size
    memory = step.memory_analysis()

    def rate(amount: float) -> dict[str, float]:
        return {"best": amount / min(seconds), "median": amount / float(np.median(seconds))}

    is_possible = flops.share_of_peak(rate(row_flops * rows)["best"], peak) is not None
    return {
        "sequences_per_second": rate(per_row * rows),
        "tokens_per_second": rate(per_step),
        "model_flops_per_second": rate(row_flops * rows),
        "share_of_peak": rate(row_flops * rows / peak) if is_possible else None,
        "rows": rows,
        "length": length,
        "sequences_per_row": per_row,
        "fill": per_step / (rows * length),
        "peak_flops_per_second": peak,
        "seconds": seconds,
        "compile_seconds": compile_seconds,
        "memory_bytes": device_memory.program_bytes(memory, device.platform) if memory else None,
        "loss": float(metrics["loss"]),
    }


def time_loader(dataset: packed.PackedDataset, batch_size: int, seed: int = 0) -> dict[str, float]:
    """Reads batches for some seconds; returns {"rows_per_second", "tokens_per_second"} without padding."""
    batches = loader.train_batches(dataset, batch_size, seed, 0)
    for _ in range(8):  # fills the read-ahead buffers
        next(batches)
    rows = tokens = 0
    began = time.perf_counter()
    while (took := time.perf_counter() - began) < _LOADER_SECONDS:
        batch = next(batches)
        rows += batch_size
        tokens += int(batch["lengths"].sum())
    batches.close()
    return {"rows_per_second": rows / took, "tokens_per_second": tokens / took}


def environment() -> dict[str, Any]:
    """Returns the devices, the host and the package versions, to be recorded with a result."""
    device = jax.devices()[0]
    names = ("jax", "jaxlib", "flax", "optax", "numpy")
    processor = kernel_platform.processor_fields().get("model name")  # only on Linux
    return {
        "device": {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()},
        "host": {"processor": processor or platform.machine(), "system": platform.platform()},
        "versions": {"bert_jax": bert_jax.__version__, "python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in names},
    }
