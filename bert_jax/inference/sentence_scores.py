"""How likely a pre-trained model finds a sentence: its pseudo-log-likelihood, or its log-likelihood.

A masked LM gives no probability of a sentence. Its pseudo-log-likelihood is the sum of the log
probabilities of the tokens, each predicted from all others with itself masked (Salazar et al. 2020). Of a
word of several tokens, those after the predicted one are masked, too (Kauf and Ivanova 2023): else the first
pieces of a rare word are guessed from its last ones, and it is more likely than a common word. Special tokens
are not predicted. Words that two sentences have in common are, because what differs changes their
probability.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import convert
from bert_jax.errors import UserError
from bert_jax.inference.engine import Engine, Row, check_items, text_rows, tokenizer_of, with_masked_lm
from bert_jax.inference.fill_mask import logits_at
from bert_jax.io import files
from bert_jax.kernels import platform
from bert_jax.tokenization import Tokenizer

_CHUNK = 1024  # sentences whose rows are in memory at a time
_CAUSAL_TOKENS = 1024  # of a batch on each device, with the logits of all of them


@dataclasses.dataclass(frozen=True)
class Scores:
    """The scores of N sentences.

    Attributes:
        log_likelihoods: float64 [N], (pseudo-)log-likelihoods in nats.
        tokens: int64 [N], how many tokens each is the sum of.
        unknown: bool [N], whether the sentence has a word that the vocabulary does not have.
    """

    log_likelihoods: np.ndarray
    tokens: np.ndarray
    unknown: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Prediction(Row):
    """A row, and the tokens of the sentence that are predicted in it.

    Attributes:
        sentence: the number of the sentence.
        positions: where the states are from which they are predicted.
        labels: the tokens.
    """

    sentence: int
    positions: np.ndarray
    labels: np.ndarray


class SentenceScorer:
    """Scores sentences with a pre-trained checkpoint, which is loaded on construction.

    Args:
        path: the path of a checkpoint in any supported format, with a masked LM head. A causal model predicts
            each token from those before it, and the score is the log-likelihood.
        log: called with each line to be logged.
        dtype: the dtype of the computation: "float32", "bfloat16", or "auto", see
            `EncoderConfig.for_inference`.

    Attributes:
        source: where the model was read from.

    Raises:
        UserError: there is no checkpoint at `path`, or it has no masked LM head or no vocabulary.
    """

    def __init__(self, path: files.PathLike, log: Callable[[str], None] = print, dtype: str = "auto"):
        model = with_masked_lm(convert.load(path, log=log))
        self.source, self._limit = model.source, model.config.max_seq_length
        self._tokenizer = tokenizer_of(model)
        config = model.config.for_inference(platform.target(), dtype)
        options = dict(types=self._tokenizer.layout.types, head=model.family.masked_lm)

        @functools.partial(jax.jit, static_argnames="config")
        def compute(params, batch, config):
            lengths, positions = batch["lengths"][:, None], batch["positions"]
            logits = logits_at(params, batch["input_ids"], lengths, positions, config=config, **options)
            chosen = jnp.take_along_axis(logits, batch["labels"][..., None], axis=-1)[..., 0]
            found = chosen - jax.nn.logsumexp(logits, axis=-1)
            return jnp.sum(jnp.where(batch["predicted"], found, 0.0), axis=-1)

        self._predictions = self._next if config.causal else self._masked
        self._engine = Engine(
            model,
            config,
            ("encoder", "mlm"),
            compute,
            max_seq_length=self._limit,
            batch_tokens=_CAUSAL_TOKENS if config.causal else 0,
            log=log,
        )

    def __call__(
        self, sentences: Iterable[str], on_done: Callable[[int], None] = lambda done: None
    ) -> Scores:
        """Returns the scores of sentences.

        Args:
            sentences: any number of texts.
            on_done: called with the number of sentences done.

        Raises:
            UserError: as of `check_items`; or a sentence has no tokens, or more than the model has positions.
        """
        check_items(sentences, "sentences")
        parts, done, sentences = [], 0, iter(sentences)
        while chunk := list(itertools.islice(sentences, _CHUNK)):
            parts.append(self._scores(chunk))
            on_done(done := done + len(chunk))
        if not parts:
            return Scores(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, bool))
        return Scores(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _scores(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the fields of `Scores`."""
        rows = list(text_rows(self._tokenizer, sentences, self._limit))
        self._check(sentences, rows)
        predictions = [each for number, row in enumerate(rows) for each in self._predictions(number, row)]
        sums, tokens = np.zeros(len(rows)), np.zeros(len(rows), np.int64)
        outputs = self._engine.outputs(predictions, total=len(predictions), arrays=_arrays)
        for numbers, found in outputs:
            of = [predictions[i].sentence for i in numbers]
            np.add.at(sums, of, found)
            np.add.at(tokens, of, [len(predictions[i].labels) for i in numbers])
        return sums, tokens, np.array([self._tokenizer.unk_id in row.token_ids for row in rows], bool)

    def _check(self, sentences: Sequence[str], rows: Sequence[Row]) -> None:
        for text, row in zip(sentences, rows, strict=True):
            if row.cut:
                raise UserError(
                    f"{text[:60]!r} has more tokens than the {self._limit} positions of the model; shorten it"
                )
            if self._inner(row).size == 0:
                raise UserError(f"{text[:60]!r} has no words: expected a sentence")

    def _inner(self, row: Row) -> np.ndarray:
        """Returns the positions of the tokens of a row that are not special."""
        layout = self._tokenizer.layout
        return np.arange(len(layout.before), len(row.token_ids) - len(layout.end))

    def _masked(self, number: int, row: Row) -> Iterator[_Prediction]:
        """Yields one row for each token, in which it and the rest of its word are masked."""
        ids, inner = row.token_ids, self._inner(row)
        ends = inner[0] + word_ends(self._tokenizer, ids[inner])
        for position, end in zip(inner, ends, strict=True):
            masked = ids.copy()
            masked[position:end] = self._tokenizer.mask_id
            place = np.array([position])
            yield _Prediction(masked, row.first_length, False, number, place, ids[place])

    def _next(self, number: int, row: Row) -> Iterator[_Prediction]:
        """Yields the row, in which each token is predicted from the state before it."""
        inner = self._inner(row)
        yield _Prediction(row.token_ids, row.first_length, False, number, inner - 1, row.token_ids[inner])


