"""The options of masking and the properties of a vocabulary that masking needs."""

from __future__ import annotations

import dataclasses
import math
import string
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.objectives.masking.choose import STRATEGIES
from bert_jax.objectives.masking.counts import COUNTS, default_max_predictions
from bert_jax.objectives.masking.rates import SCHEDULES

# Which tokens of a row are never chosen: [CLS] and [SEP] as in google-research/bert; all special tokens, also
# [UNK] and [MASK]; or none, as in fairseq. Padding is never chosen.
NEVER_CHOSEN = ("layout", "special", "none")

_SENTENCE_PIECE_SPACE = "\u2581"
# Exponential variables, less than 2^5, are divided by the weights; float32 has to represent the quotients.
_LEAST_WEIGHT_BITS = 120
_ENGLISH = frozenset(string.ascii_letters + string.punctuation)


@dataclasses.dataclass(frozen=True)
class MaskingOptions:
    """How many tokens to predict, how they are chosen, and what replaces them.

    Attributes:
        prob: share of the tokens to predict.
        strategy: what is chosen, a name in `STRATEGIES`.
        max_predictions: P, the static number of predictions of a row.
        count: the number of tokens to predict in a row, a name in `COUNTS`.
        replace: shares of the chosen tokens that become [MASK], that become a random token, and that stay the
            same.
        exclude_special: whether random tokens are drawn from the vocabulary without padding, [CLS], [SEP] and
            [UNK], as in fairseq.
        never_chosen: the special tokens that are never chosen, an item of `NEVER_CHOSEN`.
        smoothing: a token is chosen with a probability in proportion to (its count in the corpus)^-smoothing;
            0 for equal probabilities. The strategy has to be "token".
        schedule: how the share changes from `prob` to `final_prob` during training, a name in `SCHEDULES`.
        final_prob: the share at the end of training; 0 for `prob`.
        total_steps: the step at which the share is `final_prob`.
        copies: the number of sets of masks of a row in training, whose keys are in the batch; 0: new masks at
            every step.
        full_length: if a run has rows of several lengths, the length of the rows that have `max_predictions`;
            shorter rows have the number that `default_max_predictions` returns. 0: all rows have the
            same number.
        part: the part of the configuration that has these options, for messages.

    Raises:
        UserError: a value is unknown, out of its range, or contradicts another one.
    """

    prob: float = 0.15
    strategy: str = "token"
    max_predictions: int = 20
    count: str = "google"
    replace: tuple[float, float, float] = (0.8, 0.1, 0.1)
    exclude_special: bool = False
    never_chosen: str = "layout"
    smoothing: float = 0.0
    schedule: str = "constant"
    final_prob: float = 0.0
    total_steps: int = 0
    copies: int = 0
    full_length: int = 0
    part: str = dataclasses.field(default="masking", repr=False, compare=False)

    def __post_init__(self):
        self._check_values()
        self._check_combinations()

    def _check_values(self) -> None:
        for name, known in (
            ("strategy", STRATEGIES),
            ("count", COUNTS),
            ("never_chosen", NEVER_CHOSEN),
            ("schedule", SCHEDULES),
        ):
            if (value := getattr(self, name)) not in known:
                raise UserError(f"{self.part}.{name}={value!r} is unknown; choose one of {', '.join(known)}")
        if not 0 < self.prob < 1:
            raise UserError(f"{self.part}.prob={self.prob} must be between 0 and 1")
        if not 0 <= self.final_prob < 1:
            raise UserError(f"{self.part}.final_prob={self.final_prob} must be at least 0 and less than 1")
        if self.max_predictions < 1:
            raise UserError(f"{self.part}.max_predictions={self.max_predictions} must be at least 1")
        if not (min(self.replace) >= 0 and abs(sum(self.replace) - 1) <= 1e-6):  # also of NaN
            shares = ", ".join(f"{share:g}" for share in self.replace)
            raise UserError(
                f"{self.part}.replace={shares}: expected three shares (of [MASK], random tokens, the same "
                "token) that are not negative and have the sum 1"
            )
        if self.smoothing < 0:
            raise UserError(f"{self.part}.smoothing={self.smoothing} must be at least 0")

    def _check_combinations(self) -> None:
        if self.smoothing and self.strategy != "token":
            raise UserError(
                f"{self.part}.smoothing={self.smoothing:g} is for {self.part}.strategy=token, not "
                f"{self.strategy}: words have no count; set {self.part}.smoothing=0 or "
                f"{self.part}.strategy=token"
            )
        if (self.schedule == "constant") != (self.final_prob == 0):
            raise UserError(
                f"{self.part}.schedule={self.schedule} with {self.part}.final_prob={self.final_prob:g}: set "
                "both, for a share that changes during training, or neither"
            )
        if self.copies and self.schedule != "constant":
            raise UserError(
                f"{self.part}.copies={self.copies} with {self.part}.schedule={self.schedule}: masks that are "
                "used again have a constant share; leave one of the two out"
            )
        if self.schedule != "constant" and self.total_steps < 1:
            raise ValueError(f"schedule={self.schedule!r} needs total_steps")

    @property
    def largest_prob(self) -> float:
        """Returns the largest share of the schedule."""
        return max(self.prob, self.final_prob)

    def predictions(self, length: int) -> int:
        """Returns the static number of predictions of rows of `length` tokens."""
        if length >= self.full_length:
            return self.max_predictions
        return min(self.max_predictions, default_max_predictions(length, self.largest_prob, self.count))


