"""Structures of heads as values: masked LM, and classification of sequences, of tokens and of spans."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.models.config import HEAD_FIELDS, EncoderConfig


@dataclasses.dataclass(frozen=True)
class MaskedLMHead:
    """Structure of the masked LM head; the defaults are BERT's."""

    transform: bool = True  # whether the head has a dense layer from H to E with an activation
    transform_bias: bool = True
    activation: str | None = None  # a name in `layers.ACTIVATIONS`; None for `hidden_act`
    norm: bool = True  # after the activation
    decoder_bias: bool = True  # of the logits
    tied: bool = True  # whether the output matrix is the word embeddings, or else a parameter of the head

    @property
    def has_parameters(self) -> bool:
        """Returns whether the head has parameters other than the word embeddings."""
        return self.transform or self.norm or self.decoder_bias or not self.tied


@dataclasses.dataclass(frozen=True)
class ReplacedTokensHead:
    """Structure of the head that detects replaced tokens; the defaults are ELECTRA's.

    If `adds_first`, the state of the first token of its sequence is added to each token's state, followed by
    a norm, before the dense layer (DeBERTa v3).
    """

    adds_first: bool = False


MASKED_LM = MaskedLMHead()
REPLACED_TOKENS = ReplacedTokensHead()
LEAST_LENGTH = 1e-12  # minimum norm that vectors are divided by, as in torch.nn.functional.normalize
LSTM = "lstm"  # name of the parameters of a BiLSTM between an encoder and a classification head


@dataclasses.dataclass(frozen=True)
class Rate:
    """A dropout rate of a head: the value, if any, of `field` in `EncoderConfig`, or else the `default`.

    Without a default, it is `hidden_dropout_prob`.
    """

    default: float | None = None
    field: str = ""

    def of(self, config: EncoderConfig) -> float:
        configured = getattr(config, self.field) if self.field else None
        rates = (configured, self.default, config.hidden_dropout_prob)
        return next(rate for rate in rates if rate is not None)


NO_DROPOUT, HIDDEN_DROPOUT = Rate(0.0), Rate()
CLASSIFIER_DROPOUT = Rate(field="classifier_dropout")


@dataclasses.dataclass(frozen=True)
class ClassificationHead:
    """Structure of a classification head: pooling, dropout, dense, activation, norm, dropout, dense.

    The defaults describe BERT's text classifier (paper, section 4.1). A BiLSTM may come first. `dense`
    "pooler" uses the pooler's dense layer, which pre-training may have trained; "head" uses a separate one;
    "none" has no dense layer.
    """

    pooling: str = "cls"  # a name in `POOLINGS`; "none" gives logits for every token
    drop_in: Rate = NO_DROPOUT  # before the dense layer
    dense: str = "pooler"
    dense_bias: bool = True
    activation: str = "tanh"  # after it, a name in `layers.ACTIVATIONS`
    norm: bool = False  # after the activation
    drop_out: Rate = CLASSIFIER_DROPOUT  # before the output layer
    out_bias: bool = True
    name: str = "classifier"  # of the output layer's parameters
    lstm_layers: int = 0  # of the BiLSTM between the encoder and the pooling
    lstm_size: int = 768  # features of each direction

    def with_lstm(self, size: int) -> ClassificationHead:
        """Returns the head with two BiLSTM layers, and with no dense layer between pooling and outputs.

        A head for sequences then takes the maximum over the tokens of each. The paper uses a BiLSTM (section
        5.1), but does not describe its pooling.
        """
        pooling = "none" if self.pooling == "none" else "max"
        return dataclasses.replace(
            self, pooling=pooling, drop_in=NO_DROPOUT, dense="none", norm=False, lstm_layers=2, lstm_size=size
        )

    def pooling_of(self, config: EncoderConfig) -> str:
        """Returns the name of the pooling for an encoder, whose `classifier_pooling` has priority.

        With causal attention, [CLS] does not attend to other tokens, so it is replaced by the last token,
        which attends to all.
        """
        if self.pooling == "none":
            return "none"
        default = "last" if config.causal and self.pooling == "cls" else self.pooling
        return config.classifier_pooling or default

    @property
    def new_groups(self) -> tuple[str, ...]:
        """Returns the parameter groups that fine-tuning always initializes, unlike a pre-trained pooler."""
        dense = ("head",) if self.dense == "head" else ()
        return (*((LSTM,) if self.lstm_layers else ()), *dense, self.name)

    @property
    def rates(self) -> tuple[Rate, ...]:
        return self.drop_in, self.drop_out

    @property
    def fields(self) -> tuple[str, ...]:
        """Returns the fields of `EncoderConfig` that only heads read, and that this head reads."""
        pooling = () if self.pooling == "none" else ("classifier_pooling",)
        return (*(rate.field for rate in self.rates if rate.field), *pooling)


def check_fields(given: Mapping[str, Any], read: Iterable[str], user: str) -> None:
    """Raises UserError if a run sets a head field of `EncoderConfig` that its heads do not read.

    `given` are the fields in the config of the run; a checkpoint may have any values. `read` are the names
    that the heads read, and the message says that they belong to `user`.
    """
    read = set(read)
    for name in HEAD_FIELDS:
        if given[name] is not None and name not in read:
            raise UserError(f"model.{name}={given[name]}: {user} does not use this field")


# BERT's heads: sequence and token classification (sections 4.1 and 5.3) and answer spans (section 4.2).
SEQUENCE = ClassificationHead()
TOKENS = ClassificationHead(pooling="none", dense="none")
SPANS = ClassificationHead(pooling="none", dense="none", drop_out=NO_DROPOUT, name="qa")
# Sentence vectors use pooling without an output layer (Reimers and Gurevych 2019, section 3).
SENTENCE = ClassificationHead(pooling="mean", dense="none", drop_out=NO_DROPOUT)
# Vectors of tokens are a projection of their states (Khattab and Zaharia 2020, section 3.2).
TOKEN_VECTORS = ClassificationHead(
    pooling="none", dense="none", drop_out=NO_DROPOUT, out_bias=False, name="projection"
)
