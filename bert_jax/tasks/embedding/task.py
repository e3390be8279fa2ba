"""Sentence embeddings: vectors of texts, from pairs with or without hard negatives, scores or classes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from bert_jax.convert.sentences import SentenceVectors, unit_length
from bert_jax.errors import UserError
from bert_jax.io.wording import alternatives
from bert_jax.models.heads import SENTENCE, ClassificationHead
from bert_jax.objectives.sentence_embedding import CLASSES, CONTRASTIVE, COSENT, KINDS, SentenceEmbedding
from bert_jax.settings.config_fields import option
from bert_jax.tasks import metrics
from bert_jax.tasks.embedding.predictions import RetrievalPredictions, SimilarityPredictions
from bert_jax.tasks.predictions import TablePredictions
from bert_jax.tasks.readers import labels, sources
from bert_jax.tasks.readers.lines import FIELDS
from bert_jax.tasks.readers.tables import Columns, Examples
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.rows import assembly
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.rows.windows import Pair
from bert_jax.tasks.table_task import TableConfig, TableData, TableTask


@dataclasses.dataclass(frozen=True)
class EmbeddingData(TableData):
    """The `config.data.*` fields of sentence embeddings."""

    negatives: str = option(
        "", "the columns of hard negatives, with commas between; or one of JSON lists of them"
    )
    eval_columns: str = option(
        "",
        "of the evaluation file, `TEXT,TEXT`, or `TEXT,TEXT,SCORE` with the similarity of each pair; empty: "
        "those of the training file",
    )
    prefix_a: str = option("", "put before each first text, such as `query: `")
    prefix_b: str = option("", "put before each second text and hard negative, such as `passage: `")


@dataclasses.dataclass(frozen=True)
class EmbeddingConfig(TableConfig):
    """The fields of sentence embeddings."""

    loss: str = option(
        CONTRASTIVE,
        "`contrastive`: each first text finds its second one in the batch (InfoNCE); `cosent`: pairs with a "
        "higher `data.label` have a higher cosine; `classes`: `data.label` is predicted from both vectors",
    )
    temperature: float = option(0.05, "that cosines are divided by", above=0, maximum=100)
    symmetric: bool = option(False, "of `contrastive`: second texts find their first ones, too")
    dimensions: str = option(
        "", "numbers of leading dimensions that are trained as vectors of their own (Matryoshka): `64,128`"
    )
    pack: bool = option(True, "random batches, several texts a row ([finetuning.md](finetuning.md))")
    data: EmbeddingData = EmbeddingData()


class EmbeddingTask(TableTask):
    """Sentence embeddings; see `objectives.sentence_embedding` for the losses.

    A training file without second texts has each text twice, with different dropout (SimCSE).
    """

    Config = EmbeddingConfig
    config: EmbeddingConfig
    title = "sentence embeddings"
    export_head = "none"
    _group = 2  # texts in a group of training

    def set_up(self) -> None:
        """Checks the loss, its columns and the dimensions."""
        super().set_up()
        c, given = self.config, f"loss={self.config.loss}"
        if c.loss not in KINDS:
            raise UserError(f"{given}: expected {alternatives(KINDS)}")
        if c.loss != CONTRASTIVE and not (self.columns.text_b and self.columns.label):
            raise UserError(f"{given}: expected --config.data.text_b=COLUMN and --config.data.label=COLUMN")
        if self.columns.negatives and not self.columns.text_b:
            raise UserError("data.negatives: without data.text_b there is no positive beside them")
        self.eval_columns = self._eval_columns()
        self.sizes = self._sizes()

    def _eval_columns(self) -> Columns:
        names = [name.strip() for name in self.config.data.eval_columns.split(",")]
        if not names[0]:
            return dataclasses.replace(self.columns, negatives="")
        if not (2 <= len(names) <= 3 and all(names)):
            raise UserError(
                f"data.eval_columns={self.config.data.eval_columns}: expected TEXT,TEXT or TEXT,TEXT,SCORE"
            )
        label = names[2] if len(names) == 3 else ""
        return dataclasses.replace(
            self.columns, text_a=names[0], text_b=names[1], label=label, id="", negatives=""
        )

    def _sizes(self) -> tuple[int, ...]:
        given, width = self.config.dimensions, self.model_config.hidden_size
        try:
            sizes = tuple(int(size) for size in given.split(",") if size.strip())
        except ValueError:
            sizes = (0,)
        if len({*sizes}) < len(sizes) or not all(0 < size < width for size in sizes):
            raise UserError(f"dimensions={given}: expected different numbers from 1 to {width - 1}")
        return sizes

    @classmethod
    def columns_of(cls, config: Any, spec: TaskSpec) -> Columns:
        """Returns the columns of the training file."""
        return dataclasses.replace(super().columns_of(config, spec), negatives=config.data.negatives)

    def columns_in(self, path: str) -> Columns:
        """Returns the columns of files to evaluate on."""
        return self.eval_columns

    @classmethod
    def unused(cls, config: Any, spec: TaskSpec) -> Iterator[tuple[str, str]]:
        """Yields (field, reason) for each field that must keep its default; see `FinetuneTask`."""
        yield from super().unused(config, spec)
        yield "head", "sentence embeddings have no head"
        yield "doc_stride", "a text has one row, and longer ones are cut"
        yield "distillation.teacher", "sentence embeddings cannot be distilled yet"
        if config.loss != CONTRASTIVE:
            for name in ("symmetric", "data.negatives"):
                yield name, f"it is only used with loss={CONTRASTIVE}"
        elif config.data.label and config.data.eval_columns:
            yield "data.label", f"loss={CONTRASTIVE} has no labels"
        if config.loss == CLASSES:
            for name in ("temperature", "dimensions"):
                yield name, f"loss={CLASSES} has no cosines"
        if not config.data.eval:
            yield "data.eval_columns", "there is nothing to evaluate on, give data.eval"
        if not config.data.text_b and not config.data.eval_columns:
            yield "data.prefix_b", "there are no second texts (data.text_b)"

    @property
    def classifier(self) -> ClassificationHead:
        """Returns a head without parameters, of which the pooling is that of the model."""
        return SENTENCE

    @property
    def sentence(self) -> SentenceVectors:
        """Returns the pooling of the model, and vectors of length 1."""
        data = self.config.data
        prompts = {"query": data.prefix_a, "document": data.prefix_b}
        return SentenceVectors(
            self.classifier.pooling_of(self.model_config),
            True,
            self.config.max_seq_length,
            {name: text for name, text in prompts.items() if text},
        )

    # Reading

    def read_training(self, path: str) -> Examples:
        """Returns the groups of texts, with the labels that the loss needs."""
        columns = self.columns
        if self.config.loss == CONTRASTIVE:
            columns = dataclasses.replace(columns, label="")
        parse = labels.parse_number if self.config.loss == COSENT else str
        examples = self._read(path, columns, parse if columns.label else None)
        if self.config.loss == CLASSES:
            self.labels = labels.infer_labels(examples.labels, path)
            examples.labels = [labels.label_index(self.labels, label) for label in examples.labels]
        if examples.negatives:
            self._group = 2 + len(examples.negatives[0])
        return examples

    def read(self, path: str) -> Examples:
        """Returns the pairs of a file to evaluate on, with their similarities if the file has them.

        Raises:
            UserError: the file has single texts, or classes in place of similarities.
        """
        columns = self.eval_columns
        if not columns.text_b:
            raise UserError(
                f"{path}: which columns hold the pairs to evaluate on? give "
                "--config.data.eval_columns=TEXT,TEXT,SCORE"
            )
        if self.config.loss == CLASSES and not self.config.data.eval_columns:
            raise UserError(
                f"{path}: classes are no similarities; give --config.data.eval_columns=TEXT,TEXT,SCORE"
            )
        return self._read(path, columns, labels.parse_number if columns.label else None)

    def _read(self, path: str, columns: Columns, parse_label: Any) -> Examples:
        data = self.config.data
        return sources.read_examples(
            path, columns, file_format=data.format, quoting=data.quoting, parse_label=parse_label
        )

    def read_unlabelled(self, path: str, **options: Any) -> Examples:
        """Returns the pairs of a file, without their similarities."""
        if not (self.eval_columns.text_b or options.get("text_b")):
            raise UserError(
                f"{path}: predict compares pairs of texts, and the run has none; `bert-jax embed` gives the "
                "vectors of single texts"
            )
        return super().read_unlabelled(path, **options)

    def line_names(self) -> dict[str, str]:
        """Returns the columns of a file of pairs."""
        return {field: getattr(self.eval_columns, field) for field in FIELDS}

    def describe(self, examples: Examples, rows: EncodedRows) -> str:
        """Returns the number of texts of a group."""
        return f"{rows.rows_per_example} texts in a group"

    # Rows

    def encode(self, examples: Examples) -> EncodedRows:
        """Returns a group of rows for each example: its texts and its hard negatives."""
        data, first, second = self.config.data, examples.texts_a, examples.texts_b
        groups = [[data.prefix_a + text] for text in first]
        others = [[text] for text in second] if second else [[] for _ in first]
        if examples.negatives:
            others = [[*one, *negatives] for one, negatives in zip(others, examples.negatives, strict=True)]
        for group, more in zip(groups, others, strict=True):
            group += [data.prefix_b + text for text in more] or group
        texts = [text for group in groups for text in group]
        room, count = self.tokenizer.layout.room(self.config.max_seq_length, False), len(groups[0])
        rows = (assembly.truncate(ids, None, room) for ids in assembly.tokenize(self.tokenizer, texts))
        are_classes = bool(examples.labels) and isinstance(examples.labels[0], int)
        encoded = assembly.assemble(
            _by_group(rows, count),
            examples.labels,
            self.tokenizer,
            self.config.max_seq_length,
            target_dtype=np.int32 if are_classes else np.float32,
            rows_per_example=count,
        )
        numbers: dict[str, int] = {}
        encoded.targets["texts"] = np.array(
            [numbers.setdefault(text, len(numbers)) for text in texts], np.int32
        )
        return encoded

    def objective(self) -> SentenceEmbedding:
        """Returns the objective for groups of texts."""
        c = self.config
        return SentenceEmbedding(
            self.model_config,
            c.loss,
            self._group,
            c.temperature,
            c.symmetric,
            self.sizes,
            len(self.labels),
            self.tokenizer.layout.types,
            self.classifier,
        )

    # Predictions

    def decode(self, examples: Examples, rows: EncodedRows, outputs: np.ndarray) -> TablePredictions:
        """Returns the cosines of pairs, and without similarities the ranks of the second texts."""
        vectors = unit_length(outputs.reshape(len(outputs), 2, -1))
        cosines = np.sum(vectors[:, 0] * vectors[:, 1], axis=-1, keepdims=True)
        if examples.labels:
            return SimilarityPredictions(examples, cosines, np.asarray(examples.labels, np.float32))
        return RetrievalPredictions(examples, cosines, np.empty(0), vectors=vectors)

    @property
    def scorers(self) -> Mapping[str, metrics.Metric]:
        """Returns correlations with similarities, or measures of ranks where there are none."""
        return metrics.SIMILARITY if self.eval_columns.label else metrics.RANKING

    def loss(self, rows: EncodedRows, outputs: np.ndarray) -> None:
        """Returns None: the loss of a batch depends on its size, and files of similarities have another."""
        return None


def _by_group(rows: Iterable[tuple[list[Pair], bool]], count: int) -> Iterator[tuple[list[Pair], bool]]:
    """Yields the rows of `count` texts at a time, and whether one of them was truncated."""
    for group in zip(*[iter(rows)] * count, strict=True):
        pairs, cut = zip(*group, strict=True)
        yield list(itertools.chain.from_iterable(pairs)), any(cut)