def word_ends(tokenizer: Tokenizer, ids: np.ndarray) -> np.ndarray:
    """Returns, for each token of a sentence, the number of tokens up to the end of its word: int64 [n].

    A punctuation mark is a word, also in vocabularies in which it continues the word before.

    Args:
        tokenizer: the tokenizer of the sentence.
        ids: [n], the tokens without special ones.
    """
    tokens = [tokenizer.tokens[token] for token in ids]
    is_space = np.array([token == tokenizer.word_start for token in tokens])
    is_word = np.array([any(map(str.isalnum, token)) for token in tokens])
    of_word = is_word & np.append(False, is_word[:-1]) | np.append(False, is_space[:-1])
    continues = tokenizer.is_continuation[ids] & of_word
    starts = np.flatnonzero(~continues)
    return np.append(starts[1:], len(ids))[np.cumsum(~continues) - 1]


def _arrays(rows: Sequence[Row], size: int) -> dict[str, np.ndarray]:
    """Returns what is predicted in the rows of a batch, padded to a power of two, for few shapes."""
    predictions = [row for row in rows if isinstance(row, _Prediction)]
    width = 1 << (max(len(each.labels) for each in predictions) - 1).bit_length()
    batch = {
        "positions": np.zeros((size, width), np.int32),
        "labels": np.zeros((size, width), np.int32),
        "predicted": np.zeros((size, width), bool),
    }
    for i, each in enumerate(predictions):
        count = len(each.labels)
        batch["positions"][i, :count], batch["labels"][i, :count] = each.positions, each.labels
        batch["predicted"][i, :count] = True
    return batch
