"""The tagging task, such as named entity recognition.

A CoNLL file has one word per line. Columns are separated by tabs if the line contains any, and otherwise by
spaces. An empty line ends a sentence, and a line -DOCSTART- separates documents. The other files have one
sentence per row: a list of words and a list of tags.
"""

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
from bert_jax.tasks.rows import assembly, outputs
from bert_jax.tasks.rows.batches import NO_TARGET, EncodedRows
from bert_jax.tasks.table import (
    FORMATS,
    SOURCE,
    FileReport,
    LineReader,
    Malformed,
    check_counts,
    detect_format,
    encodable,
    find_key,
    json_text,
    list_counts,
    records,
    text_lines,
    unknown_label,
)
from bert_jax.tasks.tagging import entities
from bert_jax.tokenization import Tokenizer

DOCUMENT_START = "-DOCSTART-"
# The default columns of a sentence: our names, and usual names on the Hugging Face hub.
WORDS, TAGS, DOCUMENT = ("words", "tokens"), ("tags", "ner_tags", "pos_tags"), "document"
_FORMATS = {**FORMATS, ".tsv": "conll", ".csv": "", "": "conll"}
_OF_FEATURES = dataclasses.replace(TOKENS, drop_out=HIDDEN_DROPOUT)  # as in `FeatureHead`
_MAX_BYTES = 2 << 30  # larger features are not stored but computed in each step


@dataclasses.dataclass
class TaggedSentences(FileReport):
    """The sentences of one file: entry i of every list belongs to the same sentence.

    Attributes:
        tags: the tags of the words of each sentence; empty if tags were not requested.
        documents: the number of each sentence's document, from 0.
        ids: the ids if the file has them; otherwise the number of each sentence from 0, counting malformed
            sentences.
        has_documents: whether the file marks where documents begin.
    """

    unit = "sentence"
    columns = ("words", "tags", "documents", "ids")

    path: str
    words: list[list[str]] = dataclasses.field(default_factory=list)
    tags: list[list[str]] = dataclasses.field(default_factory=list)
    documents: list[int] = dataclasses.field(default_factory=list)
    ids: list[str] = dataclasses.field(default_factory=list)
    has_documents: bool = False

    def __len__(self) -> int:
        return len(self.words)


def read_sentences(
    path: str, *, word: str = "", tag: str = "", id: str = "", format: str = "auto", tagged: bool = True
) -> TaggedSentences:
    """Reads a whole file of sentences; text is in UTF-8, possibly compressed (.gz, .bz2, .xz, .zst).

    `word`, `tag` and `id` are columns. In CoNLL files, they are numbers from 0, or negative from the end, by
    default the first and the last column, without ids. In other files, they are names, by default one of
    `WORDS` and one of `TAGS`; the column "document", if present, identifies the document of a sentence.
    """
    path = str(path)
    kind = detect_format(_FORMATS, path, format)
    if kind == "conll" and id:
        raise UserError(f"{path}: the column {id!r} of the id has no effect with CoNLL columns")
    rows = _conll(path, word, tag, tagged) if kind == "conll" else records(path, kind)
    columns = ("", "") if kind == "conll" else (word, tag)
    names = [[each] if each else known for each, known in zip(columns, (WORDS, TAGS), strict=True)]
    out = TaggedSentences(path)
    previous: Any = None

    def add(row: Mapping[str, Any]) -> None:
        nonlocal previous
        words = words_of(row, names[0])
        tags = words_of(row, names[1]) if tagged else []
        if not words or (tagged and len(tags) != len(words)):
            raise Malformed(f"{counted(len(words), 'word')} and {counted(len(tags), 'tag')}")
        document, key = out.documents[-1] if out.documents else 0, row.get(DOCUMENT)
        out.has_documents |= key is not None
        out.documents.append(document + (bool(out.documents) and key != previous))
        previous = key
        out.ids.append(json_text(row[id], "id", id) if id and row.get(id) is not None else str(out.rows - 1))
        out.words.append(words)
        if tagged:
            out.tags.append(tags)

    out.fill(((f"{path}:{line}", row) for line, row in rows), add)
    out.check()
    return out


def _conll(path: str, word: str, tag: str, tagged: bool) -> Iterator[tuple[int, dict[str, Any] | Malformed]]:
    try:
        numbers = [int(word or 0), *([int(tag or -1)] if tagged else [])]
    except ValueError:
        raise UserError(f"{path}: expected numbers of CoNLL columns, not {word!r} and {tag!r}") from None
    sentence: list[list[str]] = []
    document, width, first, problem = None, 0, 0, None
    for line, text in enumerate(itertools.chain(text_lines(path), [""]), 1):
        # Only spaces and tabs are separators: other whitespace, such as U+00A0, may be part of a word.
        text = text.rstrip(" \t\r\n")
        fields = text.split("\t") if "\t" in text else list(filter(None, text.split(" ")))
        fields = [field.strip(" ") for field in fields]
        if not fields or fields[0] == DOCUMENT_START:
            if problem:
                yield problem
            elif sentence:
                columns = zip((WORDS[0], TAGS[0]), map(list, zip(*sentence, strict=True)), strict=False)
                yield first, {**dict(columns), DOCUMENT: document}
            if fields:
                document = (document or 0) + 1
            sentence, problem = [], None
            continue
        first = first if sentence else line
        width = width or len(fields)
        values = [fields[number] for number in numbers if -len(fields) <= number < len(fields)]
        if len(fields) != width or len(values) < len(numbers) or not all(values) or (tagged and width < 2):
            what = f"{counted(len(fields), 'column')}, expected {max(width, 1 + tagged)}"
            problem = problem or (line, Malformed(f"{what}; one word per line, blank lines after sentences"))
        sentence.append(values)


