"""The configuration of fine-tuning, without the fields that its tasks declare."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.settings.config_fields import Part, free, option
from bert_jax.settings.run_config import (
    CheckpointConfig,
    DistillationConfig,
    EvalConfig,
    FinetuneOptimizerConfig,
    RunConfig,
)


@dataclasses.dataclass(frozen=True)
class FinetuneDataConfig(Part):
    """The files of fine-tuning. Tasks declare more fields of `config.data`."""

    train: str = option("", "Training file, or `hf:ORG/NAME:CONFIG` on the Hugging Face hub.")
    eval: str = option("", "Evaluation file. Empty: the validation split if `data.train` is on the hub.")


def _other_default(name: str, default: Any) -> Any:
    """Returns the field of `RunConfig` with this name with another default."""
    declared = {field.name: field for field in dataclasses.fields(RunConfig)}
    return dataclasses.field(default=default, metadata=declared[name].metadata)


@dataclasses.dataclass(frozen=True)
class FinetuneConfig(RunConfig):
    """Fine-tuning; the defaults are the paper's (appendix A.3).

    `of_tasks` are the values of the fields that tasks declare, by their dotted names.
    """

    task: str = option("classification", "Name of the task.")
    batch_size: int = _other_default("batch_size", 32)
    epochs: float = option(3.0, "Passes over the training file.", above=0, maximum=10**6)
    warmup_fraction: float = option(
        0.1, "Warm-up as a fraction of the steps, with `optimizer.warmup_steps=0`.", minimum=0, below=1
    )
    optimizer: FinetuneOptimizerConfig = FinetuneOptimizerConfig(learning_rate=5e-5, warmup_steps=0)
    distillation: DistillationConfig = DistillationConfig(losses="logits=0.5, task=0.5")
    checkpoint: CheckpointConfig = CheckpointConfig(keep=1)
    eval: EvalConfig = EvalConfig(every=0)
    vocab: str = option("", "Vocabulary file of a run without `init_from`.")
    from_scratch: bool = option(
        False, "Use the architecture and vocabulary of `init_from`, but not its weights."
    )
    data_dir: str = free("", "Directory with the files of a benchmark task, or `hf:nyu-mll/glue`.")
    data: FinetuneDataConfig = FinetuneDataConfig()
    train_rows: int = option(0, "Number of training examples to use. 0: all.")
    group_by_length: bool = option(True, "Batch examples of similar lengths, unless they are packed.")
    early_stopping: int = option(0, "Evaluations in a row without a better score that end the run. 0: never.")
    log_every: int = _other_default("log_every", 20)
    of_tasks: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields of a config file, including the tasks' fields, and `steps`."""
        found = super().to_dict() | ({"steps": self.steps} if self.steps else {})
        for name, value in self.of_tasks.items():
            *parents, last = name.split(".")
            part = found
            for parent in parents:
                part = part[parent]
            part[last] = value
        return found
