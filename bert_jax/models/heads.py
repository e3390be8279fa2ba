"""Heads described by value, and the models that use them.

The heads are masked LM, next sentence and replaced tokens, classification of sequences and of tokens, and
answer spans.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.errors import UserError
from bert_jax.kernels import tied_table
from bert_jax.kernels.late_logits import LateLogits, number_of_chunks
from bert_jax.models.config import HEAD_FIELDS, EncoderConfig
from bert_jax.models.encoder import Encoder, Pooler
from bert_jax.models.layers import ACTIVATIONS, Module, gather_positions, identity
from bert_jax.models.lstm import BiLstm

_TRUNCATED = 0.774  # variance of a standard normal distribution that is truncated at two deviations


@dataclasses.dataclass(frozen=True)
class MaskedLMHead:
    """Structure of the masked LM head; the defaults are BERT's.

    Attributes:
        transform: whether there is a dense layer from H to E with an activation.
        transform_bias: whether that layer has a bias.
        activation: a name in `layers.ACTIVATIONS`; None for `hidden_act`.
        norm: whether a norm follows.
        decoder_bias: whether the logits have a bias.
        tied: whether the last product is with the word embeddings, or with a matrix of the head's own.
    """

    transform: bool = True
    transform_bias: bool = True
    activation: str | None = None
    norm: bool = True
    decoder_bias: bool = True
    tied: bool = True

    @property
    def has_parameters(self) -> bool:
        """Returns whether there is more to the head than the word embeddings."""
        return self.transform or self.norm or self.decoder_bias or not self.tied

    def initial_loss(self, config: EncoderConfig) -> float:
        """Returns the expected cross-entropy in nats with random weights.

        It is ln V plus half the variance of the logits, which is small without a norm before them.
        """
        truncation = 1.0 if config.initializer == "normal" else _TRUNCATED
        variance = config.embedding_width * config.initializer_range**2 * truncation if self.norm else 0.0
        return math.log(config.vocab_size) + variance / 2


MASKED_LM = MaskedLMHead()
LEAST_LENGTH = 1e-12  # that vectors are divided by, as in torch.nn.functional.normalize
LSTM = "lstm"  # name of the parameters of a BiLSTM between an encoder and a classification head


@dataclasses.dataclass(frozen=True)
class Rate:
    """A dropout rate of a head.

    Attributes:
        default: the rate; None for `hidden_dropout_prob`.
        field: the field of `EncoderConfig` that replaces it unless its value is None; "" for no field.
    """

    default: float | None = None
    field: str = ""

    def of(self, config: EncoderConfig) -> float:
        """Returns the rate for an encoder."""
        configured = getattr(config, self.field) if self.field else None
        if configured is not None:
            return configured
        return config.hidden_dropout_prob if self.default is None else self.default


NO_DROPOUT, HIDDEN_DROPOUT = Rate(0.0), Rate()
CLASSIFIER_DROPOUT = Rate(field="classifier_dropout")


@dataclasses.dataclass(frozen=True)
class ClassificationHead:
    """Structure of a classification head: pooling, dropout, dense, activation, norm, dropout, dense.

    The defaults are those of BERT's text classifier (paper, section 4.1). A BiLSTM may come first.

    Attributes:
        pooling: a name in `POOLINGS`: "cls", "mean" or "max" over the tokens of each sequence, its "last"
            token, or "none", which gives logits for every token.
        drop_in, drop_out: dropout rates before the dense layer and before the output layer.
        dense: "pooler" uses the pooler's dense layer, which pre-training may have trained; "head" uses a
            separate one; "none" has no dense layer.
        dense_bias: whether the dense layer has a bias.
        activation: activation after it, a name in `layers.ACTIVATIONS`.
        norm: whether a norm follows.
        out_bias: whether the logits have a bias.
        name: name of the output layer's parameters.
        lstm_layers: layers of the BiLSTM between the encoder and the pooling; 0 for none.
        lstm_size: features of each direction of the BiLSTM.
    """

    pooling: str = "cls"
    drop_in: Rate = NO_DROPOUT
    dense: str = "pooler"
    dense_bias: bool = True
    activation: str = "tanh"
    norm: bool = False
    drop_out: Rate = CLASSIFIER_DROPOUT
    out_bias: bool = True
    name: str = "classifier"
    lstm_layers: int = 0
    lstm_size: int = 768

    def with_lstm(self, size: int, layers: int = 2) -> ClassificationHead:
        """Returns the head with a BiLSTM, and without a dense layer between the pooling and the outputs.

        A head for sequences then takes the maximum over the tokens of each. The paper has the BiLSTM (section
        5.1), and does not say how it is pooled.
        """
        pooling = "none" if self.pooling == "none" else "max"
        return dataclasses.replace(
            self, pooling=pooling, dense="none", norm=False, lstm_layers=layers, lstm_size=size
        )

    def pooling_of(self, config: EncoderConfig) -> str:
        """Returns the name of the pooling for an encoder, whose `classifier_pooling` has priority.

        From left to right, [CLS] sees no other token, and the last token, which sees all of them, stands in
        for it.
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
        """Returns the dropout rates of the head."""
        return self.drop_in, self.drop_out

    @property
    def fields(self) -> tuple[str, ...]:
        """Returns the fields of `EncoderConfig` that only heads read, and that this one reads."""
        pooling = () if self.pooling == "none" else ("classifier_pooling",)
        return (*(rate.field for rate in self.rates if rate.field), *pooling)