def _continuations(tokenizer: Any) -> np.ndarray:
    """Returns bool [V], the tokens that continue a word.

    SentencePiece's pieces continue a text, which is a word only where spaces divide words. As in
    google-research/albert, a punctuation mark of ASCII is a word, and so is a piece with any character that
    is neither such a mark nor an English letter.
    """
    if tokenizer.word_start != _SENTENCE_PIECE_SPACE:
        return tokenizer.is_continuation
    of_english = [
        token not in string.punctuation and not token.startswith("<") and set(token) <= _ENGLISH
        for token in tokenizer.tokens
    ]
    return tokenizer.is_continuation & np.array(of_english)


def parse_shares(text: str, name: str = "masking.replace") -> tuple[float, float, float]:
    """Returns the three numbers of a text such as "0.8,0.1,0.1".

    Args:
        text: the value of a field of the configuration.
        name: the name of the field, for the message.

    Raises:
        UserError: the text is not three numbers that are separated by commas.
    """
    try:
        first, second, third = (float(item) for item in text.split(","))
    except ValueError:
        raise UserError(
            f"{name}={text!r}: expected the shares of [MASK], random tokens and the same token, such as "
            "0.8,0.1,0.1"
        ) from None
    return first, second, third


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """The properties of a vocabulary that masking needs.

    Attributes:
        size: number of tokens.
        mask_id: id of [MASK].
        special_ids: ids of padding and of the special tokens of a row's layout, such as [CLS] and [SEP].
        is_continuation: bool [V], true for tokens that continue a word; needed unless the strategy is
            "token".
        other_special_ids: ids of the other special tokens, such as [UNK] and [MASK].
        counts: int [V], the count of each token in the corpus; needed for `MaskingOptions.smoothing`.
    """

    size: int
    mask_id: int
    special_ids: tuple[int, ...]
    is_continuation: np.ndarray | None = None
    other_special_ids: tuple[int, ...] = ()
    counts: np.ndarray | None = None

    @classmethod
    def of(cls, tokenizer: Any, counts: np.ndarray | None = None) -> Vocabulary:
        """Returns the properties of a `bert_jax.tokenization.Tokenizer` that masking needs."""
        special_ids = (tokenizer.pad_id, *tokenizer.layout.special_ids)
        others = tuple(sorted(set(tokenizer.special_ids.values()) - set(special_ids)))
        return cls(
            tokenizer.vocab_size, tokenizer.mask_id, special_ids, _continuations(tokenizer), others, counts
        )

    def never_chosen(self, which: str) -> tuple[int, ...]:
        """Returns the ids that an item of `NEVER_CHOSEN` stands for."""
        return {
            "layout": self.special_ids,
            "special": (*self.special_ids, *self.other_special_ids),
            "none": (),
        }[which]

    def excluded_from_random(self) -> tuple[int, ...]:
        """Returns the ids that `MaskingOptions.exclude_special` excludes, in ascending order."""
        return tuple(sorted({*self.special_ids, *self.other_special_ids} - {self.mask_id}))


def choice_weights(vocabulary: Vocabulary, options: MaskingOptions) -> np.ndarray:
    """Returns the weights with which `MaskingOptions.smoothing` chooses the tokens, float64 [V], at most 1.

    Raises:
        UserError: float32 cannot represent the smallest weight of a token that may be chosen.
        ValueError: the counts of the vocabulary are missing.
    """
    if vocabulary.counts is None:
        raise ValueError("masking.smoothing needs the counts of the vocabulary")
    counts = np.maximum(vocabulary.counts, 1.0)
    most = np.delete(counts, vocabulary.never_chosen(options.never_chosen)).max(initial=1.0)
    largest = _LEAST_WEIGHT_BITS / max(np.log2(most / counts.min()), 1e-9)
    if options.smoothing > largest:
        raise UserError(
            f"{options.part}.smoothing={options.smoothing:g}: the weights of tokens that occur "
            f"{int(counts.min()):,} to {int(most):,} times are too different for float32; expected at most "
            f"{math.floor(10 * largest) / 10:g}, such as 0.7 (DistilBERT)"
        )
    return (counts / counts.min()) ** -options.smoothing
