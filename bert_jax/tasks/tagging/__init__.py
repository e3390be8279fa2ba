"""The tagging task, such as named entity recognition."""

from __future__ import annotations

import codecs
import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax import convert
from bert_jax.errors import UserError
from bert_jax.io import atomic, comma_lists, files
from bert_jax.io.wording import counted
from bert_jax.kernels import check as kernel_check
from bert_jax.models.baselines.feature_tagger import FEATURE_MIXES
from bert_jax.models.heads.structures import HIDDEN_DROPOUT, TOKENS, ClassificationHead
from bert_jax.objectives.tagging import Tagging
from bert_jax.parallel import sharding
from bert_jax.settings.config_fields import option
from bert_jax.settings.finetune_config import FinetuneConfig
from bert_jax.tasks import metrics, predictions
from bert_jax.tasks.base import BILSTM, FinetuneTask, TaskConfig
from bert_jax.tasks.predictions import DIGITS, Predictions
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.rows import outputs
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.table import SOURCE, LineReader, Malformed, check_counts, list_counts, unknown_label
from bert_jax.tasks.tagging import entities
from bert_jax.tasks.tagging.sentences import (
    DOCUMENT_START,
    WORDS,
    TaggedRows,
    TaggedSentences,
    encode,
    read_sentences,
    words_of,
)

_OF_FEATURES = dataclasses.replace(TOKENS, drop_out=HIDDEN_DROPOUT)  # as in `FeatureHead`
_MAX_BYTES = 2 << 30  # larger features are not stored but computed in each step


@dataclasses.dataclass
class TagPredictions(Predictions):
    """Predictions of tagging: the tag of each word.

    Attributes:
        examples: the sentences.
        of_entities: whether the tags encode entities.
        tags: the predicted tags of each sentence, in BIO2 if tags encode entities.
        probabilities: float32 [words of all sentences], the probability of each word's most likely tag.
    """

    examples: TaggedSentences
    of_entities: bool
    tags: list[list[str]]
    probabilities: np.ndarray

    def records(self) -> Iterator[dict[str, Any]]:
        begin = 0
        for id_, words, tags in zip(self.examples.ids, self.examples.words, self.tags, strict=True):
            row: dict[str, Any] = {"id": id_, "words": words, "tags": tags}
            if self.of_entities:
                row["entities"] = []
                for span in entities.spans(tags):
                    of_words = self.probabilities[begin + span.start : begin + span.end]
                    probability = round(float(np.prod(of_words)), DIGITS)
                    text = " ".join(words[span.start : span.end])
                    row["entities"].append({**span._asdict(), "text": text, "probability": probability})
            yield row
            begin += len(words)

    def write(self, path: str) -> None:
        if files.suffix(path) == ".jsonl":
            predictions.write_json_lines(path, self.records())
            return
        with atomic.replace_file(path) as file:
            out = codecs.getwriter("utf-8")(file)
            _write_columns(out, self.examples, self.tags, files.suffix(path) == ".tsv")

    def breakdown(self) -> dict[str, dict[str, float]]:
        truth, guess = (
            [tags if self.of_entities else [f"S-{tag}" for tag in tags] for tags in side]
            for side in (self.examples.tags, self.tags)
        )
        counts = entities.count(truth, guess)
        return {type: counts[type].scores | counts[type]._asdict() for type in counts}

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        return not next(iter(scores.values()))

    def mistakes(self) -> Iterator[tuple[Any, ...]]:
        place, examples = 0, self.examples
        columns = examples.ids, examples.words, examples.tags, self.tags
        for id_, words, truth, guess in zip(*columns, strict=True):
            for word, gold, tag in zip(words, truth, guess, strict=True):
                if gold != tag:
                    yield id_, gold, tag, self.probabilities[place], word, " ".join(words)
                place += 1


def _write_columns(file, examples, sentences, by_tabs):
    """Writes one word per line with its gold tag, if any, and its predicted tag, in conlleval's format.

    Columns are separated by tabs if `by_tabs` is set or if a word or a tag contains a space.
    """
    words = [[re.sub(r"[ \t\r\n]+", " ", word).strip(" ") or "_" for word in each] for each in examples.words]
    sides = [words, examples.tags, sentences] if examples.tags else [words, sentences]
    fields = itertools.chain.from_iterable(itertools.chain.from_iterable(sides))
    separator = "\t" if by_tabs or any(" " in field for field in fields) else " "
    for i, columns in enumerate(zip(*sides, strict=True)):
        if examples.has_documents and (i == 0 or examples.documents[i] != examples.documents[i - 1]):
            file.write(separator.join([DOCUMENT_START, *["O"] * (len(sides) - 1)]) + "\n\n")
        file.writelines(separator.join(fields) + "\n" for fields in zip(*columns, strict=True))
        file.write("\n")


