"""Sentence embeddings: vectors of texts, from pairs with or without scores or classes, or single texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from bert_jax import convert
from bert_jax.convert import families
from bert_jax.convert.sentences import SentenceVectors, unit_length
from bert_jax.errors import UserError
from bert_jax.io import comma_lists
from bert_jax.io.wording import alternatives, some
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import SENTENCE, ClassificationHead
from bert_jax.objectives.embedding.denoising import DENOISING, DenoisingAutoEncoder
from bert_jax.objectives.embedding.sentence import (
    CLASSES,
    CONTRASTIVE,
    COSENT,
    KINDS,
    SentenceEmbedding,
    TextVectors,
)
from bert_jax.settings.config_fields import option
from bert_jax.settings.finetune_config import FinetuneConfig
from bert_jax.tasks import table
from bert_jax.tasks.embedding.groups import EVAL_COLUMNS, GroupsConfig, GroupsTask
from bert_jax.tasks.embedding.predictions import RetrievalPredictions, SimilarityPredictions
from bert_jax.tasks.lines import LineReader
from bert_jax.tasks.predictions import TablePredictions
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.table import Examples
from bert_jax.tokenization import Tokenizer

_LOSSES = (*KINDS, DENOISING)
_POOLINGS = ("cls", "last", "mean")  # those of `EncoderConfig.classifier_pooling`


@dataclasses.dataclass(frozen=True)
class EmbeddingConfig(GroupsConfig):
    """The fields of sentence embeddings."""

    loss: str = option(
        CONTRASTIVE,
        "`contrastive`: each first text finds its second one in the batch (InfoNCE); `cosent`: pairs with a "
        "higher `data.label` have a higher cosine; `classes`: `data.label` is predicted from both vectors; "
        "`denoising`: each text is restored from its vector after tokens were deleted (TSDAE)",
    )
    deletion: float = option(
        0.6, "of `denoising`: the probability that a token is deleted", minimum=0, below=1
    )
    symmetric: bool = option(False, "of `contrastive`: second texts find their first ones, too")
    dimensions: str = option(
        "", "numbers of leading dimensions that are trained as vectors of their own (Matryoshka): `64,128`"
    )
    pack: bool = option(True, "random batches, several texts a row ([finetuning.md](finetuning.md))")


def _has_dropout(config: EncoderConfig) -> bool:
    rates = "hidden_dropout_prob", "attention_probs_dropout_prob", "embedding_dropout", "inner_dropout"
    return any(getattr(config, rate) for rate in rates)


class EmbeddingTask(GroupsTask):
    """Sentence embeddings; the losses are those of `objectives.embedding`.

    Without second texts, the contrastive loss has each text twice, with different dropout (SimCSE).
    """

    Config = EmbeddingConfig
    config: EmbeddingConfig
    title = "sentence embeddings"
    next_command = "embed --model={workdir} --input=FILE --output=FILE"

    @classmethod
    def adopt_model(
        cls,
        model_config: EncoderConfig,
        tokenizer: Tokenizer,
        config: FinetuneConfig,
        explicit: Collection[str],
        log: Callable[[str], None],
    ) -> EncoderConfig:
        given = "classifier_pooling" in explicit or config.model.classifier_pooling is not None
        theirs = config.init_from and convert.load_sentence(config.init_from, model_config, tokenizer)
        pooling, source = SENTENCE.pooling, "the default"
        if given:
            pooling, source = SENTENCE.pooling_of(model_config), "as model.classifier_pooling says"
        elif theirs and theirs.pooling in _POOLINGS:
            pooling, source = theirs.pooling, f"as in {config.init_from}"
        elif theirs:
            source = f"since {theirs.pooling} of {config.init_from} cannot be trained"
        log(f"pooling of the vectors: {pooling}, {source}")
        if theirs and theirs.unsupported:
            log(f"warning: {config.init_from}: {theirs.unsupported} is not computed; the vectors are others")
        prefixes = [config.of_tasks.get(name) for name in ("data.prefix_a", "data.prefix_b")]
        if unused := theirs and [name for name, text in theirs.prompts.items() if text not in prefixes]:
            log(f"prompts of {config.init_from} that data.prefix_a and data.prefix_b lack: {some(unused)}")
        if pooling == SENTENCE.pooling_of(model_config):
            return model_config
        return model_config.replace(classifier_pooling=pooling)

    def set_up(self) -> None:
        c, given = self.config, f"loss={self.config.loss}"
        if c.loss not in _LOSSES:
            raise UserError(f"{given}: expected {alternatives(_LOSSES)}")
        if c.loss in (COSENT, CLASSES) and not (self.columns.text_b and self.columns.label):
            raise UserError(f"{given}: expected --config.data.text_b=COLUMN and --config.data.label=COLUMN")
        super().set_up()
        self.sizes = self._sizes()

    def _sizes(self) -> tuple[int, ...]:
        given, width = self.config.dimensions, self.model_config.hidden_size
        try:
            sizes = tuple(int(size) for size in comma_lists.names(given, "dimensions"))
        except ValueError:
            sizes = (0,)
        if len({*sizes}) < len(sizes) or not all(0 < size < width for size in sizes):
            raise UserError(f"dimensions={given}: expected different numbers from 1 to {width - 1}")
        return sizes

    @classmethod
    def unused(cls, config: Any, spec: TaskSpec) -> Iterator[tuple[str, str]]:
        yield from super().unused(config, spec)
        if config.loss != CONTRASTIVE:
            for name in ("symmetric", "data.negatives"):
                yield name, f"it is only used with loss={CONTRASTIVE}"
        elif config.data.label and config.data.eval_columns:
            yield "data.label", f"loss={CONTRASTIVE} has no labels"
        if config.loss in (CLASSES, DENOISING):
            for name in ("temperature", "dimensions"):
                yield name, f"loss={config.loss} has no cosines"
        if config.loss == DENOISING:
            for name in ("data.text_b", "data.label"):
                yield name, f"loss={DENOISING} is trained on single texts (data.text_a)"
        else:
            yield "deletion", f"it is only used with loss={DENOISING}"
        if not config.data.text_b and not config.data.eval_columns:
            yield "data.prefix_b", "there are no second texts (data.text_b)"

    def batch_size_error(self, batch_size: int) -> str:
        if self.config.loss == COSENT:
            message = "batch_size=1: loss=cosent compares the pairs of a batch; expected 2 or more"
            return message if batch_size == 1 else ""
        return super().batch_size_error(batch_size) if self.config.loss == CONTRASTIVE else ""

    @property
    def classifier(self) -> ClassificationHead:
        """Returns a head without parameters, of which the pooling is that of the model."""
        return SENTENCE

    @property
    def sentence(self) -> SentenceVectors:
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
        columns = self.columns
        if self.config.loss == CONTRASTIVE:
            if not columns.text_b and not _has_dropout(self.model_config):
                raise UserError("data.text_b=: a text and its positive differ by dropout alone, which is 0")
            columns = dataclasses.replace(columns, label="")
        parse = table.parse_number if self.config.loss == COSENT else str
        examples = self._read_groups(path, columns, parse if columns.label else None)
        if self.config.loss == CLASSES:
            self.labels = table.infer_labels(examples.labels, path)
            numbers = table.label_numbers(self.labels)
            examples.labels = [table.label_index(numbers, label) for label in examples.labels]
        return examples

    def read(self, path: str) -> Examples:
        if self.config.loss == CLASSES and not self.config.data.eval_columns:
            raise UserError(f"{path}: classes are no similarities; give {EVAL_COLUMNS}")
        return super().read(path)

    def read_unlabeled(self, path: str, **options: Any) -> Examples:
        self._check_pairs(options)
        return super().read_unlabeled(path, **options)

    def line_reader(self, file_format: str = "auto", **columns: str) -> LineReader:
        self._check_pairs(columns)
        return super().line_reader(file_format, **columns)

    def _check_pairs(self, given: Mapping[str, Any]) -> None:
        if not (self.eval_columns.text_b or given.get("text_b")):
            raise UserError("predictions compare pairs; `bert-jax embed` gives the vectors of single texts")

    @property
    def repeats_single_texts(self) -> bool:
        """Returns whether the loss compares a text with itself."""
        return self.config.loss != DENOISING

    def objective(self) -> TextVectors:
        c, layout = self.config, self.tokenizer.layout
        if c.loss == DENOISING:
            return DenoisingAutoEncoder(
                self.model_config,
                layout.special_ids,
                c.deletion,
                layout.types,
                self.classifier,
                families.of(self.model_config).masked_lm,
            )
        return SentenceEmbedding(
            self.model_config,
            c.loss,
            self._group,
            c.temperature,
            c.symmetric,
            self.sizes,
            len(self.labels),
            layout.types,
            self.classifier,
        )

    # Predictions

    def decode(self, examples: Examples, rows: EncodedRows, outputs: np.ndarray) -> TablePredictions:
        vectors = unit_length(outputs.reshape(len(outputs), 2, -1))
        cosines = np.sum(vectors[:, 0] * vectors[:, 1], axis=-1, keepdims=True)
        if examples.labels:
            return SimilarityPredictions(examples, cosines, np.asarray(examples.labels, np.float32))
        return RetrievalPredictions(examples, cosines, np.empty(0), vectors=vectors)
