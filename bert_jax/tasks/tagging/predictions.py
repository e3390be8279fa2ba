"""The predictions of tagging, and their files and reports."""

from __future__ import annotations

import codecs
import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from bert_jax.io import atomic, files
from bert_jax.tasks import error_analysis, writers
from bert_jax.tasks.error_analysis import Confusions
from bert_jax.tasks.predictions import Predictions
from bert_jax.tasks.tagging import entities
from bert_jax.tasks.tagging.word_files import DOCUMENT_START, TaggedSentences


@dataclasses.dataclass
class TagPredictions(Predictions):
    """Predictions of tagging: the tag of each word.

    Attributes:
        examples: the sentences.
        labels: the tags in the order of the logits.
        tags: the predicted tags of each sentence, in BIO2 if tags encode entities.
        probabilities: float32 [words of all sentences], the probability of the most likely tag of each word.
    """

    examples: TaggedSentences
    labels: Sequence[str]
    tags: list[list[str]]
    probabilities: np.ndarray
    error_columns = ("line", "label", "prediction", "confidence", "word", "sentence")

    @classmethod
    def decode(cls, examples: TaggedSentences, labels: Sequence[str], outputs: np.ndarray) -> Self:
        best = np.argmax(outputs, axis=-1)
        of_entities = entities.are_of_entities(labels)
        sentences, begin = [], 0
        for words in examples.words:
            tags = [labels[i] for i in best[begin : begin + len(words)]]
            sentences.append(entities.to_bio2(tags) if of_entities else tags)
            begin += len(words)
        return cls(examples, labels, sentences, outputs[np.arange(len(best)), best])

    @property
    def of_entities(self) -> bool:
        """Returns whether the tags encode entities."""
        return entities.are_of_entities(self.labels)

    def records(self) -> Iterator[dict[str, Any]]:
        begin = 0
        for id_, words, tags in zip(self.examples.ids, self.examples.words, self.tags, strict=True):
            row: dict[str, Any] = {"id": id_, "words": words, "tags": tags}
            if self.of_entities:
                row["entities"] = [
                    span._asdict()
                    | {
                        "text": " ".join(words[span.start : span.end]),
                        "probability": round(
                            float(np.prod(self.probabilities[begin + span.start : begin + span.end])), 6
                        ),
                    }
                    for span in entities.spans(tags)
                ]
            yield row
            begin += len(words)

    def write(self, path: str) -> None:
        if files.suffix(path) == ".jsonl":
            writers.write_json_lines(path, self.records())
            return
        with atomic.replace_file(path) as file:
            out = codecs.getwriter("utf-8")(file)
            _write_columns(out, self.examples, self.tags, files.suffix(path) == ".tsv")

    def breakdown(self) -> dict[str, dict[str, float]]:
        """Returns the scores and counts of each type of entity, or of each tag if tags encode no entities."""
        truth, guess = (
            [tags if self.of_entities else [f"S-{tag}" for tag in tags] for tags in side]
            for side in (self.examples.tags, self.tags)
        )
        counts = entities.count(truth, guess)
        return {type: counts[type].scores | counts[type]._asdict() for type in counts}

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        return not next(iter(scores.values()))

    def errors(self) -> Iterator[Sequence[Any]]:
        examples, confidence = self.examples, self.probabilities
        positions = [(i, j) for i, words in enumerate(examples.words) for j in range(len(words))]
        truth, guess = (np.array([*itertools.chain(*side)]) for side in (examples.tags, self.tags))
        for word in error_analysis.surest_first(truth == guess, confidence):
            i, j = positions[word]
            tags = (examples.tags[i][j], self.tags[i][j])
            sentence = examples.words[i]
            yield examples.lines[i][j], *tags, f"{confidence[word]:.4f}", sentence[j], " ".join(sentence)

    def confusions(self) -> Confusions | None:
        """Returns the confusion matrix of the tags, with those that training lacks; None for more than 40."""
        sides = [list(itertools.chain.from_iterable(side)) for side in (self.examples.tags, self.tags)]
        names = [*self.labels, *sorted({*sides[0]}.difference(self.labels))]
        numbers = {tag: number for number, tag in enumerate(names)}
        targets, predicted = (np.array([numbers[tag] for tag in side]) for side in sides)
        return Confusions.of(targets, predicted, names, "words")

    def plot(self, path: str) -> None:
        if found := self.confusions():
            error_analysis.plot_confusions(path, found)


def _write_columns(file, examples, sentences, by_tabs):
    """Writes one word per line with its gold tag, if any, and its predicted tag, in conlleval's format.

    Columns are separated by tabs if `by_tabs`, or if a word or a tag has a space.
    """
    words = [[_one_field(word) for word in sentence] for sentence in examples.words]
    fields = itertools.chain.from_iterable([*words, *sentences, *examples.tags])
    separator = "\t" if by_tabs or any(" " in field for field in fields) else " "
    for i, tags in enumerate(sentences):
        if examples.has_documents and (i == 0 or examples.documents[i] != examples.documents[i - 1]):
            file.write(separator.join([DOCUMENT_START, *["O"] * (2 if examples.tags else 1)]) + "\n\n")
        columns = [words[i], examples.tags[i], tags] if examples.tags else [words[i], tags]
        for fields in zip(*columns, strict=True):
            file.write(separator.join(fields) + "\n")
        file.write("\n")


def _one_field(word):
    return re.sub(r"[ \t\r\n]+", " ", word).strip(" ") or "_"