def check_fields(given: Mapping[str, Any], read: Iterable[str], user: str) -> None:
    """Refuses values of fields that only heads read, and that the heads of a run do not read.

    Args:
        given: the fields of `EncoderConfig` in the config of the run; a checkpoint may have any values.
        read: the names of the fields that the heads read.
        user: what the heads belong to, for the message.

    Raises:
        UserError: a field is set, and no head reads it.
    """
    read = set(read)
    for name in HEAD_FIELDS:
        if given[name] is not None and name not in read:
            raise UserError(f"model.{name}={given[name]}: {user} does not use it; leave it at None")


# BERT's heads: sequence and token classification (sections 4.1 and 5.3) and answer spans (section 4.2).
SEQUENCE = ClassificationHead()
TOKENS = ClassificationHead(pooling="none", dense="none")
SPANS = ClassificationHead(pooling="none", dense="none", drop_out=NO_DROPOUT, name="qa")
# Sentence vectors have a pooling and no output layer (Reimers and Gurevych 2019, section 3).
SENTENCE = ClassificationHead(pooling="mean", dense="none", drop_out=NO_DROPOUT)
# Vectors of tokens are a projection of their states (Khattab and Zaharia 2020, section 3.2).
TOKEN_VECTORS = ClassificationHead(
    pooling="none", dense="none", drop_out=NO_DROPOUT, out_bias=False, name="projection"
)


def _cls(hidden, sequence_ids, cls_positions):
    return hidden[:, 0] if cls_positions is None else gather_positions(hidden, cls_positions)


def _mean(hidden, sequence_ids, cls_positions):
    members = members_of(sequence_ids, cls_positions).astype(hidden.dtype)
    sums = jnp.einsum("bsl,blh->bsh", members, hidden, preferred_element_type=jnp.float32)
    means = (sums / jnp.maximum(members.sum(-1, keepdims=True), 1)).astype(hidden.dtype)
    return means[:, 0] if cls_positions is None else means


def _max(hidden, sequence_ids, cls_positions):
    highest = highest_of(hidden, members_of(sequence_ids, cls_positions))
    return highest[:, 0] if cls_positions is None else highest


def _last(hidden, sequence_ids, cls_positions):
    members = members_of(sequence_ids, cls_positions)
    place = jnp.arange(hidden.shape[1])
    states = gather_positions(hidden, jnp.max(jnp.where(members, place, 0), axis=-1))
    return states[:, 0] if cls_positions is None else states


def highest_of(hidden: jax.Array, members: jax.Array) -> jax.Array:
    """Returns the maximum over the tokens of each set in a row, [B, S, H], and 0 for an empty set.

    Args:
        hidden: states [B, L, H].
        members: bool [B, S, L], the tokens of each set.
    """
    members = members[..., None]
    highest = jnp.max(jnp.where(members, hidden[:, None], jnp.finfo(hidden.dtype).min), axis=2)
    return jnp.where(jnp.any(members, axis=2), highest, 0)


