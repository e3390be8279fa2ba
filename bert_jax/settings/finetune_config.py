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
    """The files of fine-tuning. A task declares the further fields of `config.data`."""

    train: str = option(
        "",
        "your own file to train on: TSV, CSV or JSON lines; of texts Parquet or Arrow, or a folder of these; "
        "of questions JSON, of tags CoNLL columns too; or hf:ORG/NAME:CONFIG, a data set on the Hugging "
        "Face hub",
    )
    eval: str = option(
        "", "your own file to evaluate on, as `data.train`; of a data set the split validation"
    )


def _other_default(name: str, default: Any) -> Any:
    """Returns the field of `RunConfig` with this name with another default."""
    declared = {field.name: field for field in dataclasses.fields(RunConfig)}
    return dataclasses.field(default=default, metadata=declared[name].metadata)


@dataclasses.dataclass(frozen=True)
class FinetuneConfig(RunConfig):
    """Fine-tuning; the defaults are those of the paper (appendix A.3).

    Attributes:
        of_tasks: the values of the fields that tasks declare, by their dotted names.
    """

    task: str = option("classification", "the task, by a name of `bert_jax.tasks`")
    batch_size: int = _other_default("batch_size", 32)
    epochs: float = option(3.0, "passes over the training file", above=0, maximum=10**6)
    warmup_fraction: float = option(
        0.1,
        "fraction of the steps that is warm-up, unless `optimizer.warmup_steps` is set",
        minimum=0,
        below=1,
    )
    optimizer: FinetuneOptimizerConfig = FinetuneOptimizerConfig(learning_rate=5e-5, warmup_steps=0)
    distillation: DistillationConfig = DistillationConfig(losses="logits=0.5, task=0.5")
    checkpoint: CheckpointConfig = CheckpointConfig(keep=1)
    eval: EvalConfig = EvalConfig(every=0)
    vocab: str = option("", "the vocabulary, where there is no `init_from`, which has one")
    from_scratch: bool = option(
        False, "start with the architecture and vocabulary of `init_from`, and none of its weights"
    )
    data_dir: str = free(
        "",
        "folder with files that the task has names for, or [hf:nyu-mll/glue](finetuning.md#glue)",
    )
    data: FinetuneDataConfig = FinetuneDataConfig()
    train_rows: int = option(
        0, "train on the first examples of the training file alone, this many; 0: on all of them"
    )
    group_by_length: bool = option(True, "batches of examples of similar lengths, where none are packed")
    early_stopping: int = option(
        0, "evaluations in a row without a better score that end the run; 0: it goes to its end"
    )
    log_every: int = _other_default("log_every", 20)
    of_tasks: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields that a config file has, including those of tasks, and `steps`."""
        found = super().to_dict() | ({"steps": self.steps} if self.steps else {})
        for name, value in self.of_tasks.items():
            *parents, last = name.split(".")
            part = found
            for parent in parents:
                part = part[parent]
            part[last] = value
        return found
