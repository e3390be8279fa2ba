"""Tagging of words, such as named entities, in CoNLL columns and JSON-lines."""

from __future__ import annotations

import io
import json
import os
import re
from collections import Counter
from typing import Any

import numpy as np
import optax

from bert_jax.errors import UserError
from bert_jax.io import atomic, files
from bert_jax.objectives.tagging import Tagging
from bert_jax.tasks import error_analysis, metrics
from bert_jax.tasks.base import Problem
from bert_jax.tasks.tagging import entities, frozen_encoder
from bert_jax.tasks.tagging.encoding import TaggedRows, encode
from bert_jax.tasks.tagging.word_files import DOCUMENT_START, TaggedSentences, read_sentences

_ENTITY_METRICS = ("f1", "precision", "recall", "accuracy")
_TAG_METRICS = ("accuracy", "f1_macro")
_HEADS = {"linear": 0, "bilstm": 2}  # layers of the LSTM
_LAST_FOUR = (-4, -3, -2, -1)
# Of the tags beside O: with fewer B- and I- among them, each tag stands for itself.
_ENTITY_SHARE = 0.5


class TaggingProblem(Problem):
    """A tag a word, from its first word-piece."""

    formats = (".conll", ".txt", ".tsv", ".jsonl")
    exported_as = "token_classification"

    def __init__(self, config, spec, labels, tokenizer, bert):
        super().__init__(config, spec, labels, tokenizer, bert)
        self.layers = _feature_layers(config, bert)

    @classmethod
    def from_training_file(cls, config, spec, tokenizer, bert, path):
        examples = read_tagged(config, path)
        counts = Counter(tag for tags in examples.tags for tag in tags)
        if len(counts) < 2:
            raise UserError(
                f"{path}: every one of the {counts.total():,} words has the tag {next(iter(counts))!r}: "
                "there is nothing to tell apart; check data.label and the file"
            )
        inside = {tag: count for tag, count in counts.items() if tag != entities.OUTSIDE}
        prefixed = sum(count for tag, count in inside.items() if entities.is_entity_tag(tag))
        if prefixed < _ENTITY_SHARE * sum(inside.values()):
            if len(counts) >= 20 and len(counts) > 0.5 * counts.total():
                raise UserError(
                    f"{path}: {len(counts)} different tags of {counts.total()} words; is data.label the "
                    "right column?"
                )
            labels = tuple(sorted(counts))
        else:
            labels = entities.tag_set(filter(entities.is_entity_tag, counts))
        problem = cls(config, spec, labels, tokenizer, bert)
        problem.check(examples)
        return problem, examples

    @property
    def of_entities(self) -> bool:
        """Whether the tags spell entities, as B-PER I-PER does, or each stands for itself."""
        return self.labels[0] == entities.OUTSIDE and all(map(entities.is_entity_tag, self.labels))

    @property
    def frozen(self) -> bool:
        return self.config.frozen

    @property
    def task(self) -> Tagging:
        lstm_layers = _HEADS[self.config.head]
        return Tagging(
            self.bert,
            len(self.labels),
            self.layers,
            lstm_layers,
            self.config.head_size,
            token_types=self.tokenizer.layout.types,
        )

    @property
    def metrics(self) -> tuple[str, ...]:
        known = _ENTITY_METRICS if self.of_entities else _TAG_METRICS
        return metrics.parse(self.config.metrics, known, "entities" if self.of_entities else "tags")

    def optimizer(self, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
        return frozen_encoder.head_only(optimizer, self.task.head) if self.frozen else optimizer

    def precompute(self, data, mesh, log):
        return frozen_encoder.compute(self, data, mesh, log) if self.frozen else data

    def read(self, path: str) -> TaggedSentences:
        examples = read_tagged(self.config, path)
        self.check(examples)
        return examples

    def read_unlabelled(
        self, path: str, *, test: bool = False, format: str = "auto", **columns
    ) -> TaggedSentences:
        del test
        for name in columns:
            if name not in ("text_a", "id"):
                raise UserError(f"--{name} is for tables of texts; tagging has --text_a and --id alone")
        data = self.config.data
        word, id = columns.get("text_a", data.text_a), columns.get("id", data.id)
        return read_sentences(path, word=word, id=id, format=format, tagged=False)

    def check(self, examples: TaggedSentences) -> None:
        """Tags as the model has them: in BIO2, and none but its own; sentences with others are left out.

        Raises:
          UserError: these are too many.
        """
        known = set(self.labels)

        def wrong(tag):
            usable = self.of_entities and entities.is_entity_tag(tag)
            if tag in known or (usable and entities.to_bio2([tag])[0] in known):
                return ""
            shown = ", ".join(map(repr, self.labels[:10])) + (", ..." if len(self.labels) > 10 else "")
            return f"tag {tag!r} is none of {shown}"

        examples.keep(wrong)
        if self.of_entities:
            scheme, invalid = entities.detect_scheme(examples.tags)
            if invalid:
                examples.notes.append(
                    f"{invalid} tags are invalid in {scheme} and were mended as conlleval reads them"
                )
            examples.tags = [entities.to_bio2(tags) for tags in examples.tags]

    def encode(self, examples: TaggedSentences) -> TaggedRows:
        return encode(
            examples, self.tokenizer, self.config.max_length, self.labels, self.config.document_context
        )

    def loss(self, data: TaggedRows, outputs: np.ndarray) -> float:
        return self.task.evaluation_loss(outputs, data.token_targets["tags"])

    def predicted(self, examples: TaggedSentences, data: TaggedRows, outputs: np.ndarray):
        """(the tags of each sentence, float32 [words] the probability of each tag) of the model's outputs."""
        found = outputs[data.word_tokens]
        best = np.argmax(found, axis=-1)
        sentences, begin = [], 0
        for words in examples.words:
            tags = [self.labels[i] for i in best[begin : begin + len(words)]]
            sentences.append(entities.to_bio2(tags) if self.of_entities else tags)
            begin += len(words)
        return sentences, found[np.arange(len(best)), best]

    def score(self, examples: TaggedSentences, data: TaggedRows, outputs: np.ndarray) -> dict[str, float]:
        sentences, _ = self.predicted(examples, data, outputs)
        truth, guess = (
            np.array([tag for tags in side for tag in tags]) for side in (examples.tags, sentences)
        )
        found = {"accuracy": metrics.accuracy(guess, truth)}
        if self.of_entities:
            found |= entities.total(entities.count(examples.tags, sentences)).scores
        elif "f1_macro" in self.metrics:
            found["f1_macro"] = metrics.f1_macro(guess, truth)
        return {name: found[name] for name in self.metrics}

    def breakdown(self, examples: TaggedSentences, data: TaggedRows, outputs: np.ndarray) -> dict[str, dict]:
        sentences, _ = self.predicted(examples, data, outputs)
        as_entities = [
            tags if self.of_entities else [f"S-{tag}" for tag in tags]
            for tags in (*examples.tags, *sentences)
        ]
        counts = entities.count(as_entities[: len(sentences)], as_entities[len(sentences) :])
        return {type: counts[type].scores | counts[type]._asdict() for type in counts}

    def write(self, path: str, examples: TaggedSentences, data: TaggedRows, outputs: np.ndarray) -> None:
        content = io.StringIO()
        if files.suffix(path) == ".jsonl":
            for row in self.records(examples, data, outputs):
                content.write(json.dumps(row, ensure_ascii=False) + "\n")
        else:
            _write_columns(content, examples, self.predicted(examples, data, outputs)[0])
        atomic.write_text(path, content.getvalue())

    def records(
        self, examples: TaggedSentences, data: TaggedRows, outputs: np.ndarray
    ) -> list[dict[str, Any]]:
        sentences, probabilities = self.predicted(examples, data, outputs)
        rows, begin = [], 0
        for id_, words, tags in zip(examples.ids, examples.words, sentences, strict=True):
            row = {"id": id_, "words": words, "tags": tags}
            if self.of_entities:
                row["entities"] = [
                    span._asdict()
                    | {
                        "text": " ".join(words[span.start : span.end]),
                        "probability": round(
                            float(np.prod(probabilities[begin + span.start : begin + span.end])), 6
                        ),
                    }
                    for span in entities.spans(tags)
                ]
            rows.append(row)
            begin += len(words)
        return rows

    def report(
        self, directory: Any, examples: TaggedSentences, data: TaggedRows, outputs: np.ndarray
    ) -> None:
        """A row of errors-dev.tsv is a word with its sentence."""
        sentences, confidence = self.predicted(examples, data, outputs)
        numbers = {tag: number for number, tag in enumerate(self.labels)}
        targets, predicted = (
            np.array([numbers[tag] for tags in side for tag in tags]) for side in (examples.tags, sentences)
        )
        places = [(i, j) for i, words in enumerate(examples.words) for j in range(len(words))]
        wrong = error_analysis.surest_first(targets == predicted, confidence)
        error_analysis.write_table(
            os.path.join(directory, "errors-dev.tsv"),
            ["line", "label", "prediction", "confidence", "word", "sentence"],
            (
                [
                    *(examples.lines[i][j], examples.tags[i][j], sentences[i][j], f"{confidence[word]:.4f}"),
                    *(examples.words[i][j], " ".join(examples.words[i])),
                ]
                for word, (i, j) in ((word, places[word]) for word in wrong)
            ),
        )
        error_analysis.plot_confusions(
            os.path.join(directory, "scores-dev.png"), targets, predicted, self.labels, "words"
        )

    def describe(self, examples: TaggedSentences, data: TaggedRows) -> str:
        parts = [f"{len(data.word_tokens):,} words"]
        if windows_more := len(data) - len(examples):
            parts.append(f"{windows_more:,} rows more than sentences, for those longer than a row")
        if examples.tags is not None and self.of_entities:
            counts = entities.count(examples.tags, examples.tags)
            shown = [f"{type or 'entities'}: {found.gold:,}" for type, found in counts.items()]
            parts.append("entities " + ", ".join(shown[:12]) + (", ..." if len(shown) > 12 else ""))
        return "; ".join(parts)


def read_tagged(config: Any, path: str) -> TaggedSentences:
    """The sentences of a file with tags, in the columns that a configuration names."""
    data = config.data
    if data.text_b:
        raise UserError(f"data.text_b={data.text_b}: tagging has no second text; leave it empty")
    return read_sentences(path, word=data.text_a, tag=data.label, id=data.id, format=data.format)


def _write_columns(file, examples, sentences):
    """A word, its tag where the file has one, and the predicted one a line: what conlleval reads."""
    words = [[_one_field(word) for word in sentence] for sentence in examples.words]
    separator = "\t" if any(" " in word for sentence in words for word in sentence) else " "
    for i, tags in enumerate(sentences):
        if examples.has_documents and (i == 0 or examples.documents[i] != examples.documents[i - 1]):
            width = 2 if examples.tags is None else 3
            file.write(separator.join([DOCUMENT_START, *["O"] * (width - 1)]) + "\n\n")
        columns = [words[i], tags] if examples.tags is None else [words[i], examples.tags[i], tags]
        for fields in zip(*columns, strict=True):
            file.write(separator.join(fields) + "\n")
        file.write("\n")


def _one_field(word):
    return re.sub(r"[ \t\r\n]+", " ", word).strip(" ") or "_"


def _feature_layers(config, bert) -> tuple[int, ...]:
    """The encoder's layers that a frozen model's head reads; none where the encoder is trained."""
    if config.head not in _HEADS:
        raise UserError(f"head={config.head}: expected {' or '.join(_HEADS)}")
    if not config.frozen:
        for name, default in (("head", "linear"), ("feature_layers", "")):
            if config[name] != default:
                raise UserError(f"{name}={config[name]}: is for a frozen encoder; add --config.frozen=true")
        return ()
    if not config.init_from or config.from_scratch:
        raise UserError("frozen=true keeps the weights of a checkpoint as they are; give --config.init_from")
    if config.head_size < 1:
        raise UserError(f"head_size={config.head_size}: expected 1 or more")
    depth = bert.num_hidden_layers
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
