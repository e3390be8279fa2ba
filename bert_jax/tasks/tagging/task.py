"""The tagging task, such as named entity recognition, on CoNLL columns or JSON lines."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.io.wording import alternatives, counted
from bert_jax.models.baselines.feature_tagger import FEATURE_MIXES
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import HIDDEN_DROPOUT, TOKENS, ClassificationHead
from bert_jax.objectives.tagging import Tagging
from bert_jax.settings.config_fields import option
from bert_jax.settings.typed.finetune_config import FinetuneConfig
from bert_jax.tasks import metrics
from bert_jax.tasks.base import FinetuneTask
from bert_jax.tasks.config import BILSTM, TaskConfig
from bert_jax.tasks.readers.labels import check_counts, list_counts, unknown
from bert_jax.tasks.readers.lines import SOURCE, LineReader, ids_of
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.tagging import entities, frozen_encoder, word_files
from bert_jax.tasks.tagging.encoding import TaggedRows, encode
from bert_jax.tasks.tagging.predictions import TagPredictions
from bert_jax.tasks.tagging.word_files import (
    DOCUMENT,
    DOCUMENT_START,
    WORDS,
    TaggedSentences,
    json_list,
    read_sentences,
)

_ENTITY_METRICS = ("f1", "precision", "recall", "accuracy")
_TAG_METRICS = ("accuracy", "f1_macro")
_LAST_FOUR = (-4, -3, -2, -1)
_OF_FEATURES = dataclasses.replace(TOKENS, drop_out=HIDDEN_DROPOUT)  # as `FeatureHead` computes it
# Tags are taken to encode entities if at least this fraction of the tags other than O have a prefix such as
# B-.
_ENTITY_SHARE = 0.5


@dataclasses.dataclass(frozen=True)
class TaggingConfig(TaskConfig):
    """The fields of tagging."""

    document_context: bool = option(
        False, "rows are filled up with the sentences around ([tagging.md](tagging.md))"
    )
    frozen: bool = option(False, "the encoder stays as it is, and the head alone is trained")
    feature_layers: str = option(
        "", "that a frozen encoder's head reads, such as `-4,-3,-2,-1`, the default; 0 is the embeddings"
    )
    feature_mix: str = option(
        "concat", "how it combines them: `concat`, `sum`, `weighted` (a learned weighted sum, as in ELMo)"
    )


class WordLines(LineReader):
    """Reads sentences from a stream: lists of words in JSON, or plain text with spaces between the words."""

    own_names = {"text_a": WORDS, "text_b": "", "id": "id"}  # noqa: RUF012
    needs_text = True

    def __init__(self, file_format: str, names: Mapping[str, str]):
        if names["text_b"]:
            raise UserError(f"--text_b={names['text_b']}: tagging has no second text; leave it out")
        super().__init__(file_format, names)

    @property
    def expected(self) -> str:
        """Returns a description of a line of plain text, for messages."""
        return "the words of a sentence with spaces between"

    def from_text(self, text: str) -> dict[str, Any]:
        """Returns the words of a line of plain text."""
        words = [word for word in re.split("[ \t]+", text) if word]
        self.check_text(words, "text")
        return {"text_a": words}

    def value(self, row: Mapping[str, Any], field: str, key: str) -> list[str]:
        """Returns the words of a JSON object."""
        return json_list(row, key)

    def examples(self, rows: Sequence[tuple[int, dict[str, Any]]]) -> TaggedSentences:
        """Returns the sentences, without tags."""
        lines = [line for line, _ in rows]
        words = [row["text_a"] for _, row in rows]
        places = [[line] * len(each) for line, each in zip(lines, words, strict=True)]
        return TaggedSentences(SOURCE, words, [], lines, places, ids_of(rows), rows=len(rows))


class TaggingTask(FinetuneTask):
    """Tagging: predicts a tag for each word from its first word piece."""

    Config = TaggingConfig
    config: TaggingConfig
    Lines = WordLines
    title = "tagging (tagging, conll)"
    file_formats = word_files.FORMATS
    fields_of_formats: ClassVar = {"data.id": ("jsonl",)}
    formats = (".conll", ".txt", ".tsv", ".jsonl")
    export_head = "token_classification"

    def set_up(self) -> None:
        """Finds the layers that the head of a frozen encoder reads."""
        if self.config.feature_mix not in FEATURE_MIXES:
            given = f"feature_mix={self.config.feature_mix}"
            raise UserError(f"{given}: expected {alternatives(FEATURE_MIXES)}")
        self.layers = _feature_layers(self.config, self.model_config)

    def read_training(self, path: str) -> TaggedSentences:
        """Returns the sentences; the labels are all tags of the file."""
        examples = self._read(path)
        self.training_columns = examples.width
        counts = Counter(tag for tags in examples.tags for tag in tags)
        of_entities = entities.share(counts) >= _ENTITY_SHARE
        check_counts(counts, path, "tag", "words", may_differ=of_entities)
        if of_entities:
            self.labels = entities.tag_set(filter(entities.is_entity_tag, counts))
        else:
            self.labels = tuple(sorted(counts))
            if entities.OUTSIDE in self.labels:
                tag = next(tag for tag in self.labels if tag != entities.OUTSIDE)
                examples.notes.append(
                    f"tags such as {tag!r} have no prefix (B-, I-): entities are not scored, and "
                    f"{self.metrics[0]} of words selects the best checkpoint"
                )
        examples.keep(self._unknown)
        self._convert(examples)
        return self._checked_context(examples)

    @property
    def of_entities(self) -> bool:
        """Returns whether the tags encode entities, as B-PER and I-PER do, or are independent labels."""
        return entities.are_of_entities(self.labels)

    @property
    def freeze(self) -> str:
        """Returns a regular expression for the encoder's parameters, if the head alone is trained."""
        return "encoder/.*" if self.config.frozen else ""

    @property
    def classifier(self) -> ClassificationHead:
        """Returns the structure of the head in the model's family, or of the head of a frozen encoder."""
        return _OF_FEATURES if self.layers else super().classifier

    def objective(self) -> Tagging:
        """Returns the objective of the configured head."""
        c = self.config
        return Tagging(
            self.model_config,
            len(self.labels),
            self.layers,
            2 if c.head == BILSTM else 0,
            c.head_size,
            c.feature_mix,
            token_types=self.tokenizer.layout.types,
            classifier=self.classifier,
        )

    @property
    def known_metrics(self) -> tuple[str, ...]:
        """Returns the metrics of entities, or those of tags that encode no entities."""
        return _ENTITY_METRICS if self.of_entities else _TAG_METRICS

    def precompute(
        self, rows: dict[str, EncodedRows], mesh: jax.sharding.Mesh, run: FinetuneConfig, log: Callable
    ) -> dict[str, EncodedRows]:
        """Returns the rows, with the outputs of the encoder if it is frozen."""
        return frozen_encoder.compute(self.objective(), rows, mesh, run, log) if self.config.frozen else rows

    def read(self, path: str) -> TaggedSentences:
        """Returns the sentences of a file, with their tags, of which training may lack some."""
        examples = self._read(path)
        examples.note_unknown(examples.problems(self._unknown))
        self._convert(examples)
        return self._checked_context(examples)

    def read_unlabeled(
        self, path: str, *, test: bool = False, format: str = "auto", **columns: Any
    ) -> TaggedSentences:
        """Returns the sentences of a file; test files have the same columns as the other splits.

        Raises:
            UserError: as of `read_sentences`; without `text_a`, a file may have no more columns than the
                training file had.
        """
        for name in columns:
            if name not in ("text_a", "id"):
                raise UserError(f"--{name} is for tables of texts; tagging only has --text_a and --id")
        format, data = self.format_of_unlabeled(path, format, columns), self.config.data
        word, id = columns.get("text_a", data.text_a), columns.get("id", data.id)
        most = None if "text_a" in columns else self.training_columns
        return self._checked_context(
            read_sentences(path, word=word, id=id, format=format, tagged=False, columns=most)
        )

    def _read(self, path: str) -> TaggedSentences:
        data = self.config.data
        return read_sentences(path, word=data.text_a, tag=data.label, id=data.id, format=data.format)

    def _checked_context(self, examples: TaggedSentences) -> TaggedSentences:
        """Returns the examples, with a note if rows have context and the file does not mark documents."""
        if self.config.document_context and not examples.has_documents:
            examples.notes.append(
                f"document_context=true: neither {DOCUMENT_START} nor a key {DOCUMENT!r} is there, so that "
                "all sentences are read as one document"
            )
        return examples

    @property
    def stream_warning(self) -> str:
        """Returns that the sentences of a stream have no context, if those of a file have."""
        if not self.config.document_context:
            return ""
        return f"document_context=true: in {SOURCE} and requests, a sentence is read without those around it"

    def _unknown(self, tag: str) -> str:
        """Returns an error message for a tag that the model lacks, or ""."""
        usable = self.of_entities and entities.is_entity_tag(tag)
        known = tag in self.labels or (usable and entities.to_bio2([tag])[0] in self.labels)
        return "" if known else unknown(self.labels, tag, "tag")

    def _convert(self, examples: TaggedSentences) -> None:
        """Converts entity tags to BIO2, in place; a tag without a prefix is one of an entity of this type."""
        if not self.of_entities:
            return
        tags = [[tag if entities.is_entity_tag(tag) else f"I-{tag}" for tag in one] for one in examples.tags]
        scheme, invalid = entities.detect_scheme(tags)
        if invalid:
            examples.notes.append(
                f"{counted(invalid, 'tag is', 'tags are')} invalid in {scheme} and read as by conlleval"
            )
        examples.tags = [entities.to_bio2(one) for one in tags]

    def encode(self, examples: TaggedSentences) -> TaggedRows:
        """Returns the rows of the sentences."""
        return encode(
            examples, self.tokenizer, self.config.max_seq_length, self.labels, self.config.document_context
        )

    def decode(self, examples: TaggedSentences, rows: TaggedRows, outputs: np.ndarray) -> TagPredictions:
        """Returns the predicted tag of each word."""
        return TagPredictions.decode(examples, self.labels, outputs[rows.word_tokens])

    def score(self, predictions: TagPredictions) -> dict[str, float]:
        """Returns the metrics of the entities, or of the tags if they encode no entities."""
        truth, guess = (
            np.array([tag for tags in side for tag in tags])
            for side in (predictions.examples.tags, predictions.tags)
        )
        found = {"accuracy": metrics.accuracy(guess, truth)}
        if self.of_entities:
            found |= entities.total(entities.count(predictions.examples.tags, predictions.tags)).scores
        elif "f1_macro" in self.metrics:
            found["f1_macro"] = metrics.f1_macro(guess, truth)
        return {name: found[name] for name in self.metrics}

    def describe(self, examples: TaggedSentences, data: TaggedRows) -> str:
        """Returns the numbers of words, of additional rows, and of entities by type."""
        parts = [f"{counted(len(data.word_tokens), 'word')}"]
        if windows_more := len(data) - len(examples):
            parts.append(f"{counted(windows_more, 'row')} more than sentences, for those longer than a row")
        if examples.tags and self.of_entities:
            counts = entities.count(examples.tags, examples.tags)
            gold = {type or "entities": found.gold for type, found in counts.items()}
            parts.append(f"entities {list_counts(gold)}")
        return "; ".join(parts)

    @classmethod
    def unused(cls, config: Any, spec: TaskSpec) -> Iterator[tuple[str, str]]:
        """Yields the fields of other heads than the configured one."""
        yield from super().unused(config, spec)
        if not config.frozen:
            for name in ("feature_layers", "feature_mix"):
                yield name, "it is only used with a frozen encoder, add --config.frozen=true"
        elif not config.init_from or config.from_scratch:
            yield "frozen", "the weights of a checkpoint are kept as they are, and there is no init_from"


def _feature_layers(config: TaggingConfig, model_config: EncoderConfig) -> tuple[int, ...]:
    """Returns the layers that the head of a frozen encoder reads; empty if the encoder is trained."""
    if not config.frozen:
        return ()
    depth = model_config.computed_layers
    if not config.feature_layers:
        return _LAST_FOUR[-depth:]
    try:
        layers = tuple(int(layer) for layer in config.feature_layers.split(","))
    except ValueError:
        layers = ()
    if not layers or not all(-depth - 1 <= layer <= depth for layer in layers):
        raise UserError(
            f"feature_layers={config.feature_layers}: expected numbers with commas between, such as -2,-1, "
            f"from {-depth - 1} to {depth}; 0 is the embeddings, {depth} and -1 the last layer"
        )
    return layers
