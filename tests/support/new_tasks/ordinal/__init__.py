"""Predicts ordered grades.

A complete task in one folder: its configuration, its model with a new head, and its objective. With the
folder in `bert_jax.tasks`, every command supports it.
"""

import dataclasses

import flax.linen as nn
import numpy as np

from bert_jax.models import Encoder, Pooler
from bert_jax.objectives import losses
from bert_jax.objectives.rows import RowObjective
from bert_jax.settings.config_fields import option
from bert_jax.tasks import metrics
from bert_jax.tasks.base import TableConfig, TableTask
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.rows import assembly


class OrdinalModel(nn.Module):
    config: object
    grades: int
    spread: float

    @nn.compact
    def __call__(self, ids, types, positions, sequences, deterministic=True):
        hidden = Encoder(self.config, name="encoder")(ids, types, positions, sequences, deterministic)
        pooled = Pooler(self.config, name="pooler")(hidden[:, 0])
        kernel = nn.with_logical_partitioning(nn.initializers.normal(0.02), ("embed", "classes"))
        dense = nn.Dense(self.grades, use_bias=False, kernel_init=kernel, name="ordinal")
        return self.spread * dense(pooled)


@dataclasses.dataclass(frozen=True, eq=False)
class Ordinal(RowObjective):
    config: object
    grades: int
    spread: float
    new_groups = ("ordinal",)

    @property
    def model(self):
        return OrdinalModel(self.config, self.grades, self.spread)

    def logits(self, params, batch, rngs=None):
        return self.apply(params, batch, rngs)[0]

    def criterion(self, logits, targets, weights):
        return losses.cross_entropy(logits, targets, weights)


@dataclasses.dataclass(frozen=True)
class OrdinalConfig(TableConfig):
    spread: float = option(2.0, "factor of the logits", above=0)


class OrdinalTask(TableTask):
    Config = OrdinalConfig
    title = "ordinal"

    scorers = {  # noqa: RUF012
        "accuracy": metrics.accuracy,
        "mean_absolute_error": lambda predicted, targets: np.abs(predicted - targets).mean(),
    }

    def read_training(self, path):
        examples = self.read(path)
        self.labels = tuple(map(str, sorted({int(text) for text in examples.labels})))
        examples.labels = [self.parse_label(text) for text in examples.labels]
        return examples

    def parse_label(self, text):
        return self.labels.index(text) if self.labels else text

    def encode(self, examples):
        return assembly.encode(examples, self.tokenizer, self.config.max_seq_length)

    def objective(self):
        return Ordinal(self.model_config, len(self.labels), self.config.spread)


TASKS = (TaskSpec("ordinal", OrdinalTask),)
