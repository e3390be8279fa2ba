"""Text vectors: sentence embeddings, and late interaction with one vector per token."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import string
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from bert_jax import convert
from bert_jax.convert import families
from bert_jax.convert.sentences import SentenceVectors, unit_length
from bert_jax.errors import UserError
from bert_jax.io import comma_lists
from bert_jax.io.wording import some
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import SENTENCE, TOKEN_VECTORS, ClassificationHead
from bert_jax.objectives.embedding import late_interaction
from bert_jax.objectives.embedding.denoising import DENOISING, DenoisingAutoEncoder
from bert_jax.objectives.embedding.late_interaction import LateInteraction
from bert_jax.objectives.embedding.sentence import (
    CLASSES,
    CONTRASTIVE,
    COSENT,
    KINDS,
    SentenceEmbedding,
    TextVectors,
)
from bert_jax.settings.config_fields import Rule, option
from bert_jax.settings.finetune_config import FinetuneConfig
from bert_jax.tasks import metrics, table
from bert_jax.tasks.base import NegativesConfig, NegativesData, TableTask
from bert_jax.tasks.predictions import NumberPredictions, TablePredictions
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.rows import assembly
from bert_jax.tasks.rows.assembly import Ids
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.table import STSB, Columns, Examples, parse_number
from bert_jax.tokenization import Tokenizer

_CHUNK = 1024  # anchors that are scored against all texts at a time
_SAME = 1e-3  # scores that differ by less count as equal
_ROUNDING = 2e-6  # error of float32 scores, relative if above 1
_DOCUMENTS = 256  # texts whose token vectors are padded to one length at a time
_MULTIPLE = 32  # this length is a multiple of 32 tokens


@dataclasses.dataclass
class SimilarityPredictions(NumberPredictions):
    """The cosine similarity of each pair of texts; `targets` are similarities on any scale."""

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        return bool(np.ptp(self.outputs) < _SAME)

    def mistakes(self) -> None:
        """Returns None, because cosines and labels have different scales."""


def _numbered(texts: Sequence[str]) -> np.ndarray:
    """Returns the number of each text, int64 [N]; equal texts have the same number."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)


