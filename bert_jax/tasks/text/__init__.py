"""Classification and regression tasks on tables of texts or pairs of texts."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from etils import epy

from bert_jax.convert import families
from bert_jax.errors import UserError
from bert_jax.io import comma_lists
from bert_jax.models.baselines import bilstm_classifier
from bert_jax.models.heads.structures import ClassificationHead
from bert_jax.objectives.classification import BilstmClassification, Classification, ClassificationAndLM
from bert_jax.settings.config_fields import Rule, option
from bert_jax.settings.run_config import ModelConfig
from bert_jax.tasks import metrics, registry, table
from bert_jax.tasks.base import TableConfig, TableData, TableTask, WindowsConfig
from bert_jax.tasks.metrics import Metric
from bert_jax.tasks.predictions import ClassPredictions, NumberPredictions, TablePredictions
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.rows import assembly
from bert_jax.tasks.rows.batches import NO_TARGET, EncodedRows
from bert_jax.tasks.table import LABEL_SEPARATOR, Columns, Examples, json_text, list_counts

with epy.lazy_imports():  # it takes seconds to import
    from sklearn import metrics as sklearn_metrics

TRANSFORMER, BILSTM_ATTENTION = "transformer", "bilstm_attention"  # values of `encoder`
# The fields of `model` that apply to a BiLSTM: embeddings, norm, dropout, maximum row length and dtype.
_MODEL_FIELDS = (
    *("vocab_size", "embedding_size", "hidden_dropout_prob", "max_position_embeddings", "model_type"),
    *("initializer", "initializer_range", "layer_norm_eps", "norm", "norm_bias", "dtype"),
)
_OF_TRANSFORMERS = (
    *("head", "lm_weight", "adapter.kind", "optimizer.layer_decay", "distillation.teacher"),
    *(f"model.{name}" for name in ModelConfig().to_dict() if name not in _MODEL_FIELDS),
)
_THRESHOLD = 0.5  # in multi-label tasks, labels with a higher probability are predicted
_BY_LANGUAGE = "accuracy_"  # prefix of the metric of one language


@dataclasses.dataclass(frozen=True)
class TextConfig(TableConfig, WindowsConfig):
    """The fields of tasks on texts and pairs of texts."""

    encoder: str = option(
        TRANSFORMER,
        "Encoder: `transformer`, `bilstm` (GLUE's baseline), or `bilstm_attention` (with attention between "
        "two texts).",
        choices=(TRANSFORMER, "bilstm", BILSTM_ATTENTION),
    )
    encoder_size: int = option(
        384, "Width of each direction of the BiLSTM encoder.", minimum=1, maximum=2**20
    )
    lm_weight: float = option(
        0.0,
        "Weight of an additional next-token loss, for causal models. GPT: 0.5.",
        minimum=0,
        maximum=10**6,
    )
    pack: bool = option(True, "Pack several examples into a row. Batches are then not grouped by length.")
    double_unordered: bool = option(False, "Train on each pair in both orders (ELECTRA).")


@dataclasses.dataclass(frozen=True)
class ClassificationData(TableData):
    """The `config.data.*` fields of classification."""

    language: str = option("", "Column of the language; each language is also scored separately.")


@dataclasses.dataclass(frozen=True)
class ClassificationConfig(TextConfig):
    """The fields of classification."""

    class_weights: str = option(
        "", "Class weights of the loss: `balanced`, or `LABEL=WEIGHT`, comma-separated."
    )
    positive_label: str = option(
        "", "Label that counts as positive for `f1` of two labels. Empty: the second, as listed by the run."
    )
    data: ClassificationData = ClassificationData()


class TextTask(TableTask):
    """Base class of tasks that predict from the [CLS] of a text or a pair of texts.

    With `config.doc_stride`, texts longer than a row are split into windows. Each window is trained with the
    label of its example, and the prediction for an example is the mean output of its windows.

    Attributes:
        kind: the `kind` of `objectives.classification.Classification`.
        target_dtype: the dtype of the targets.
        numbers: {label: its number}.
        class_weights: loss weights in the order of the labels; empty if all are 1.
    """

    Config: ClassVar[type[TextConfig]] = TextConfig
    config: TextConfig
    rules: ClassVar[Sequence[Rule]] = (
        ("encoder_size", lambda c: c.encoder != TRANSFORMER, "an encoder other than transformer"),
        (" ".join(_OF_TRANSFORMERS), lambda c: c.encoder == TRANSFORMER, f"encoder={TRANSFORMER}"),
        ("lm_weight", lambda c: not c.distillation.teacher, "no distillation.teacher"),
        ("double_unordered", lambda c: TableTask.columns_of(c, registry.get(c.task)).text_b,
         "data.text_b"),
    )  # fmt: skip
    kind: str
    target_dtype: type = np.int32
    class_weights: tuple[float, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        return self._labels

    @labels.setter
    def labels(self, names: Sequence[str]) -> None:
        self._labels = tuple(names)
        self.numbers = {name: number for number, name in enumerate(names)}

    def set_up(self) -> None:
        if self.config.encoder == BILSTM_ATTENTION:
            self.require("text_b")
        if self.config.lm_weight and not self.model_config.causal:
            raise UserError(f"lm_weight={self.config.lm_weight:g} needs --config.model.causal=true")

    @property
    def classifier(self) -> ClassificationHead:
        return super().classifier if self.config.encoder == TRANSFORMER else bilstm_classifier.HEAD

    def augmented(self, examples: Examples) -> Examples:
        if not self.config.double_unordered:
            return examples
        return dataclasses.replace(
            examples,
            texts_a=examples.texts_a + examples.texts_b,
            texts_b=examples.texts_b + examples.texts_a,
            **{name: getattr(examples, name) * 2 for name in ("ids", "labels", "languages")},
        )

    def read(self, path: str) -> Examples:
        examples = super().read(path)
        unknown = zip(examples.ids, map(self._unknown, examples.labels), strict=True) if self.labels else ()
        examples.note_unknown(
            f"row {id_}: {table.unknown_label(self.labels, names[0])}" if names else ""
            for id_, names in unknown
        )
        return examples

    def read_training(self, path: str) -> Examples:
        known = self.columns == self.spec.columns and self.spec.train_columns
        return self.read_labeled(path, known or self.columns)

    def _unknown(self, label: Any) -> list[str]:
        names = label if isinstance(label, tuple) else (label,)
        return [name for name in names if isinstance(name, str) and name not in self.numbers]

    def targets(self, examples: Examples, names: Sequence[str]) -> np.ndarray:
        """Returns the targets of the examples, [N, ...], for outputs with the labels `names`."""
        return np.asarray(examples.labels, self.target_dtype)

    def encode(self, examples: Examples) -> EncodedRows:
        c, targets = self.config, list(self.targets(examples, self.labels))
        examples = dataclasses.replace(examples, labels=targets)
        return assembly.encode(examples, self.tokenizer, c.max_seq_length, c.doc_stride, self.target_dtype)

    def decode(self, examples: Examples, rows: EncodedRows, outputs: np.ndarray) -> TablePredictions:
        """Returns the predictions. Labels that training lacks come last and have the output 0."""
        more = sorted({name for label in examples.labels for name in self._unknown(label)})
        names = [*self.labels, *more]
        outputs = np.pad(outputs, ((0, 0), (0, len(more)))) if more else outputs
        return self.Predictions(examples, outputs, self.targets(examples, names), names)

    def objective(self) -> Classification:
        c, layout = self.config, self.tokenizer.layout
        labels = len(self.labels) or 1
        described = (self.model_config, labels, self.kind, self.class_weights, bool(c.doc_stride))
        if c.encoder != TRANSFORMER:
            return BilstmClassification(
                *described,
                size=c.encoder_size,
                pairs=bool(self.columns.text_b),
                attends=c.encoder == BILSTM_ATTENTION,
                skipped_ids=layout.special_ids,
            )
        if not c.lm_weight:
            return Classification(*described, layout.types, self.classifier)
        head = families.of(self.model_config).masked_lm
        return ClassificationAndLM(*described, layout.types, self.classifier, c.lm_weight, head)


def _has_own_f1(config: Any) -> bool:
    spec = registry.get(config.task)
    return not spec.labels and "f1" in (comma_lists.names(config.metrics) or spec.metrics)


class TextClassification(TextTask):
    """Classification: one label per example."""

    Config = ClassificationConfig
    config: ClassificationConfig
    title = "classification"
    kind = "classification"
    problem_type = "single_label_classification"
    rules = (("positive_label", _has_own_f1, "the metric f1 and labels from the training file"),)

    def read_training(self, path: str) -> Examples:
        self.labels = self.spec.labels or ()
        examples = super().read_training(path)
        names = [self.labels[number] for number in examples.labels] if self.labels else examples.labels
        inferred = table.infer_labels(names, path)
        self.labels = self.labels or inferred
        examples.labels = [self.parse_label(name) for name in names]
        return examples

    def augmented(self, examples: Examples) -> Examples:
        self.class_weights = parse_class_weights(self.config.class_weights, self.labels, examples.labels)
        return super().augmented(examples)

    def parse_label(self, text: str) -> int | str:
        """Returns the number of a label, or its name if the labels are not known yet."""
        text = self.spec.spellings.get(text.strip(), text)
        return table.label_index(self.numbers, text) if self.labels else text

    def parse_any_label(self, text: str) -> int | str:
        may_lack = not self.spec.labels and text.strip() not in self.numbers
        return text.strip() if may_lack else self.parse_label(text)

    def targets(self, examples: Examples, names: Sequence[str]) -> np.ndarray:
        """Returns the numbers of the labels among `names`, int32 [N]; `NO_TARGET` for others."""
        numbers = {name: number for number, name in enumerate(names)}
        found = (numbers.get(one, NO_TARGET) if isinstance(one, str) else one for one in examples.labels)
        return np.fromiter(found, np.int32)

    @property
    def positive(self) -> int:
        """Returns the number of the positive label, for the metric `f1`."""
        name = self.config.positive_label
        try:
            return table.label_index(self.numbers, name) if name else 1
        except ValueError as error:
            raise UserError(f"positive_label={name}: {error}") from None

    @property
    def scorers(self) -> Mapping[str, Metric]:
        f1 = {"f1": functools.partial(metrics.f1, positive=self.positive)} if len(self.labels) == 2 else {}
        return metrics.CLASSIFICATION | f1

    @property
    def known_metrics(self) -> tuple[str, ...]:
        if not self.columns.language:
            return tuple(self.scorers)
        given = comma_lists.names(self.config.metrics)
        return ("average", *self.scorers, *(name for name in given if name.startswith(_BY_LANGUAGE)))

    def score(self, predictions: TablePredictions) -> dict[str, float]:
        """Returns the value of each metric; `average` is the mean of the accuracies of the languages."""
        predicted, targets = predictions.predicted, predictions.targets
        scores = {_BY_LANGUAGE + name: x["accuracy"] for name, x in predictions.breakdown().items()}
        scores["average"] = float(np.mean([*scores.values()] or metrics.accuracy(predicted, targets)))
        scores |= {
            name: float(self.scorers[name](predicted, targets))
            for name in self.metrics
            if name in self.scorers
        }
        return {name: scores[name] for name in self.metrics}

    def describe(self, examples: Examples, rows: EncodedRows) -> str:
        if not examples.labels:
            return ""
        counts = Counter(examples.labels)
        text = "labels " + table.list_counts({name: counts[i] for i, name in enumerate(self.labels)})
        if "f1" in self.metrics:
            text += f"; f1 scores the label {self.labels[self.positive]!r}"
        return text + ("; warning: one class only, so scores say little" if len(counts) == 1 else "")


class TextRegression(TextTask):
    """Regression: one number per example."""

    title = "regression"
    kind = "regression"
    problem_type = "regression"
    target_dtype = np.float32
    Predictions = NumberPredictions
    scorers = metrics.REGRESSION

    def parse_label(self, text: str) -> float:
        return table.parse_number(text)


def parse_class_weights(text: str, labels: Sequence[str], targets: Sequence[int]) -> tuple[float, ...]:
    """Parses `config.class_weights` to the loss weight of each of C labels.

    With "balanced", a label with n of the N examples has the weight N / (C n). `targets` are the numbers of
    the labels of the examples. Raises UserError for an unknown label or a weight that is not positive.
    """
    if not text:
        return ()
    if text == "balanced":
        counts = np.bincount(targets, minlength=len(labels))
        return tuple(float(len(targets) / (len(labels) * max(1, count))) for count in counts)
    parts = [part.rpartition("=") for part in text.split(",")]
    try:
        weights = {label.strip(): float(number) for label, _, number in parts}
        valid = all(0 < weight < float("inf") for weight in weights.values())
    except ValueError:
        weights, valid = {}, False
    if not valid or len(weights) < len(parts) or not weights.keys() <= {*labels}:
        raise UserError(
            f"class_weights={text}: expected balanced, or LABEL=WEIGHT with weights above 0 and labels "
            f"{', '.join(labels)}"
        )
    return tuple(weights.get(label, 1.0) for label in labels)


@dataclasses.dataclass
class LabelSets(ClassPredictions):
    """Predictions of a multi-label classification: all labels whose probability is above 0.5.

    `targets`, bool [N, C], are the true labels; empty if the examples have no labels.
    """

    @functools.cached_property
    def predicted(self) -> np.ndarray:
        """Returns whether each label is predicted, bool [N, C]."""
        return self.outputs > _THRESHOLD

    @property
    def confidence(self) -> np.ndarray:
        """Returns the highest confidence among the wrong decisions for each example, float32 [N].

        It is 0 for an example without wrong decisions.
        """
        certainty = np.maximum(self.outputs, 1 - self.outputs)
        return np.where(self.predicted == self.targets, 0, certainty).max(axis=1)

    def values(self) -> list[list[str]]:
        return [[self.labels[i] for i in np.flatnonzero(row).tolist()] for row in self.predicted]

    def truths(self) -> list[list[str]]:
        return [list(labels) for labels in self.examples.labels]

    def breakdown(self) -> dict[str, dict[str, float]]:
        return {}


def _f1(predicted: np.ndarray, targets: np.ndarray, average: str) -> Any:
    if targets.shape[1] == 1:  # scikit-learn treats a single column as two classes
        return metrics.f1(predicted[:, 0] > 0, targets[:, 0] > 0)
    return sklearn_metrics.f1_score(targets, predicted, average=average, zero_division=0.0)


class MultiLabel(TextTask):
    """Multi-label classification: a label is predicted if its probability is above 0.5."""

    title = "multilabel"
    kind = "multilabel"
    problem_type = "multi_label_classification"
    label_may_be_empty = True
    target_dtype = np.float32
    Predictions = LabelSets
    scorers = {  # noqa: RUF012
        "f1_micro": functools.partial(_f1, average="micro"),
        "f1_macro": functools.partial(_f1, average="macro"),
        "exact_match": lambda predicted, targets: float(np.mean(np.all(predicted == targets, axis=1))),
    }

    @property
    def scores_pairs(self) -> bool:
        return False

    def read_training(self, path: str) -> Examples:
        examples = super().read_training(path)
        self.labels = tuple(sorted({label for labels in examples.labels for label in labels}))
        if not self.labels:
            raise UserError(f"{path}: no row has a label in data.label={self.columns.label}")
        return examples

    def parse_label(self, text: str) -> tuple[str, ...]:
        """Returns the labels in a text: a JSON list, or comma-separated names."""
        if text.lstrip().startswith("["):
            text = json_text(json.loads(text), "label", "label")
        return tuple(dict.fromkeys(filter(None, map(str.strip, text.split(LABEL_SEPARATOR)))))

    def targets(self, examples: Examples, names: Sequence[str]) -> np.ndarray:
        """Returns bool [N, C], true for the labels in `names` that an example has; N is 0 without labels."""
        found = np.zeros((len(examples.labels), len(names)), bool)
        numbers = {name: number for number, name in enumerate(names)}
        for row, labels in zip(found, examples.labels, strict=True):
            row[[numbers[label] for label in labels if label in numbers]] = True
        return found

    def describe(self, examples: Examples, rows: EncodedRows) -> str:
        if not examples.labels:
            return ""
        counts = Counter(label for labels in examples.labels for label in labels)
        none = sum(not labels for labels in examples.labels)
        return f"labels {list_counts({name: counts[name] for name in self.labels})}; none: {none:,}"


TASKS = (
    # These tasks are for the user's own files, so their columns come from the configuration.
    TaskSpec("classification", TextClassification, ("accuracy", "f1_macro")),
    TaskSpec("regression", TextRegression, ("pearson", "spearman", "mean_squared_error")),
    TaskSpec("multilabel", MultiLabel),
    # Natural language inference in 15 languages (Conneau et al. 2018), with MultiNLI as training file.
    TaskSpec(
        "xnli",
        TextClassification,
        ("average", "accuracy"),
        Columns("sentence1", "sentence2", "gold_label", "pairID", language="language", quotes=False),
        train_columns=Columns("premise", "hypo", "label", quotes=False),
        labels=("contradiction", "entailment", "neutral"),
        spellings={"contradictory": "contradiction"},  # in the training files
        hub_columns=Columns("premise", "hypothesis", "label", language=table.FOLDER),
        hub_configs=tuple("en ar bg de el es fr hi ru sw th tr ur vi zh".split()),
        file_name="{split}",
        splits=tuple(
            (split, tuple(f"{folder}{name}" for name in names for folder in (*folders, "")))
            for split, names, folders in (
                ("train", ("multinli.train.en.tsv",), ("XNLI-MT-1.0/multinli/", "multinli/")),
                ("dev", ("xnli.dev.tsv", "xnli.dev.jsonl"), ("XNLI-1.0/",)),
                ("test", ("xnli.test.tsv", "xnli.test.jsonl"), ("XNLI-1.0/",)),
            )
        ),
    ),
)
