"""Cross-attention of a decoder to one vector for each sequence."""

from __future__ import annotations

from bert_jax.models.layers import Module, gather_positions, identity


class CrossAttention(Module):
    """Attention of every token to the vector of its sequence, with the residual: [B, L, H] -> [B, L, H].

    This is the modified cross-attention of TSDAE (Wang et al. 2021, section 3). With a single key, the weight
    is 1 for every query, so that queries and keys need no parameters: all tokens of a sequence get its value
    after the output projection.
    """

    def setup(self):
        """Creates the submodules."""
        config, bias = self.config, self.config.attention_bias
        heads = (config.num_attention_heads, config.head_dim)
        self.value = self.dense(None, heads, ("embed",), ("heads", "kv"), use_bias=bias)
        self.output = self.dense(
            None, (config.hidden_size,), ("heads", "kv"), ("embed",), use_bias=bias, is_output_projection=True
        )
        # A norm before the attention would only change the queries.
        self.layer_norm = self.norm() if config.norm_placement == "post" else identity

    def __call__(self, x, vectors, sequence_ids, deterministic):
        """Returns the states [B, L, H] after this sublayer.

        Args:
            x: states [B, L, H].
            vectors: [B, S, H], one for each sequence of a row.
            sequence_ids: int32 [B, L], 1 to S by sequence and 0 at padding.
            deterministic: whether dropout is disabled.
        """

        def read(x):
            return gather_positions(self.output(self.value(vectors)), sequence_ids - 1)

        drop = self.dropout(self.config.hidden_dropout_prob, deterministic)
        return self.add_sublayer(x, self.layer_norm, read, identity, drop)