@dataclasses.dataclass
class RetrievalPredictions(TablePredictions):
    """Ranks each pair's second text among all second texts by its score with the first text.

    Equal second texts count as one candidate. Other second texts of an equal first text are not candidates.
    If scores are equal up to rounding, the pair's second text comes last, so a model that gives all texts the
    same vector finds nothing. `scores` maps the rows of first and of second texts to float32 [first, second].
    """

    scores: Callable[[slice, np.ndarray], np.ndarray] = dataclasses.field(kw_only=True)

    @functools.cached_property
    def _found(self) -> tuple[np.ndarray, np.ndarray]:
        """The rank of each second text, int64 [N], and the highest score of the others, float32 [N]."""
        anchors, numbers = _numbered(self.examples.texts_a), _numbered(self.examples.texts_b)
        rows = np.unique(numbers, return_index=True)[1]
        partners: dict[int, list[int]] = {}
        for anchor, number in zip(anchors.tolist(), numbers.tolist(), strict=True):
            partners.setdefault(anchor, []).append(number)
        ranks, highest = (np.empty(len(anchors), kind) for kind in (np.int64, np.float32))
        for begin in range(0, len(anchors), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            scores = self.scores(part, rows)
            own = np.take_along_axis(scores, numbers[part, None], axis=1)
            for row, anchor in enumerate(anchors[part].tolist()):
                scores[row, partners[anchor]] = -np.inf
            # Products of equal vectors may differ with their positions in the matrix. NaN has the last rank.
            least = own - _ROUNDING * np.maximum(1, np.abs(own))
            ranks[part] = np.minimum(1 + np.sum(~(scores < least), axis=1), len(rows))
            highest[part] = scores.max(axis=1)
        return ranks, highest

    @property
    def predicted(self) -> np.ndarray:
        """Returns the rank of the second text of each pair, from 1, int64 [N]."""
        return self._found[0]

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        highest = self._found[1]
        found = np.concatenate([self.outputs[:, 0], highest[np.isfinite(highest)]])
        return bool(np.ptp(found) < _SAME)


@dataclasses.dataclass(frozen=True)
class TokenVectors:
    """The token vectors of rows.

    Attributes:
        values: float [total, H], of length 1.
        offsets: int64 [N, 2], where the vectors of each row begin and end.
        counted: bool [total], the tokens that count in a score.
    """

    values: np.ndarray
    offsets: np.ndarray
    counted: np.ndarray

    def padded(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns the padded vectors of rows, float32 [n, L, H], and which of them count, bool [n, L]."""
        chosen = self.offsets[rows]
        # All calls use the same length, because each length needs a compilation.
        longest = -(-int(np.max(self.offsets[:, 1] - self.offsets[:, 0], initial=1)) // _MULTIPLE) * _MULTIPLE
        vectors = np.zeros((len(chosen), longest, self.values.shape[-1]), np.float32)
        counted = np.zeros(vectors.shape[:2], bool)
        for row, (begin, end) in enumerate(chosen):
            vectors[row, : end - begin] = self.values[begin:end]
            counted[row, : end - begin] = self.counted[begin:end]
        return vectors, counted


_scores = jax.jit(late_interaction.max_sims)
_scores_of_pairs = jax.jit(jax.vmap(late_interaction.max_sim))


def ranked_by_cosine(examples: Any, vectors: np.ndarray) -> RetrievalPredictions:
    """Returns the predictions for pairs with the vectors float32 [N, 2, H], of length 1."""
    cosines = np.sum(vectors[:, 0] * vectors[:, 1], axis=-1, keepdims=True)

    def scores(first, second):
        return vectors[first, 0] @ vectors[second, 1].T

    return RetrievalPredictions(examples, cosines, np.empty(0), scores=scores)


def ranked_by_tokens(examples: Any, queries: np.ndarray, documents: TokenVectors) -> RetrievalPredictions:
    """Returns the predictions for pairs with the vectors of tokens, of queries float [N, Q, H]."""

    def scores(first, second):
        parts = [second[i : i + _DOCUMENTS] for i in range(0, len(second), _DOCUMENTS)]
        found = [_scores(queries[first].astype(np.float32), *documents.padded(part)) for part in parts]
        return np.concatenate([np.asarray(one) for one in found], axis=1)

    of_pairs = np.empty((len(queries), 1), np.float32)
    for begin in range(0, len(queries), _DOCUMENTS):
        part = slice(begin, begin + _DOCUMENTS)
        of_pairs[part, 0] = _scores_of_pairs(queries[part].astype(np.float32), *documents.padded(part))
    return RetrievalPredictions(examples, of_pairs, np.empty(0), scores=scores)


@dataclasses.dataclass(frozen=True)
class GroupsData(NegativesData):
    """The `config.data.*` fields of groups of texts."""

    eval_columns: str = option(
        "",
        "Columns of the evaluation file, `TEXT,TEXT` or `TEXT,TEXT,SCORE`. Empty: as in the training file.",
    )
    prefix_a: str = option("", "Prefix of each first text, such as `query: `.")
    prefix_b: str = option("", "Prefix of each second text and hard negative, such as `passage: `.")


@dataclasses.dataclass(frozen=True)
class GroupsConfig(NegativesConfig):
    """The fields of tasks on groups of texts."""

    temperature: float = option(0.05, "Temperature that divides cosines or scores.", above=0, maximum=100)
    data: GroupsData = GroupsData()


class GroupsTask(TableTask):
    """Base class of tasks on groups of texts: an anchor, its positive, and any number of hard negatives.

    Evaluation files have pairs of an anchor and its positive.
    """

    Config = GroupsConfig
    config: GroupsConfig
    export_head = "none"
    rules: ClassVar[Sequence[Rule]] = (
        ("head distillation.teacher", lambda c: False, "a task with logits"),
        ("data.eval_columns", lambda c: c.data.eval, "data.eval"),
        ("data.id", lambda c: not c.data.eval_columns, "an empty data.eval_columns"),
    )
    _group = 2  # texts in a training group
    _eval_forms: tuple[str, ...] = ("TEXT,TEXT", "TEXT,TEXT,SCORE")  # of `data.eval_columns`

    def set_up(self) -> None:
        if self.columns.negatives:
            self.require("text_b")
        names = comma_lists.names(self.config.data.eval_columns)
        self.eval_columns = dataclasses.replace(self.columns, negatives="")
        if names:
            if len(names) not in (form.count(",") + 1 for form in self._eval_forms):
                expected = " or ".join(self._eval_forms)
                raise UserError(f"data.eval_columns={','.join(names)}: expected {expected}")
            quotes = ",".join(names) != STSB
            fields = dict(zip(("text_a", "text_b", "label"), names, strict=False))
            self.eval_columns = Columns(**fields, header=self.columns.header, quotes=quotes)  # type: ignore

    @property
    def unlabeled_columns(self) -> Columns:
        if not self.eval_columns.text_b:
            raise UserError("expected a run on pairs; `bert-jax embed` writes the vectors of single texts")
        return self.eval_columns

    @property
    def least_batch_size(self) -> int:
        return 1 if self.columns.negatives else 2

    # Reading

    def read_training(self, path: str) -> Examples:
        return self._read_groups(path, dataclasses.replace(self.columns, label=""))

    def _read_groups(self, path: str, columns: Columns, parse_label: Any = None) -> Examples:
        examples = self.read_columns(path, columns, parse_label)
        if examples.negatives:
            self._group = 2 + len(examples.negatives[0])
        return examples

    def read(self, path: str) -> Examples:
        columns = self.eval_columns
        if not columns.text_b or (self.are_classes and not self.config.data.eval_columns):
            raise UserError(f"{path}: evaluation needs --config.data.eval_columns=TEXT,TEXT,SCORE")
        return self.read_columns(path, columns, parse_number if columns.label else None)

    def describe(self, examples: Examples, rows: EncodedRows) -> str:
        return f"{rows.rows_per_example} texts per group" if rows.rows_per_example > 1 else ""

    # Rows

    def encode(self, examples: Examples) -> EncodedRows:
        first, data = examples.texts_a, self.config.data
        second = examples.texts_b or (first if self.repeats_single_texts else [])
        columns = [first, *([second] if second else []), *zip(*examples.negatives, strict=True)]
        texts, count = list(itertools.chain.from_iterable(zip(*columns, strict=True))), len(columns)
        prefixes = [data.prefix_a, *[data.prefix_b if examples.texts_b else data.prefix_a] * (count - 1)]
        prefixed = [prefix + text for prefix, text in zip(itertools.cycle(prefixes), texts, strict=False)]
        forms = itertools.cycle([self.form(True), *[self.form(False)] * (count - 1)])
        layout = self.tokenizer.layout
        rows = (
            assembly.truncate([*before, *ids], None, layout.room(length, False))
            for ids, (length, before) in zip(assembly.tokenize(self.tokenizer, prefixed), forms, strict=False)
        )
        are_classes = bool(examples.labels) and isinstance(examples.labels[0], int)
        encoded = assembly.assemble(
            assembly.grouped(rows, count),
            examples.labels,
            self.tokenizer,
            self.config.max_seq_length,
            target_dtype=np.int32 if are_classes else np.float32,
            rows_per_example=count,
        )
        # Texts are compared without their prefixes: a text that is equal to its anchor is not a negative.
        encoded.targets["texts"] = _numbered(texts).astype(np.int32)
        encoded.least_groups = self.least_batch_size
        return encoded

    are_classes: bool = False  # whether the training labels are classes
    repeats_single_texts: bool = True  # single texts appear twice, as their own positives

    def form(self, is_anchor: bool) -> tuple[int, Ids]:
        """Returns the maximum number of tokens of a row and the ids to prepend to its text."""
        return self.config.max_seq_length, []

    # Predictions

    @property
    def scorers(self) -> Mapping[str, metrics.Metric]:
        return metrics.SIMILARITY if self.eval_columns.label else metrics.RANKING

    def loss(self, rows: EncodedRows, outputs: np.ndarray) -> None:
        """Returns None: the loss depends on the batch size, and similarities need a different loss."""
        return None


_POOLINGS = ("cls", "last", "mean")  # values of `EncoderConfig.classifier_pooling`


@dataclasses.dataclass(frozen=True)
class EmbeddingConfig(GroupsConfig):
    """The fields of sentence embeddings."""

    loss: str = option(
        CONTRASTIVE,
        "Loss: `contrastive` (InfoNCE), `cosent` (cosines in the order of `data.label`), `classes` (predict "
        "`data.label`) or `denoising` (TSDAE).",
        choices=(*KINDS, DENOISING),
    )
    deletion: float = option(0.6, "Probability of deleting a token (`loss=denoising`).", minimum=0, below=1)
    symmetric: bool = option(False, "Also find the first text for each second text (`loss=contrastive`).")
    dimensions: str = option(
        "", "Truncated vector sizes to train, comma-separated, such as `64,128` (Matryoshka)."
    )
    pack: bool = option(True, "Pack several texts into a row. Batches are then not grouped by length.")


class EmbeddingTask(GroupsTask):
    """Sentence embeddings, trained with the losses in `objectives.embedding`.

    Without second texts, the contrastive loss reads each text twice with different dropout (SimCSE).
    """

    Config = EmbeddingConfig
    config: EmbeddingConfig
    title = "sentence embeddings"
    rules = (
        ("symmetric data.negatives", lambda c: c.loss == CONTRASTIVE, f"loss={CONTRASTIVE}"),
        ("temperature dimensions", lambda c: c.loss in (CONTRASTIVE, COSENT),
         f"loss={CONTRASTIVE} or {COSENT}"),
        ("deletion", lambda c: c.loss == DENOISING, f"loss={DENOISING}"),
        ("data.text_b", lambda c: c.loss != DENOISING, f"a loss other than {DENOISING}"),
        ("data.label", lambda c: c.loss != DENOISING and (c.loss != CONTRASTIVE or not c.data.eval_columns),
         f"loss={COSENT} or {CLASSES}, or {CONTRASTIVE} without data.eval_columns"),
        ("data.prefix_b", lambda c: c.data.text_b or c.data.eval_columns, "data.text_b or data.eval_columns"),
    )  # fmt: skip
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
        theirs = config.init_from and convert.load_sentence(config.init_from, model_config, tokenizer)
        pooling, source = SENTENCE.pooling, "the default"
        if "classifier_pooling" in explicit or config.model.classifier_pooling is not None:
            pooling, source = SENTENCE.pooling_of(model_config), "as model.classifier_pooling says"
        elif theirs and theirs.pooling in _POOLINGS:
            pooling, source = theirs.pooling, f"as in {config.init_from}"
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
        if self.config.loss in (COSENT, CLASSES):
            self.require("text_b", "label")
        self.are_classes = self.config.loss == CLASSES
        self.repeats_single_texts = self.config.loss != DENOISING
        super().set_up()
        names, width = comma_lists.names(self.config.dimensions), self.model_config.hidden_size
        self.sizes = tuple(int(name) if name.isdecimal() else 0 for name in names)
        if len({*self.sizes}) < len(names) or not all(0 < size < width for size in self.sizes):
            raise UserError(f"dimensions={self.config.dimensions}: expected different numbers below {width}")

    @property
    def least_batch_size(self) -> int:
        return super().least_batch_size if self.config.loss in (CONTRASTIVE, COSENT) else 1

    @property
    def classifier(self) -> ClassificationHead:
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
            rates = "hidden_dropout_prob attention_probs_dropout_prob embedding_dropout inner_dropout".split()
            if not columns.text_b and not any(getattr(self.model_config, rate) for rate in rates):
                raise UserError("training on single texts (no data.text_b) needs a dropout rate above 0")
            columns = dataclasses.replace(columns, label="")
        parse = table.parse_number if self.config.loss == COSENT else str
        examples = self._read_groups(path, columns, parse if columns.label else None)
        if self.config.loss == CLASSES:
            self.labels = table.infer_labels(examples.labels, path)
            numbers = {label: number for number, label in enumerate(self.labels)}
            examples.labels = [table.label_index(numbers, label) for label in examples.labels]
        return examples

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
        ranked = ranked_by_cosine(examples, vectors)
        if examples.labels:
            return SimilarityPredictions(examples, ranked.outputs, np.asarray(examples.labels, np.float32))
        return ranked


# Late interaction

_MARKERS = ("[unused0]", "[unused1]")  # [Q] and [D] of the published models


@dataclasses.dataclass(frozen=True)
class LateInteractionConfig(GroupsConfig):
    """The fields of late interaction."""

    vector_size: int = option(128, "Size of the vector of each token.", minimum=1, maximum=2**16)
    query_length: int = option(
        32, "Tokens of a query, which is truncated or padded with [MASK].", minimum=4, maximum=2**16
    )


class LateInteractionTask(GroupsTask):
    """Late interaction; see `objectives.embedding.late_interaction`.

    Rows are `[CLS] [Q] query [SEP] [MASK] ...` and `[CLS] [D] document [SEP]`. The markers are omitted if the
    vocabulary lacks them. The [MASK] tokens, which expand the query, are treated like any other token: other
    tokens attend to them (`attend_to_mask_tokens` in ColBERT's code, where it is off by default).

    Attributes:
        markers: two lists with the ids of [Q] and of [D]; both are empty if the vocabulary lacks them.
        skipped: the ids of punctuation, which does not count in the score of a document.
    """

    Config = LateInteractionConfig
    config: LateInteractionConfig
    title = "late interaction"
    rules = (("data.label", lambda c: False, "a task with labels"),)
    next_command = "search --index=DIR --rerank={workdir}"
    _eval_forms = ("TEXT,TEXT",)

    def set_up(self) -> None:
        super().set_up()
        c = self.config
        self.require("text_b")
        if c.query_length > c.max_seq_length:
            raise UserError(f"query_length={c.query_length}: expected at most max_seq_length")
        known = {token: number for number, token in enumerate(self.tokenizer.tokens)}
        has_markers = all(marker in known for marker in _MARKERS)
        self.markers = [[known[marker]] if has_markers else [] for marker in _MARKERS]
        self.skipped = punctuation(self.tokenizer)

    @property
    def scores_pairs(self) -> bool:
        return True

    @property
    def classifier(self) -> ClassificationHead:
        return TOKEN_VECTORS

    def form(self, is_anchor: bool) -> tuple[int, Ids]:
        """Returns the maximum number of tokens of a row and the ids to prepend to its text."""
        if is_anchor:
            return self.config.query_length, self.markers[0]
        return self.config.max_seq_length, self.markers[1]

    def encode(self, examples: Examples) -> EncodedRows:
        rows = super().encode(examples)
        lengths = rows.lengths.copy()
        lengths[:: rows.rows_per_example] = self.config.query_length
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        tokens = np.full(offsets[-1], self.tokenizer.mask_id, np.int32)
        shifts = np.repeat(offsets[:-1] - rows.offsets[:-1], rows.lengths)
        tokens[np.arange(len(rows.tokens)) + shifts] = rows.tokens
        first_lengths = lengths.astype(np.int32)  # each row has one text
        return dataclasses.replace(rows, tokens=tokens, offsets=offsets, first_lengths=first_lengths)

    def objective(self) -> LateInteraction:
        c = self.config
        return LateInteraction(
            self.model_config,
            c.vector_size,
            c.query_length,
            self._group,
            c.temperature,
            self.skipped,
            self.tokenizer.layout.types,
            self.classifier,
        )

    def decode(self, examples: Examples, rows: EncodedRows, outputs: np.ndarray) -> RetrievalPredictions:
        """Returns the scores of pairs from the float16 vectors of all tokens of both texts, [total, H]."""
        spans = np.stack([rows.offsets[:-1], rows.offsets[1:]], axis=1)
        places = spans[::2, :1] + np.arange(self.config.query_length)
        documents = TokenVectors(outputs, spans[1::2], ~np.isin(rows.tokens, self.skipped))
        return ranked_by_tokens(examples, outputs[places], documents)


def punctuation(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Returns the ids of the tokens that consist of one ASCII punctuation character."""
    marks = (tokenizer.word_start, tokenizer.continuation)

    def text(token: str) -> str:
        found = next((mark for mark in marks if mark and token.startswith(mark) and token != mark), "")
        return token.removeprefix(found)

    return tuple(
        number
        for number, token in enumerate(tokenizer.tokens)
        if len(text(token)) == 1 and text(token) in string.punctuation
    )


_LATE_INTERACTION = {"epochs": 1.0, "max_seq_length": 180, "temperature": 1.0}
TASKS = (
    TaskSpec("embedding", EmbeddingTask, defaults={"batch_size": 64, "epochs": 1.0, "max_seq_length": 64}),
    TaskSpec("lateinteraction", LateInteractionTask, defaults=_LATE_INTERACTION),
)
