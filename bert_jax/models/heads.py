"""BERT with its heads: masked LM and next sentence; classes of rows and of tokens; answers in a text."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.kernels import tied_table
from bert_jax.models.encoder import Encoder, Pooler, _Module
from bert_jax.models.layers import activation


def gather_positions(hidden: jax.Array, positions: jax.Array) -> jax.Array:
    """Rows of `hidden` [B, L, H] at `positions` int32 [B, K] -> [B, K, H].

    A product with one-hot vectors: exact, under 0.1% of a step, and its gradient is a product too, not a
    scatter.
    """
    selector = jax.nn.one_hot(positions, hidden.shape[1], dtype=hidden.dtype)
    return jnp.einsum("bkl,blh->bkh", selector, hidden, precision=jax.lax.Precision.HIGHEST)


class MaskedLanguageModelHead(_Module):
    """Dense, GELU, LayerNorm, then the transposed word embeddings and a bias. [B, P, H] -> [B, P, V]."""

    @nn.compact
    def __call__(self, x, word_embeddings):
        x = self.dense("transform", (self.config.hidden_size,), ("embed",), ("embed_out",))(x)
        x = self.norm("transform_norm")(activation(self.config.hidden_act)(x))
        bias = self.param(
            "bias",
            nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",)),
            (self.config.vocab_size,),
            jnp.float32,
        )
        return tied_table.logits(x, word_embeddings, bias)


class PretrainingModel(_Module):
    """Encoder with the masked LM and next-sentence heads (paper, section 3.1)."""

    def setup(self):
        self.encoder = Encoder(self.config)
        self.pooler = Pooler(self.config)
        self.mlm = MaskedLanguageModelHead(self.config)
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


class SequenceClassifier(_Module):
    """Encoder, pooler, dropout and one dense layer over [CLS] (paper, section 4.1)."""

    num_labels: int = 2

    def setup(self):
        self.encoder = Encoder(self.config)
        self.pooler = Pooler(self.config)
        self.classifier = self.dense(None, (self.num_labels,), ("embed",), ("classes",))

    def __call__(
        self, input_ids, token_type_ids, position_ids, sequence_ids, deterministic=True, cls_positions=None
    ):
        """float32 [B, num_labels] logits, from the first token of each row; or [B, S, num_labels], from
        `cls_positions` int32 [B, S]. Inputs as `Encoder`'s.
        """
        hidden = self.encoder(input_ids, token_type_ids, position_ids, sequence_ids, deterministic)
        cls = hidden[:, 0] if cls_positions is None else gather_positions(hidden, cls_positions)
        pooled = self.drop(self.pooler(cls), deterministic)
        return self.classifier(pooled).astype(jnp.float32)


class TokenClassifier(_Module):
    """Encoder, dropout and one dense layer over every token (paper, section 5.3)."""

    num_labels: int = 2

    def setup(self):
        self.encoder = Encoder(self.config)
        self.classifier = self.dense(None, (self.num_labels,), ("embed",), ("classes",))

    def __call__(self, input_ids, token_type_ids, position_ids, sequence_ids, deterministic=True):
        """float32 [B, L, num_labels] logits; inputs as `Encoder`'s."""
        hidden = self.encoder(input_ids, token_type_ids, position_ids, sequence_ids, deterministic)
        return self.classifier(self.drop(hidden, deterministic)).astype(jnp.float32)


class QuestionAnsweringModel(_Module):
    """Encoder and one dense layer for where an answer starts and ends (paper, section 4.2)."""

    def setup(self):
        self.encoder = Encoder(self.config)
        self.qa = self.dense(None, (2,), ("embed",), ("classes",))

    def __call__(self, input_ids, token_type_ids, position_ids, sequence_ids, deterministic=True):
        """float32 [B, L, 2] logits of start and end; inputs as `Encoder`'s."""
        hidden = self.encoder(input_ids, token_type_ids, position_ids, sequence_ids, deterministic)
        return self.qa(hidden).astype(jnp.float32)
