"""Heads by value, and the models that carry them: masked LM and next sentence; classes of rows and of tokens;
answers in a text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.kernels import tied_table
from bert_jax.models.encoder import Encoder, Pooler
from bert_jax.models.layers import ACTIVATIONS, Module, identity


@dataclasses.dataclass(frozen=True)
class MaskedLMHead:
    """What stands in front of the transposed word embeddings; the defaults are BERT's.

    Attributes:
        transform: whether there is a dense layer from H to E with its activation.
        transform_bias: whether it has a bias.
        activation: a name of `layers.ACTIVATIONS`; None for `hidden_act`.
        norm: whether a norm follows.
        decoder_bias: whether the logits have a bias.
    """

    transform: bool = True
    transform_bias: bool = True
    activation: str | None = None
    norm: bool = True
    decoder_bias: bool = True


@dataclasses.dataclass(frozen=True)
class ClassificationHead:
    """What makes logits of hidden states: pooling, dropout, dense, activation, norm, dropout, dense.

    The defaults are those of BERT's classifier of texts (paper, section 4.1).

    Attributes:
        pooling: a name of `POOLINGS`: "cls", "mean" over the tokens of each sequence, its "last" token, or
            "none": logits for every token.
        drop_in, drop_out: dropout in front of the dense layer and in front of the output; None for
            `hidden_dropout_prob`.
        dense: "pooler", the pooler's, which pre-training may have trained; "head", one of its own; "none".
        dense_bias: whether it has a bias.
        activation: behind it, a name of `layers.ACTIVATIONS`.
        norm: whether a norm follows.
        out_bias: whether the logits have a bias.
        name: of the output's parameters.
    """

    pooling: str = "cls"
    drop_in: float | None = 0.0
    dense: str = "pooler"
    dense_bias: bool = True
    activation: str = "tanh"
    norm: bool = False
    drop_out: float | None = None
    out_bias: bool = True
    name: str = "classifier"


# BERT's heads: classes of texts, of tokens (section 5.3), and where an answer starts and ends (section 4.2).
SEQUENCE = ClassificationHead()
TOKENS = ClassificationHead(pooling="none", dense="none")
SPANS = ClassificationHead(pooling="none", dense="none", drop_out=0.0, name="qa")


def gather_positions(hidden: jax.Array, positions: jax.Array) -> jax.Array:
    """Rows of `hidden` [B, L, H] at `positions` int32 [B, K] -> [B, K, H].

    A product with one-hot vectors: exact, under 0.1% of a step, and its gradient is a product too, not a
    scatter.
    """
    selector = jax.nn.one_hot(positions, hidden.shape[1], dtype=hidden.dtype)
    return jnp.einsum("bkl,blh->bkh", selector, hidden, precision=jax.lax.Precision.HIGHEST)


def _cls(hidden, sequence_ids, cls_positions):
    return hidden[:, 0] if cls_positions is None else gather_positions(hidden, cls_positions)


def _mean(hidden, sequence_ids, cls_positions):
    members = _members(sequence_ids, cls_positions).astype(hidden.dtype)
    sums = jnp.einsum("bsl,blh->bsh", members, hidden, preferred_element_type=jnp.float32)
    means = (sums / jnp.maximum(members.sum(-1, keepdims=True), 1)).astype(hidden.dtype)
    return means[:, 0] if cls_positions is None else means


def _last(hidden, sequence_ids, cls_positions):
    members = _members(sequence_ids, cls_positions)
    place = jnp.arange(hidden.shape[1])
    states = gather_positions(hidden, jnp.max(jnp.where(members, place, 0), axis=-1))
    return states[:, 0] if cls_positions is None else states


def _members(sequence_ids, cls_positions):
    """bool [B, S, L]: which tokens each sequence of a row has; all real ones are one where S is not given."""
    if cls_positions is None:
        return (sequence_ids > 0)[:, None]
    return sequence_ids[:, None] == jnp.arange(1, cls_positions.shape[1] + 1)[:, None]


def _every_token(hidden, sequence_ids, cls_positions):
    return hidden


# (hidden [B, L, H], sequence_ids [B, L], cls_positions [B, S] | None) -> [B, H], or [B, S, H]; or [B, L, H].
POOLINGS: dict[str, Callable[..., jax.Array]] = {
    "cls": _cls,
    "mean": _mean,
    "last": _last,
    "none": _every_token,
}


class MaskedLanguageModelHead(Module):
    """Dense, activation, norm, then the transposed word embeddings and a bias. [B, P, H] -> [B, P, V]."""

    head: MaskedLMHead = MaskedLMHead()

    def setup(self):
        config, head = self.config, self.head
        self.transform, self.activate = identity, identity
        if head.transform:
            width = (config.embedding_width,)
            self.transform = self.dense(None, width, ("embed",), ("embed_out",), use_bias=head.transform_bias)
            self.activate = ACTIVATIONS[head.activation or config.hidden_act]
        self.transform_norm = self.norm() if head.norm else identity
        self.bias = None
        if head.decoder_bias:
            self.bias = self.table("bias", ("vocab",), (config.vocab_size,), nn.initializers.zeros)

    def __call__(self, x, word_embeddings):
        x = self.transform_norm(self.activate(self.transform(x)))
        return tied_table.logits(x, word_embeddings, self.bias)


class PretrainingModel(Module):
    """Encoder with the masked LM and next-sentence heads (paper, section 3.1)."""

    head: MaskedLMHead = MaskedLMHead()

    def setup(self):
        self.encoder = Encoder(self.config)
        self.pooler = Pooler(self.config)
        self.mlm = MaskedLanguageModelHead(self.config, self.head)
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
    ):
        """Logits at the given positions only.

        Args:
          input_ids, token_type_ids, position_ids, sequence_ids: int32 [B, L], see `Encoder`.
          masked_positions: int32 [B, P], positions to predict.
          cls_positions: int32 [B, S], the [CLS] of each sequence of a row.

        Returns:
          [B, P, V] masked LM logits and [B, S, 2] next-sentence logits (1 = random next), in `config.dtype`.
        """
        word = tied_table.for_each_shard(self.encoder.embeddings.word, len(input_ids))
        hidden = self.encoder(input_ids, token_type_ids, position_ids, sequence_ids, deterministic, word)
        mlm_logits = self.mlm(gather_positions(hidden, masked_positions), word)
        nsp_logits = self.nsp(self.pooler(gather_positions(hidden, cls_positions)))
        return mlm_logits, nsp_logits


class ClassificationModel(Module):
    """Encoder and a head that makes logits: the one model of all families and all fine-tuning tasks."""

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
        self.pool = POOLINGS[head.pooling]

    def __call__(
        self, input_ids, token_type_ids, position_ids, sequence_ids, deterministic=True, cls_positions=None
    ):
        """Returns float32 logits; inputs as `Encoder`'s.

        Args:
            cls_positions: int32 [B, S], the first token of each sequence of a packed row; None where a row is
                one sequence.

        Returns:
            [B, num_labels], with `cls_positions` [B, S, num_labels]; without pooling [B, L, num_labels].
        """
        hidden = self.encoder(input_ids, token_type_ids, position_ids, sequence_ids, deterministic)
        x = self.drop_at(self.head.drop_in, self.pool(hidden, sequence_ids, cls_positions), deterministic)
        x = self.drop_at(self.head.drop_out, self.between(x), deterministic)
        return self.classifier(x).astype(jnp.float32)

    def drop_at(self, rate, x, deterministic):
        rate = self.config.hidden_dropout_prob if rate is None else rate
        return self.dropout(rate, deterministic)(x)
