"""Embeddings of an encoder: the sum of the configured tables, normalized and projected."""

from __future__ import annotations

import flax.linen as nn
import jax

from bert_jax.kernels import tied_table
from bert_jax.models import positions
from bert_jax.models.layers import Module, identity


def _no_type(x, table, token_type_ids):
    return x


def _one_type(x, table, token_type_ids):
    # Every token gets the only row, for any id. A matmul with one-hot vectors would add nothing for an id
    # outside the table.
    return x + table[0]


def _types(x, table, token_type_ids):
    # The table has few rows, so the gradient of a one-hot matmul is cheap. A scatter into two rows would be
    # serialized.
    return x + jax.nn.one_hot(token_type_ids, table.shape[0], dtype=x.dtype) @ table


class Embeddings(Module):
    """Sum of token, segment and position embeddings, then a norm, dropout and a projection to [B, L, H].

    BERT (figure 2 of the paper) has all three tables and no projection.
    """

    def setup(self):
        config, width = self.config, self.config.embedding_width
        self.word = self.table("word_embeddings", ("vocab", "embed"), (config.vocab_size, width))
        self.token_type = None
        if config.type_vocab_size:
            shape = (config.type_vocab_size, width)
            self.token_type = self.table("token_type_embeddings", ("token_type", "embed"), shape)
        self.add_types = {0: _no_type, 1: _one_type}.get(config.type_vocab_size, _types)
        self.add_positions = positions.EMBED.get(config.position, lambda config, x, *_: x)
        self.positions = None
        if table := positions.table(config):
            start = None if table.start is None else nn.initializers.constant(table.start)
            self.positions = self.table(table.name, table.axes, table.shape, start)
        self.layer_norm = self.norm() if config.embedding_norm else lambda x: x.astype(self.dtype)
        self.projection = identity
        self.is_projected_first = config.projection_placement == "before_norm"
        if config.projects_embeddings:
            self.projection = self.dense(
                None, (config.hidden_size,), ("embed",), ("embed_out",), use_bias=not self.is_projected_first
            )

    def __call__(self, input_ids, token_type_ids, position_ids, deterministic, word=None):
        """Returns the embeddings [B, L, H] of int32 [B, L] inputs; see `Encoder`."""
        x = tied_table.look_up(self.word if word is None else word, input_ids)
        x = self.add_types(x, self.token_type, token_type_ids)
        x = self.add_positions(self.config, x, position_ids, self.positions)
        drop = self.dropout(self.config.embedding_dropout_rate, deterministic)
        if self.is_projected_first:
            return drop(self.layer_norm(self._project(x)))
        return self._project(drop(self.layer_norm(x)))

    def _project(self, x):
        if self.projection is identity:
            return x
        # Without this constraint, the features of the layers' input are split. XLA's partitioner then
        # computes wrong gradients if a loop of shared layers follows on a mesh of three axes.
        return nn.with_logical_constraint(self.projection(x), ("batch", "length", "activation"))