@dataclasses.dataclass(frozen=True)
class TaggingConfig(TaskConfig):
    """The fields of tagging."""

    document_context: bool = option(False, "Fill rows with the surrounding sentences of the document.")
    frozen: bool = option(False, "Freeze the encoder and train only the head.")
    feature_layers: str = option(
        "", "Layers that the head reads if the encoder is frozen; 0 is the embeddings. Empty: `-4,-3,-2,-1`."
    )
    feature_mix: str = option(
        "concat",
        "Combination of `feature_layers`: `concat`, `sum`, or `weighted` (learned, as in ELMo).",
        choices=tuple(FEATURE_MIXES),
    )


class WordLines(LineReader):
    """Reads sentences from a stream: lists of words in JSON, or plain text with words separated by spaces."""

    own_names = {"text_a": WORDS[0], "text_b": "", "id": "id"}  # noqa: RUF012
    expected = "the words of a sentence with spaces between"  # type: ignore[assignment]

    def from_text(self, text: str) -> dict[str, Any]:
        return self.from_object({self.columns[0]: list(filter(None, re.split("[ \t]+", text)))})

    def value(self, row: Mapping[str, Any], field: str, key: str) -> list[str]:
        if not (words := words_of(row, [key])):
            raise Malformed(f"{key!r} has no words")
        return words

    def collect(self, rows: Sequence[dict[str, Any]]) -> TaggedSentences:
        words, ids = [row["text_a"] for row in rows], [row["id"] for row in rows]
        return TaggedSentences(SOURCE, words, [], list(range(len(rows))), ids, rows=len(rows))