def members_of(sequence_ids: jax.Array, cls_positions: jax.Array | None) -> jax.Array:
    """Returns bool [B, S, L], the tokens of each sequence of a row.

    Without `cls_positions`, S is 1 and all real tokens form one sequence.
    """
    if cls_positions is None:
        return (sequence_ids > 0)[:, None]
    return sequence_ids[:, None] == jnp.arange(1, cls_positions.shape[1] + 1)[:, None]


def _every_token(hidden, sequence_ids, cls_positions):
    return hidden


# Functions (hidden [B, L, H], sequence_ids [B, L], cls_positions [B, S] or None) -> [B, H] without and
# [B, S, H] with cls_positions; "none" returns [B, L, H].
POOLINGS: dict[str, Callable[..., jax.Array]] = {
    "cls": _cls,
    "mean": _mean,
    "max": _max,
    "last": _last,
    "none": _every_token,
}


class MaskedLanguageModelHead(Module):
    """Dense, activation, norm, a product with the word embeddings and a bias: [B, P, H] -> [B, P, V]."""

    head: MaskedLMHead = MASKED_LM

    def setup(self):
        """Creates the parts."""
        config, head = self.config, self.head
        self.transform, self.activate = identity, identity
        if head.transform:
            width = (config.embedding_width,)
            self.transform = self.dense(None, width, ("embed",), ("embed_out",), use_bias=head.transform_bias)
            self.activate = ACTIVATIONS[head.activation or config.hidden_act]
        self.transform_norm = self.norm() if head.norm else identity
        self.bias = None
        if not head.tied:
            self.decoder = self.dense(
                None, (config.vocab_size,), ("embed",), ("vocab",), use_bias=head.decoder_bias
            )
        elif head.decoder_bias:
            self.bias = self.table("bias", ("vocab",), (config.vocab_size,), nn.initializers.zeros)
        self.logits = self._tied if head.tied else self._own

    def __call__(self, x, word_embeddings, late=False):
        """Returns the logits [B, P, V] of states [B, P, H].

        With `late`, they may be `LateLogits`, where a loss is computed faster from these.
        """
        return self.logits(self.transform_norm(self.activate(self.transform(x))), word_embeddings, late)

    def _tied(self, x, word_embeddings, late):
        if late and number_of_chunks(x.shape[0] * x.shape[1], x.shape[2]) > 1:
            return LateLogits(x, word_embeddings, self.bias)
        return tied_table.logits(x, word_embeddings, self.bias)

    def _own(self, x, word_embeddings, late):
        return self.decoder(x)


class ReplacedTokenHead(Module):
    """Dense, activation and one logit for each token: [B, L, H] -> [B, L] (ELECTRA, section 2)."""

    def setup(self):
        """Creates the parts."""
        self.dense_layer = self.dense("dense", (self.config.hidden_size,), ("embed",), ("embed_out",))
        self.activate = ACTIVATIONS[self.config.hidden_act]
        self.out = self.dense(None, (1,), ("embed",), ("classes",))

    def __call__(self, x):
        """Returns the logits [B, L] that a token was replaced, for states [B, L, H]."""
        return self.out(self.activate(self.dense_layer(x)))[..., 0]


