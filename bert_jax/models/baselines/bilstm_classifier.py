"""The BiLSTM baseline of GLUE for texts and pairs of texts (Wang et al. 2019, section 4).

It has no Transformer. It reads WordPiece tokens instead of words, and uses learned vectors or a checkpoint's
word embeddings instead of GloVe.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.kernels import tied_table
from bert_jax.models.heads.lstm import bidirectional
from bert_jax.models.heads.pooling import highest_of, members_of
from bert_jax.models.heads.structures import HIDDEN_DROPOUT, LSTM, ClassificationHead
from bert_jax.models.layers import Module

_LAYERS = 2
_HEAD_WIDTH = 512

# The dropout rates and parameter groups of the head. The model always pools by the maximum over the tokens.
HEAD = ClassificationHead(pooling="none", drop_in=HIDDEN_DROPOUT, dense="head", drop_out=HIDDEN_DROPOUT)


class _Embeddings(Module):
    """Word embeddings without other tables: int32 [B, L] -> [B, L, E]."""

    def setup(self):
        config = self.config
        shape = (config.vocab_size, config.embedding_width)
        self.word = self.table("word_embeddings", ("vocab", "embed"), shape)

    def __call__(self, input_ids):
        return tied_table.look_up(self.word, input_ids)


class _Words(Module):
    """Replaces the encoder, so that the word embeddings have the same parameter name as in an encoder."""

    def setup(self):
        self.embeddings = _Embeddings(self.config)


class _Dense(Module):
    """tanh(W x + b)."""

    @nn.compact
    def __call__(self, x):
        return jnp.tanh(self.dense("dense", (_HEAD_WIDTH,), ("embed",), ("embed_out",))(x))


class TextLstm(Module):
    """A norm, and BiLSTM layers that read each text separately: [B, L, E] -> [B, L, 2 * size].

    If `attends`, each token then attends to the other text of its pair, and another BiLSTM layer reads its
    state and the attention output.
    """

    size: int = 384
    attends: bool = False

    @nn.compact
    def __call__(self, x, mask, sequence_ids, second, deterministic):
        """Returns the states [B, L, 2 * size] for word vectors x [B, L, E].

        `mask`, bool [B, L], are the tokens that are read. `sequence_ids`, int32 [B, L], are 1, 2, ... by
        sequence of a row, and 0 at padding. `second`, int32 [B, L], is 1 for tokens of the second text of a
        pair, else 0.
        """
        # The norms of word vectors differ between checkpoints, and are small in newly initialized vectors.
        x = self.norm("norm")(x)
        texts = 2 * sequence_ids + second
        x = bidirectional(self, x, mask, _LAYERS, self.size, deterministic, texts)
        if self.attends:
            context = attended(x, mask, sequence_ids, second)
            x = jnp.concatenate([x, context], axis=-1)
            x = bidirectional(self, x, mask, 1, self.size, deterministic, texts, "attended_")
        return self.drop(x, deterministic)


def attended(x, mask, sequence_ids, second):
    """Returns each token's dot-product attention to the other text of its pair: [B, L, F].

    It is 0 for a token without another text. The arguments are as in `TextLstm`.
    """
    allowed = sequence_ids[:, :, None] == sequence_ids[:, None]
    allowed &= second[:, :, None] != second[:, None]
    allowed &= mask[:, None]
    scores = jnp.einsum("bif,bjf->bij", x, x, preferred_element_type=jnp.float32)
    shares = jax.nn.softmax(jnp.where(allowed, scores, jnp.finfo(jnp.float32).min), axis=-1)
    return jnp.einsum("bij,bjf->bif", jnp.where(allowed, shares, 0).astype(x.dtype), x)


class BilstmClassifier(Module):
    """Word vectors, a BiLSTM, the maximum over the tokens of each text, and a dense layer before the outputs.

    For `pairs` with maxima u and v, the dense layer reads [u; v; |u - v|; u * v]. If `attends`, the texts of
    a pair attend to each other. `size` is the number of features of each direction of the BiLSTM. Tokens with
    ids in `skipped_ids`, such as [CLS] and [SEP], are not read.
    """

    num_labels: int = 2
    size: int = 384
    pairs: bool = False
    attends: bool = False
    skipped_ids: tuple[int, ...] = ()

    def setup(self):
        self.encoder = _Words(self.config)
        self.lstm = TextLstm(self.config, self.size, self.attends, name=LSTM)
        self.head = _Dense(self.config)
        self.classifier = self.dense(None, (self.num_labels,), ("embed",), ("classes",))

    def __call__(
        self, input_ids, token_type_ids, position_ids, sequence_ids, deterministic=True, cls_positions=None
    ):
        """Returns float32 logits, [B, num_labels], or [B, S, num_labels] with `cls_positions`.

        The arguments are as in `ClassificationModel`, but `token_type_ids` are 1 for the second text of a
        pair in all model families. Positions are not used.
        """
        mask = sequence_ids > 0
        for token in self.skipped_ids:
            mask &= input_ids != token
        x = self.lstm(self.encoder.embeddings(input_ids), mask, sequence_ids, token_type_ids, deterministic)
        members = members_of(sequence_ids, cls_positions) & mask[:, None]
        first = token_type_ids[:, None] == 0
        u = highest_of(x, members & first if self.pairs else members)
        if self.pairs:
            v = highest_of(x, members & ~first)
            u = jnp.concatenate([u, v, jnp.abs(u - v), u * v], axis=-1)
        if cls_positions is None:
            u = u[:, 0]
        u = self.head(self.drop(u, deterministic))
        return self.classifier(self.drop(u, deterministic)).astype(jnp.float32)