class TaggingTask(FinetuneTask):
    """Tagging: predicts a tag for each word from its first subword."""

    Config = TaggingConfig
    config: TaggingConfig
    Lines = WordLines
    title = "tagging (tagging, conll)"
    formats = (".conll", ".txt", ".tsv", ".jsonl")
    export_head = "token_classification"
    rules = (
        ("feature_layers feature_mix", lambda c: c.frozen, "frozen=true"),
        ("frozen", lambda c: c.init_from and not c.from_scratch, "the weights of init_from"),
        ("adapter.kind", lambda c: not c.frozen, "frozen=false"),
    )

    def set_up(self) -> None:
        c, depth = self.config, self.model_config.num_hidden_layers
        known = {str(layer): layer for layer in range(-depth - 1, depth + 1)}
        names = comma_lists.names(c.feature_layers)
        if not known.keys() >= {*names}:
            raise UserError(
                f"feature_layers={c.feature_layers}: expected {-depth - 1} to {depth}, such as -2,-1"
            )
        self.layers = tuple(known[name] for name in names)
        if c.frozen and not names:
            self.layers = (-4, -3, -2, -1)[-depth:]

    def read_training(self, path: str) -> TaggedSentences:
        examples = self._read(path)
        counts = Counter(tag for tags in examples.tags for tag in tags)
        independent = [tag for tag in counts if not entities.is_entity_tag(tag)]
        check_counts(counts, path, may_differ=not independent)
        self.labels = tuple(sorted(counts)) if independent else entities.tag_set(counts)
        if independent and entities.OUTSIDE in self.labels:
            examples.notes.append(f"{independent[0]!r} has no prefix (B-, I-): entities are not scored")
        return self._converted(examples)

    @property
    def of_entities(self) -> bool:
        """Returns whether the tags encode entities, such as B-PER and I-PER, or are independent labels."""
        return self.labels[0] == entities.OUTSIDE and all(map(entities.is_entity_tag, self.labels))

    @property
    def freeze(self) -> str:
        return "encoder/.*" if self.config.frozen else ""

    @property
    def classifier(self) -> ClassificationHead:
        return _OF_FEATURES if self.layers else super().classifier

    def objective(self) -> Tagging:
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
        return ("f1", "precision", "recall", "accuracy") if self.of_entities else ("accuracy", "f1_macro")

    def precompute(
        self, rows: dict[str, EncodedRows], mesh: jax.sharding.Mesh, run: FinetuneConfig, log: Callable
    ) -> dict[str, EncodedRows]:
        """Returns the rows, with the outputs of the encoder as `token_features` if it is frozen."""
        if not self.config.frozen:
            return rows
        objective = self.objective()
        width, tokens = objective.feature_width, sum(len(each.tokens) for each in rows.values())
        size = tokens * width * np.dtype(np.float16).itemsize
        if size > _MAX_BYTES:
            log(f"features of {tokens:,} tokens take {size / 2**30:.1f} GiB: computed again in each step")
            return rows
        kernel_check.ensure(objective.config, log)
        abstract = {"encoder": sharding.abstract_replicated(objective.init_shapes, mesh)["encoder"]}
        params, _ = convert.load_params(run.init_from, abstract, ignore=run.init_ignore, log=log)
        replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        features = sharding.MeshFunction(jax.jit(objective.features, out_shardings=replicated), mesh)
        shapes, result = outputs.Shapes(run.batch_size), {}
        for split, each in rows.items():
            values = outputs.predict_all(features, params, each, shapes, mesh)
            result[split] = dataclasses.replace(each, token_features={"features": values})
        log(f"features of {tokens:,} tokens computed once: {size / 2**20:.0f} MiB, {width} numbers per token")
        return result

    def read(self, path: str) -> TaggedSentences:
        examples = self._read(path)
        unknown = ((id_, self._unknown(tags)) for id_, tags in zip(examples.ids, examples.tags, strict=True))
        examples.note_unknown(f"sentence {id_}: {problem}" if problem else "" for id_, problem in unknown)
        return self._converted(examples)

    def read_unlabeled(
        self, path: str, *, test: bool = False, format: str = "auto", **columns: Any
    ) -> TaggedSentences:
        """Returns the sentences of a file; test files have the same columns as the other splits."""
        data = self.config.data
        if columns.get("text_b"):
            raise UserError(f"--text: expected one column of words, but got {columns['text_b']!r} too")
        word, id_ = columns.get("text_a", data.text_a), columns.get("id", data.id)
        format = data.format if format == "auto" else format
        return self._converted(read_sentences(path, word=word, id=id_, format=format, tagged=False))

    def _read(self, path: str) -> TaggedSentences:
        data = self.config.data
        return read_sentences(path, word=data.text_a, tag=data.label, id=data.id, format=data.format)

    def _unknown(self, tags: Sequence[str]) -> str:
        for tag in dict.fromkeys(tags):
            usable = self.of_entities and entities.is_entity_tag(tag)
            if tag not in self.labels and not (usable and entities.to_bio2([tag])[0] in self.labels):
                return unknown_label(self.labels, tag)
        return ""

    def _converted(self, examples: TaggedSentences) -> TaggedSentences:
        if self.of_entities:
            tags = [[t if entities.is_entity_tag(t) else f"I-{t}" for t in one] for one in examples.tags]
            examples.tags = [entities.to_bio2(one) for one in tags]
        if self.config.document_context and not examples.has_documents:
            examples.notes.append("document_context=true: no documents are marked, and all sentences are one")
        return examples

    def encode(self, examples: TaggedSentences) -> TaggedRows:
        return encode(
            examples, self.tokenizer, self.config.max_seq_length, self.labels, self.config.document_context
        )

    def decode(self, examples: TaggedSentences, rows: TaggedRows, outputs: np.ndarray) -> TagPredictions:
        probabilities, sentences, begin = outputs[rows.word_tokens], [], 0
        best = np.argmax(probabilities, axis=-1)
        for words in examples.words:
            tags = [self.labels[i] for i in best[begin : begin + len(words)]]
            sentences.append(entities.to_bio2(tags) if self.of_entities else tags)
            begin += len(words)
        of_best = probabilities[np.arange(len(best)), best]
        return TagPredictions(examples, self.of_entities, sentences, of_best)

    def score(self, predictions: TagPredictions) -> dict[str, float]:
        truth, guess = (
            np.array([tag for tags in side for tag in tags])
            for side in (predictions.examples.tags, predictions.tags)
        )
        scores = {"accuracy": metrics.accuracy(guess, truth)}
        if self.of_entities:
            scores |= entities.total(entities.count(predictions.examples.tags, predictions.tags)).scores
        elif "f1_macro" in self.metrics:
            scores["f1_macro"] = metrics.f1_macro(guess, truth)
        return {name: scores[name] for name in self.metrics}

    def describe(self, examples: TaggedSentences, data: TaggedRows) -> str:
        parts = [counted(len(data.word_tokens), "word")]
        if more := len(data) - len(examples):
            parts.append(f"{counted(more, 'extra row')} for long sentences")
        if examples.tags and self.of_entities:
            counts = entities.count(examples.tags, examples.tags)
            gold = {type or "entities": each.gold for type, each in counts.items()}
            parts.append(f"entities {list_counts(gold)}")
        return "; ".join(parts)


TASKS = (
    TaskSpec("tagging", TaggingTask),
    TaskSpec(
        "conll",
        TaggingTask,
        folder="conll2003",
        file_name="{split}",
        splits=(
            ("train", ("eng.train", "train.txt")),
            ("dev", ("eng.testa", "valid.txt")),
            ("test", ("eng.testb", "test.txt")),
        ),
        defaults={"epochs": 4.0},
    ),
)
