"""Compiles the train step of a pre-training config for devices that need not be attached."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from bert_jax.data import loader
from bert_jax.estimate import costs
from bert_jax.io import files
from bert_jax.io.wording import counted
from bert_jax.kernels import dispatch, platform
from bert_jax.models.config import EncoderConfig, from_dict
from bert_jax.parallel import sharding
from bert_jax.parallel.device_memory import DoesNotFit, bytes_on_device, parse_out_of_memory
from bert_jax.runs import benchmark, pretrain
from bert_jax.settings.pretrain_config import PretrainConfig
from bert_jax.training import auto_accumulation, flops
from bert_jax.training.step import TrainSetup


@dataclasses.dataclass(frozen=True)
class Rows:
    """Contents of a batch: the arrays of some rows, for their shapes and dtypes, and means per row."""

    arrays: Mapping[str, np.ndarray]
    length: int
    sequences: float  # mean per row
    fill: float  # fraction of the length that is real tokens
    vocab_size: int
    max_predictions: int  # for rows that already have masks; else 0
    source: str
    next_sentence: bool = True  # whether there are next-sentence labels


def synthetic_rows(config: PretrainConfig, length: int | None) -> Rows:
    """Returns full rows of one sequence each, of the model's positions if `length` is None, as if packed."""
    positions = config.model.max_position_embeddings - config.model.position_offset
    length = length or positions
    vocab_size = config.model.vocab_size or EncoderConfig.vocab_size
    # These rows have one sequence, but rows of records have room for several.
    batch = benchmark.synthetic_batch("packed", 1, length, vocab_size, mask_copies=config.masking.copies)
    return Rows(batch, length, 1.0, 1.0, vocab_size, 0, "full rows of one sequence, no records given")