class PretrainingModel(Module):
    """Encoder with the masked LM and, if `next_sentence`, the next-sentence head (paper, section 3.1)."""

    head: MaskedLMHead = MASKED_LM
    next_sentence: bool = True

    def setup(self):
        """Creates the parts."""
        self.encoder = Encoder(self.config)
        self.mlm = MaskedLanguageModelHead(self.config, self.head)
        if self.next_sentence:
            self.pooler = Pooler(self.config)
            self.nsp = self.dense(None, (2,), ("embed",), ("classes",))

    def __call__(
        self,
        input_ids,
        token_type_ids,
        position_ids,
        sequence_ids,
        masked_positions,
        cls_positions,
        deterministic=True,
        late_logits=False,
        vectors=None,
    ):
        """Returns the logits at the given positions only.

        Args:
            input_ids: int32 [B, L]; see `Encoder` for this and the next three.
            token_type_ids: int32 [B, L].
            position_ids: int32 [B, L].
            sequence_ids: int32 [B, L].
            masked_positions: int32 [B, P], positions to predict; None for every token.
            cls_positions: int32 [B, S], position of [CLS] for each sequence of a row.
            deterministic: whether dropout is disabled.
            late_logits: whether masked LM logits may be `LateLogits`, for `objectives.losses.of_tokens`.
            vectors: as of `Encoder`.

        Returns:
            Masked LM logits [B, P, V] and next-sentence logits [B, S, 2] (1 = random next; None without that
            head), in the dtype of `config`.
        """
        word = tied_table.for_each_shard(self.encoder.embeddings.word, len(input_ids))
        hidden = self.encoder(
            input_ids, token_type_ids, position_ids, sequence_ids, deterministic, word, vectors
        )
        masked = hidden if masked_positions is None else gather_positions(hidden, masked_positions)
        mlm_logits = self.mlm(masked, word, late_logits)
        if not self.next_sentence:
            return mlm_logits, None
        return mlm_logits, self.nsp(self.pooler(gather_positions(hidden, cls_positions)))


def _not_recurrent(hidden, sequence_ids, deterministic):
    return hidden


class ClassificationModel(Module):
    """Encoder with a classification head, the model of all model families and fine-tuning tasks."""

    num_labels: int = 2
    head: ClassificationHead = SEQUENCE

    def setup(self):
        """Creates the parts."""
        head = self.head
        self.encoder = Encoder(self.config)
        between = {"activation": head.activation, "use_bias": head.dense_bias, "has_norm": head.norm}
        if head.dense == "none":
            self.between = identity
        else:
            self.between = Pooler(self.config, **between, name=head.dense)
        self.classifier = self.dense(
            head.name, (self.num_labels,), ("embed",), ("classes",), use_bias=head.out_bias
        )
        self.pool = POOLINGS[head.pooling_of(self.config)]
        self.recurrent = _not_recurrent
        if head.lstm_layers:
            self.recurrent = BiLstm(self.config, head.lstm_layers, head.lstm_size, name=LSTM)

    def __call__(
        self, input_ids, token_type_ids, position_ids, sequence_ids, deterministic=True, cls_positions=None
    ):
        """Returns float32 logits.

        Args:
            input_ids: int32 [B, L]; see `Encoder` for this and the next three.
            token_type_ids: int32 [B, L].
            position_ids: int32 [B, L].
            sequence_ids: int32 [B, L].
            deterministic: whether dropout is disabled.
            cls_positions: int32 [B, S], the first token of each sequence of a packed row; None if each row is
                one sequence.

        Returns:
            [B, num_labels]; [B, S, num_labels] with `cls_positions`; [B, L, num_labels] without pooling.
        """
        hidden = self.encoder(input_ids, token_type_ids, position_ids, sequence_ids, deterministic)
        return self.classify(hidden, sequence_ids, deterministic, cls_positions)

    def classify(self, hidden, sequence_ids, deterministic=True, cls_positions=None):
        """Returns the logits for the encoder's states [B, L, H]; the other arguments are as in a call."""
        hidden = self.recurrent(hidden, sequence_ids, deterministic)
        drop_in, drop_out = (self.dropout(rate.of(self.config), deterministic) for rate in self.head.rates)
        x = self.between(drop_in(self.pool(hidden, sequence_ids, cls_positions)))
        return self.classifier(drop_out(x)).astype(jnp.float32)


class SentenceModel(Module):
    """Encoder with one vector for each sequence, a pooling of the states of its tokens."""

    pooling: str = "mean"

    def setup(self):
        """Creates the parts."""
        self.encoder = Encoder(self.config)
        self.pool = POOLINGS[self.pooling]

    def __call__(
        self, input_ids, token_type_ids, position_ids, sequence_ids, deterministic=True, cls_positions=None
    ):
        """Returns float32 vectors, [B, H], or [B, S, H] with `cls_positions`; see `ClassificationModel`."""
        hidden = self.encoder(input_ids, token_type_ids, position_ids, sequence_ids, deterministic)
        return self.pool(hidden.astype(jnp.float32), sequence_ids, cls_positions)