def words_of(row: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    """Returns the list of strings under the first of `keys` with a value. Raises Malformed without one."""
    values = row[key := find_key(row, keys)]
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise Malformed(f"{key!r}: expected a list of strings")
    return [encodable(value) for value in values]


@dataclasses.dataclass(kw_only=True)
class TaggedRows(EncodedRows):
    """The rows of sentences.

    `word_tokens`, int64 [words of all sentences], is the position in `tokens` of each word's first subword,
    in the row with the most context for the word.
    """

    word_tokens: np.ndarray

    def compared(self, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the outputs of all tokens and their targets."""
        return outputs, self.token_targets["tags"]


def encode(
    examples: TaggedSentences,
    tokenizer: Tokenizer,
    max_seq_length: int,
    labels: tuple[str, ...],
    document_context: bool = False,
) -> TaggedRows:
    """Encodes each sentence as a row, [CLS] words [SEP], or as several windows if it is too long.

    A word without subwords becomes [UNK], and a word with more subwords than fit into a row is truncated.
    `labels` are the tags in the order of the logits; other tags have no target. With `document_context`, the
    words around a sentence in its document fill up its row.
    """
    budget = tokenizer.layout.room(max_seq_length, pair=False)
    vocabulary = dict.fromkeys(itertools.chain.from_iterable(examples.words))
    ids = {word: number for number, word in enumerate(vocabulary)}
    words = [tokenizer.after_space(word) for word in ids]
    subwords = [tokens or [tokenizer.unk_id] for tokens in tokenizer.encode_batch(words)]
    cut = np.array([len(tokens) > budget for tokens in subwords])
    subwords = [np.asarray(tokens[:budget], np.int32) for tokens in subwords]
    lengths = np.array([len(tokens) for tokens in subwords])
    names = {name: number for number, name in enumerate(labels)}

    builder, word_tokens, tags, truncated = assembly.RowBuilder(tokenizer), [], [], 0
    documents = examples.documents if document_context else range(len(examples))
    for _, sentences in itertools.groupby(range(len(examples)), documents.__getitem__):
        numbers = list(sentences)
        document = np.array([ids[word] for sentence in numbers for word in examples.words[sentence]])
        offsets = np.concatenate([[0], np.cumsum(lengths[document])])
        stop = 0
        for sentence in numbers:
            start, stop = stop, stop + len(examples.words[sentence])
            truncated += bool(cut[document[start:stop]].any())
            inside = offsets[start : stop + 1]
            spans = assembly.split(inside, budget, max(budget // 2, 1))
            chosen = assembly.most_context(inside, spans)
            spans = [(start + a, start + b) for a, b in spans]
            if len(spans) == 1:
                spans = [widen(offsets, start, stop, budget)]
            positions = np.empty(stop - start, np.int64)
            for row, (a, b) in enumerate(spans):
                row_begin = builder.add(sentence, np.concatenate([subwords[word] for word in document[a:b]]))
                in_row = np.flatnonzero(chosen == row)
                text_begin = row_begin + len(tokenizer.layout.before)
                positions[in_row] = text_begin + offsets[start + in_row] - offsets[a]
            word_tokens.append(positions)
            if examples.tags:
                tags.append([names.get(tag, NO_TARGET) for tag in examples.tags[sentence]])
    word_tokens = np.concatenate(word_tokens)
    token_targets = {}
    if examples.tags:
        token_targets["tags"] = np.full(builder.total, NO_TARGET, np.int32)
        token_targets["tags"][word_tokens] = np.concatenate(tags)
    return TaggedRows(
        **builder.arrays(max_seq_length),
        targets={},
        truncated=truncated,
        token_targets=token_targets,
        word_tokens=word_tokens,
    )


def widen(offsets: np.ndarray, begin: int, end: int, room: int) -> assembly.Span:
    """Extends the units [begin, end) on both sides by as many units as fit into `room` tokens.

    Each side gets half of the spare tokens. If one side has fewer tokens, the other side gets the rest.
    """
    spare = room - (offsets[end] - offsets[begin])
    before, after = offsets[begin] - offsets[0], offsets[-1] - offsets[end]
    left = min(before, max(spare // 2, spare - after))
    right = min(after, spare - left)
    first = int(np.searchsorted(offsets, offsets[begin] - left))
    last = int(np.searchsorted(offsets, offsets[end] + right, side="right")) - 1
    return first, last


@dataclasses.dataclass
class TagPredictions(Predictions):
    """Predictions of tagging: the tag of each word.

    Attributes:
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