def rows_of_records(config: PretrainConfig, log: Callable[[str], None]) -> Rows:
    """Returns the rows of `data.dir`, with the means in its manifest."""
    dataset = pretrain.open_training_set(config.data, log)
    split = dataset.manifest["splits"][pretrain.TRAIN]
    first = np.zeros(1, np.int64)
    batch = dataset.batch(first)
    if config.masking.copies:
        batch["mask_keys"] = loader.mask_keys(first, first, config.seed)
    return Rows(
        arrays=batch,
        length=dataset.max_seq_length,
        sequences=split["sequences"] / len(dataset),
        fill=split.get("fill", 1.0),
        vocab_size=config.model.vocab_size or dataset.vocab_size,
        max_predictions=getattr(dataset, "max_predictions", 0),
        source=f"records in {config.data.dir}",
        next_sentence=dataset.manifest.get("nsp") != "none",
    )


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program that fits into memory.

    `memory` is in bytes per chip: parameters, optimizer, batch, temporary (peak size of activations,
    gradients and everything else within a step), program, padding (of the tiles of arguments), total.
    """

    text: str
    memory: dict[str, float]
    bundles: dict[str, int] = dataclasses.field(default_factory=dict)  # see `costs.read_schedules`


class TrainStep:
    """The step that `bert-jax pretrain` runs for a config, on a mesh of given devices.

    Special token ids, which are constants in the program, are from the released vocabularies. `schedules` is
    the folder of `hardware.Slices.prepare`. A program that needs more than `memory_limit` bytes per chip does
    not fit; None if the compiler raises an error for such programs. `log` gets a line before each
    compilation. UserError if the mesh of the config does not fit the devices.
    """

    def __init__(
        self,
        config: PretrainConfig,
        rows: Rows,
        devices: list[Any],
        *,
        compiler_options: dict[str, Any] | None = None,
        schedules: str = "",
        memory_limit: float | None = None,
        log: Callable[[str], None] = lambda line: None,
    ):
        self.config, self.rows, self._log = config, rows, log
        self._compiled: dict[int, Compiled | DoesNotFit] = {}  # by batch size
        self.attention: list[dispatch.Choice] = []  # of compiled steps
        self._compiler_options, self.memory_limit = compiler_options, memory_limit
        self._schedules = schedules
        self.model = from_dict(config.model.to_dict() | {"vocab_size": rows.vocab_size})
        masking = config.masking.options(rows.length)
        if rows.max_predictions:
            masking = dataclasses.replace(masking, max_predictions=rows.max_predictions)
        self.predictions = rows.length if config.objective == "causal_lm" else masking.max_predictions
        self.model = self.model.resolve(platform.target_of(devices[0]))
        masked_lm = benchmark.make_masked_lm(self.model, rows.length, masking, rows.next_sentence)
        learned = pretrain.make_objective(config, masked_lm, rows.length)
        task = pretrain.trainable(config, learned)
        program = TrainSetup.from_config(config, task, devices)
        self.mesh, self.state = program.mesh, program.abstract_state
        self._flops = flops.row_flops(task)
        self._step: Any = program.step_with(config.accumulate_steps)

    @property
    def row_flops(self) -> float:
        """Returns the model's FLOPs per row, by formula; see `flops.row_flops`."""
        return self._flops(self.rows.length, self.predictions, math.ceil(self.rows.sequences))

    @property
    def unit(self) -> int:
        """Returns the number that batch sizes are multiples of."""
        return self.mesh.shape["data"] * self.mesh.shape["fsdp"] * self.config.accumulate_steps

    def rows_per_chip(self, batch_size: int) -> int:
        """Returns the rows per chip; tensor parallel chips count all the rows that they share."""
        return batch_size // (self.mesh.shape["data"] * self.mesh.shape["fsdp"])

    def compile(self, batch_size: int) -> Compiled | DoesNotFit:
        """Compiles the step for `batch_size` rows over all chips, once."""
        if batch_size not in self._compiled:
            steps = self.config.accumulate_steps
            sharding.check_batch_size(batch_size, self.mesh, steps)
            parts = counted(steps, "microbatch", "microbatches")
            self._log(f"compiling for {counted(batch_size, 'row')} in {parts}")
            found = self._compile(batch_size)
            limit = self.memory_limit or math.inf
            if isinstance(found, Compiled) and found.memory["total"] > limit:
                found = DoesNotFit(found.memory["total"], limit)
            self._compiled[batch_size] = found
        return self._compiled[batch_size]

    def _compile(self, batch_size: int) -> Compiled | DoesNotFit:
        batch = self._batch(batch_size)
        if self._schedules:  # removes the schedules of the previous program
            files.remove_tree(self._schedules)
            files.make_directory(self._schedules)
        try:
            with dispatch.record() as self.attention:
                lowered = self._step.lower(self.state, batch, np.uint32(self.config.seed))
            compiled = lowered.compile(self._compiler_options)
        except jax.errors.JaxRuntimeError as error:
            needed = parse_out_of_memory(str(error))
            if needed is None:
                raise
            return needed
        memory = self._memory(compiled.memory_analysis(), batch)
        bundles = costs.read_schedules(self._schedules) if self._schedules else {}
        return Compiled(compiled.as_text(), memory, bundles)

    def _batch(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        where = sharding.batch_sharding(self.mesh)
        return {
            name: jax.ShapeDtypeStruct((batch_size, *rows.shape[1:]), rows.dtype, sharding=where)
            for name, rows in self.rows.arrays.items()
        }

    def argument_bytes(self, batch_size: int) -> float:
        """Returns the bytes of the train state and of a batch on each chip."""
        return bytes_on_device((self.state, self._batch(batch_size)))

    def _memory(self, analysis: Any, batch: dict[str, Any]) -> dict[str, float]:
        parts = {
            "parameters": bytes_on_device((self.state.params, self.state.frozen)),
            "optimizer": bytes_on_device(self.state.opt_state),
            "batch": bytes_on_device(batch),
        }
        arguments = analysis.argument_size_in_bytes
        parts |= {
            "padding": max(0.0, arguments - sum(parts.values())),
            # Memory in use at the same time: the sum of all temporary buffers can exceed the chip's memory
            # for a program that the compiler accepts.
            "temporary": max(0.0, analysis.peak_memory_in_bytes - arguments),
            "program": analysis.generated_code_size_in_bytes,
        }
        return parts | {"total": sum(parts.values())}


def with_auto_accumulation(
    config: PretrainConfig, make: Callable[[PretrainConfig], TrainStep], limit: float
) -> TrainStep:
    """Returns the compiled step with the fewest microbatches that fits, as `accumulate_steps=0` chooses it.

    If none fits into `limit` bytes per chip, it is the step with the most microbatches.
    """
    steps: dict[int, TrainStep] = {}

    def needed_by(number: int) -> float:
        steps[number] = make(dataclasses.replace(config, accumulate_steps=number))
        found = steps[number].compile(config.batch_size)
        return found.needed if isinstance(found, DoesNotFit) else found.memory["total"]

    whole = make(dataclasses.replace(config, accumulate_steps=1))
    candidates = auto_accumulation.divisors(config.batch_sizes.values, whole.mesh)
    fixed = whole.argument_bytes(config.batch_size)
    return steps[auto_accumulation.search(candidates, needed_by, fixed, limit)[0]]
