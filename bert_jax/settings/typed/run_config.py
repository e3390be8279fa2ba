"""What the configurations of pre-training and of fine-tuning have in common.

Config files are ml_collections, which `bert_jax.settings.defaults` makes from these classes. A run converts
its config once, by `pretrain_config.pretraining` or by `bert_jax.tasks.fields.finetuning`, and passes on the
dataclass.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from bert_jax.settings.config_fields import Part, amount, free, option
from bert_jax.settings.typed import adapter_config, distillation_config
from bert_jax.settings.typed.adapter_config import AdapterConfig
from bert_jax.settings.typed.distillation_config import DistillationConfig
from bert_jax.settings.typed.masking_config import ReplacedTokensConfig
from bert_jax.settings.typed.model_config import ModelConfig
from bert_jax.settings.typed.optimizer_config import SCHEDULE_FIELDS, WITHOUT_END, OptimizerConfig

# Upper bounds that no real run reaches prevent a typing mistake from causing an overflow or a request for all
# of the machine's memory.


@dataclasses.dataclass(frozen=True)
class SpikesConfig(Part):
    """Which steps are skipped because of their loss."""

    factor: float = amount(
        0.0,
        "a step is a spike, and skipped, if its loss is above this many times the median of the last 128 "
        "accepted steps; 0 for no such rule",
    )


@dataclasses.dataclass(frozen=True)
class MeshConfig(Part):
    """How the devices are divided."""

    data: int = free(
        -1,
        "devices among which the batch is split; one of the three may be -1, all other devices",
        minimum=-1,
        maximum=2**20,
    )
    fsdp: int = free(
        1, "devices among which the batch and the parameters are split", minimum=-1, maximum=2**20
    )
    tensor: int = free(1, "devices among which each matrix product is split", minimum=-1, maximum=2**20)


@dataclasses.dataclass(frozen=True)
class CheckpointConfig(Part):
    """When checkpoints are saved, and which of them stay."""

    every: int = free(
        1000,
        "steps between two checkpoints; 0: at the end alone. A change has no effect on what is computed, "
        "unless a run goes back to one of them after `max_skipped_steps`",
    )
    keep: int = free(
        3,
        "number of newest checkpoints to keep. A change has the same effect as one of `checkpoint.every`",
        minimum=1,
    )
    keep_every: int = free(0, "checkpoints of multiples of this step stay too; 0: none")


@dataclasses.dataclass(frozen=True)
class EvalConfig(Part):
    """When a run is evaluated."""

    every: int = free(
        1000, "steps between two evaluations; 0: at the end alone, in fine-tuning once an epoch"
    )


@dataclasses.dataclass(frozen=True)
class BudgetConfig(Part):
    """What a run may spend; the schedule follows the share that has been spent."""

    hours: float = option(
        0.0,
        "hours of training after which the run ends, over all of its starts; 0: it ends after `steps` "
        "([optimizers.md](optimizers.md))",
        minimum=0,
        maximum=1000,
    )
    tokens: int = option(
        0, "tokens of training, without padding, after which the run ends; 0: it ends after `steps`",
        maximum=10**15,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RunConfig(Part):
    """What pre-training and fine-tuning have in common.

    Attributes:
        steps: the number of steps; in fine-tuning, it follows from `epochs`.
        resume_from: another run from whose state pre-training goes on; empty in fine-tuning.
        budget: the budget of pre-training; None in fine-tuning.
    """

    seed: int = option(0, "of weights, order of the rows, masks and dropout", maximum=2**32 - 1)
    model: ModelConfig = ModelConfig()
    batch_size: int = option(
        256, "rows of the global batch, over all devices and hosts", minimum=1, maximum=2**20
    )
    accumulate_steps: int = free(
        1,
        "parts in which the gradient of a batch is computed, to save memory; the result is that of the "
        "whole batch. 0: the fewest that fit into the memory of the devices, found at the start of the run, "
        "which compiles a few programs",
        maximum=2**20,
    )
    steps: int = 0
    optimizer: OptimizerConfig = OptimizerConfig()
    adapter: AdapterConfig = AdapterConfig()
    distillation: DistillationConfig = DistillationConfig()
    mesh: MeshConfig = MeshConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig = EvalConfig()
    trackers: str = free(
        "",
        "experiment trackers beside TensorBoard: `wandb`, `mlflow`, or both with a comma between "
        "([hosts.md](hosts.md#trackers))",
    )
    log_every: int = free(100, "steps between two lines of metrics", minimum=1)
    resume_from: str = ""
    budget: BudgetConfig | None = None
    init_from: str = option(
        "",
        "checkpoint whose weights and architecture the run starts with: a work directory or one of its "
        "`checkpoints/STEP`, a Hugging Face folder, or a TF1 prefix. The dropout rates, and the fields of "
        "`model.*` that say how the model is computed (`dtype`, `attention`, `residual`, `remat`, "
        "`scan_unroll`), are those of the config. So is any other field of `model.*` that is set on the "
        "command line, and in fine-tuning one that the config file sets to another value than the default. "
        "A size that is set and differs from the checkpoint's is refused",
    )
    init_ignore: str = option(
        "",
        "regular expression: parameters that `init_from` may lack, or have beyond this model; any other "
        "stops the run",
        type="regex",
    )
    max_skipped_steps: int = free(
        20,
        "number of consecutive skipped steps at which the run returns to its newest good checkpoint, or to "
        "its start if there is none, and omits the batches up to the last of these steps; the second time, "
        "it is an error. A step is skipped if its loss, "
        "gradient, new parameters or new optimizer state is not finite, or if it is a spike",
        minimum=1,
    )
    spikes: SpikesConfig = SpikesConfig()


def unused(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yields (field, reason) for each field of every run that has no effect in the configured one."""
    if not config.init_from:
        yield "init_ignore", "there is no init_from"
    used = SCHEDULE_FIELDS.get(config.optimizer.schedule, ())
    for name in dict.fromkeys(itertools.chain.from_iterable(SCHEDULE_FIELDS.values())):
        if name not in used:
            yield f"optimizer.{name}", f"the schedule {config.optimizer.schedule} does not use it"
    if config.optimizer.schedule == "triangle" and not (
        config.optimizer.warmup_steps or config.optimizer.warmup_fraction
    ):
        yield "optimizer.initial_rate", "there is no warm-up, which it is the start of"
    if config.optimizer.schedule in WITHOUT_END:
        yield "optimizer.decay_steps", f"the schedule {config.optimizer.schedule} has no end"
    objective = getattr(config, "objective", "")
    if objective and objective != "replaced_tokens":
        for part in dataclasses.fields(ReplacedTokensConfig):
            yield f"replaced_tokens.{part.name}", f"the objective {objective} does not use it"
    yield from distillation_config.unused(config)
    yield from adapter_config.unused(config)
