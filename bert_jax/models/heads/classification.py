"""Models with a classification head, and models of sentence vectors."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from bert_jax.models.encoder import Encoder, Pooler
from bert_jax.models.heads.lstm import BiLstm
from bert_jax.models.heads.pooling import POOLINGS
from bert_jax.models.heads.structures import LSTM, SEQUENCE, ClassificationHead
from bert_jax.models.layers import Module, identity


def _not_recurrent(hidden, sequence_ids, deterministic):
    return hidden


def logits(
    module: Module,
    head: ClassificationHead,
    between: Callable[[jax.Array], jax.Array],
    output: Callable[[jax.Array], jax.Array],
    hidden: jax.Array,
    sequence_ids: jax.Array,
    deterministic: bool,
    cls_positions: jax.Array | None = None,
) -> jax.Array:
    """Returns the logits of a classification head for the encoder's states, in the dtype of `config`.

    `module` is the model, whose config has the pooling and the dropout rates. `between` is the dense layer of
    the head, or `identity`, and `output` its output layer. `ClassificationModel` describes the other
    arguments and the shapes of the results.
    """
    drop_in, drop_out = (module.dropout(rate.of(module.config), deterministic) for rate in head.rates)
    pool = POOLINGS[head.pooling_of(module.config)]
    return output(drop_out(between(drop_in(pool(hidden, sequence_ids, cls_positions)))))


class ClassificationModel(Module):
    """Encoder with a classification head, for all model families and classification tasks."""

    num_labels: int = 2
    head: ClassificationHead = SEQUENCE

    def setup(self):
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
        self.recurrent = _not_recurrent
        if head.lstm_layers:
            self.recurrent = BiLstm(self.config, head.lstm_layers, head.lstm_size, name=LSTM)

    def __call__(
        self, input_ids, token_type_ids, position_ids, sequence_ids, deterministic=True, cls_positions=None
    ):
        """Returns float32 logits.

        The inputs of an `Encoder` are followed by int32 `cls_positions` [B, S], the first token of each
        sequence of a packed row; None if each row is one sequence.

        Returns:
            [B, num_labels]; [B, S, num_labels] with `cls_positions`; [B, L, num_labels] without pooling.
        """
        hidden = self.encoder(input_ids, token_type_ids, position_ids, sequence_ids, deterministic)
        return self.classify(hidden, sequence_ids, deterministic, cls_positions)

    def classify(self, hidden, sequence_ids, deterministic=True, cls_positions=None):
        """Returns the logits for the encoder's states [B, L, H]; the other arguments are as in a call."""
        hidden = self.recurrent(hidden, sequence_ids, deterministic)
        parts = self.head, self.between, self.classifier
        return logits(self, *parts, hidden, sequence_ids, deterministic, cls_positions).astype(jnp.float32)


class SentenceModel(Module):
    """Encoder with one vector for each sequence, pooled from the states of its tokens."""

    pooling: str = "mean"

    def setup(self):
        self.encoder = Encoder(self.config)
        self.pool = POOLINGS[self.pooling]

    def __call__(
        self, input_ids, token_type_ids, position_ids, sequence_ids, deterministic=True, cls_positions=None
    ):
        """Returns float32 vectors, [B, H], or [B, S, H] with `cls_positions`; see `ClassificationModel`."""
        hidden = self.encoder(input_ids, token_type_ids, position_ids, sequence_ids, deterministic)
        return self.pool(hidden.astype(jnp.float32), sequence_ids, cls_positions)
