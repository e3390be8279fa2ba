"""Multiple choice: SWAG, CODAH and the user's own questions (paper, section 4.4)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import losses
from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.models import BertForSequenceClassification
from bert_jax.tasks import batches, metrics, predictions
from bert_jax.tasks.problem import Problem
from bert_jax.tasks.reading import Examples, read_examples
from bert_jax.tasks.row_task import RowTask
from bert_jax.tasks.text_problem import columns_of


@dataclasses.dataclass(frozen=True, eq=False)
class MultipleChoiceTask(RowTask):
    """`choices` rows a question, one number each from [CLS]; the softmax is over a question's rows."""

    config: BertConfig
    choices: int

    head = "classifier"

    @property
    def model(self) -> BertForSequenceClassification:
        return BertForSequenceClassification(self.config, num_labels=1)

    @property
    def expected_initial_loss(self) -> float:
        """ln of the number of choices."""
        return float(np.log(self.choices))

    def logits(
        self, params: Any, batch: dict[str, jax.Array], dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """float32 [B, choices] of a prepared batch."""
        return self.apply(params, batch, dropout_key).reshape(-1, self.choices)

    def loss_weights(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return {"task": jnp.sum(batch["weights"][:, 0])}

    def loss(self, params: Any, batch: dict[str, jax.Array], dropout_key: jax.Array | None):
        row = (self.logits(params, batch, dropout_key), batch["targets"][:, 0], batch["weights"][:, 0])
        return {"task": losses.cross_entropy(*row)}, {"accuracy": losses.accuracy(*row)}

    def predict(self, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        """float32 [B, choices] probabilities of a batch as the loader gives it."""
        return jax.nn.softmax(self.logits(params, self.prepare(batch, None, False)), axis=-1)


class MultipleChoiceProblem(Problem):
    """Which of some endings follows a text. The labels are the choices' numbers from 0."""

    exported_as = "multiple_choice"

    @classmethod
    def from_training_file(cls, config, spec, tokenizer, bert, path):
        problem = cls(config, spec, None, tokenizer, bert)
        examples = problem.read(path)
        problem.labels = tuple(map(str, range(len(examples.choices[0]))))
        return problem, examples

    @property
    def task(self) -> MultipleChoiceTask:
        return MultipleChoiceTask(self.bert, len(self.labels))

    @property
    def group(self) -> int:
        return len(self.labels)

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("accuracy",)

    def read(self, path: str) -> Examples:
        columns = self._columns()
        if not columns.label:
            raise UserError("which column holds the right choice? give --config.data.label=COLUMN")
        examples = self._read(path, columns, self.config.data.format, parse_label=_number)
        count = len(examples.choices[0])
        for number, label in enumerate(examples.labels):
            if not 0 <= label < count:
                raise UserError(
                    f"{examples.where(number)}: the right choice is {label}, expected a number from 0 to "
                    f"{count - 1}"
                )
        return examples

    def read_unlabelled(self, path: str, *, test: bool = False, format: str = "auto", **columns) -> Examples:
        """`columns`: those that differ from the training file's."""
        del test
        return self._read(path, dataclasses.replace(self._columns(), **columns), format, parse_label=None)

    def encode(self, examples: Examples) -> batches.EncodedRows:
        count = len(examples.choices[0])
        starts = examples.texts_b or [""] * len(examples)
        flat = dataclasses.replace(
            examples,
            ids=[name for name in examples.ids for _ in range(count)],
            texts_a=[text for text in examples.texts_a for _ in range(count)],
            texts_b=[
                f"{start} {choice}".strip()
                for start, choices in zip(starts, examples.choices, strict=True)
                for choice in choices
            ],
            labels=examples.labels and [label for label in examples.labels for _ in range(count)],
        )
        data = batches.encode(flat, self.tokenizer, self.config.max_length)
        return dataclasses.replace(data, group=count, examples=np.repeat(np.arange(len(examples)), count))

    def loss(self, data: batches.EncodedRows, outputs: np.ndarray) -> float:
        chosen = np.take_along_axis(outputs, self._targets(data)[:, None], axis=1)
        return float(-np.mean(np.log(np.maximum(chosen, np.finfo(np.float32).tiny))))

    def score(self, examples: Examples, data: batches.EncodedRows, outputs: np.ndarray) -> dict[str, float]:
        return {"accuracy": metrics.accuracy(np.argmax(outputs, axis=-1), self._targets(data))}

    def write(self, path: str, examples: Examples, data: batches.EncodedRows, outputs: np.ndarray) -> None:
        predictions.write_predictions(path, examples.ids, outputs, self.labels)

    def records(self, examples: Examples, data: batches.EncodedRows, outputs: np.ndarray) -> list[dict]:
        return predictions.records(examples.ids, outputs, self.labels)

    def _targets(self, data: batches.EncodedRows) -> np.ndarray:
        return data.targets["targets"][:: data.group]

    def _columns(self):
        columns = columns_of(self.config, self.spec)
        if not columns.choices:
            raise UserError("which columns hold the choices? give --config.data.choices=COLUMN,COLUMN,...")
        return columns

    def _read(self, path: str, columns, file_format: str, parse_label) -> Examples:
        examples = read_examples(
            path,
            columns,
            file_format=file_format,
            quoting=self.config.data.quoting,
            parse_label=parse_label,
        )
        if self.labels and len(examples.choices[0]) != len(self.labels):
            raise UserError(
                f"{path}: {len(examples.choices[0])} choices a question; the model was trained with "
                f"{len(self.labels)}"
            )
        return examples


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"label {text.strip()[:40]!r} is no number of a choice") from None
