"""Tagging with a frozen encoder (paper, section 5.3): a linear or BiLSTM head on some of its layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.encoder import Encoder
from bert_jax.models.heads.lstm import bidirectional
from bert_jax.models.layers import Module


class LayerMix(Module):
    """Returns scale * sum over k of softmax(weights)[k] * layer k (Peters et al. 2018, equation 1).

    It starts as the mean of the layers. `scale` is the paper's gamma.
    """

    layers: int = 1

    @nn.compact
    def __call__(self, x):
        """Returns [B, L, H] for the concatenated layers x [B, L, layers * H]."""
        weights = self.table("weights", (None,), (self.layers,), nn.initializers.zeros)
        scale = self.table("scale", (None,), (1,), nn.initializers.ones)
        factors = (scale * jax.nn.softmax(weights)).astype(x.dtype)
        return jnp.einsum("k,blkh->blh", factors, x.reshape(*x.shape[:2], self.layers, -1))


class FeatureHead(Module):
    """Dropout, `lstm_layers` bidirectional LSTM layers, dropout and one dense layer.

    It takes x [B, L, F] and a mask bool [B, L] of the real tokens, and returns float32 [B, L, num_labels]. If
    `mixed_layers` is not 0, x is the concatenation of that many layers, and a `LayerMix` comes first.
    """

    num_labels: int = 2
    lstm_layers: int = 0
    lstm_size: int = 768
    mixed_layers: int = 0

    @nn.compact
    def __call__(self, x, mask, deterministic):
        """Returns float32 logits [B, L, num_labels] for x [B, L, F] and a mask bool [B, L]."""
        x = x.astype(self.dtype)
        if self.mixed_layers:
            x = LayerMix(self.config, self.mixed_layers, name="mix")(x)
        x = bidirectional(self, x, mask, self.lstm_layers, self.lstm_size, deterministic)
        x = self.drop(x, deterministic)
        return self.dense("output", (self.num_labels,), ("embed",), ("classes",))(x).astype(jnp.float32)


def _concatenated(states: Sequence[jax.Array]) -> jax.Array:
    return jnp.concatenate(states, axis=-1)


def _summed(states: Sequence[jax.Array]) -> jax.Array:
    return sum(x.astype(jnp.float32) for x in states).astype(states[0].dtype)  # type: ignore[union-attr]


# Functions by `mix`, which combine the chosen layers once, before the head. The weights of "weighted" are
# trained, so they are part of the head, which reads all layers.
FEATURE_MIXES: dict[str, Callable[[Sequence[jax.Array]], jax.Array]] = {
    "concat": _concatenated,
    "sum": _summed,
    "weighted": _concatenated,
}


class FeatureTagger(Module):
    """A frozen encoder without dropout, and a `FeatureHead` on some of its layers.

    In `layers`, 0 is the output of the embeddings and -1 the output of the last layer. `mix` is a name in
    `FEATURE_MIXES`. The inputs are as in `Encoder`.
    """

    num_labels: int = 2
    layers: tuple[int, ...] = (-4, -3, -2, -1)
    lstm_layers: int = 0
    lstm_size: int = 768
    mix: str = "concat"

    def setup(self):
        self.encoder = Encoder(self.config)
        mixed = len(self.layers) if self.mix == "weighted" else 0
        self.classifier = FeatureHead(self.config, self.num_labels, self.lstm_layers, self.lstm_size, mixed)

    def features(self, input_ids, token_type_ids, position_ids, sequence_ids):
        """Returns float16 features: [B, L, H] for the sum of the layers, otherwise [B, L, len(layers) * H].

        float16 halves the memory of callers that store features. All callers get float16, so that they use
        equal values.
        """
        states = self.encoder.every_layer(
            input_ids, token_type_ids, position_ids, sequence_ids, lambda x: x.astype(jnp.float16)
        )
        return jax.lax.stop_gradient(FEATURE_MIXES[self.mix]([states[layer] for layer in self.layers]))

    def classify(self, features, sequence_ids, deterministic=True):
        """Returns float32 [B, L, num_labels] logits."""
        return self.classifier(features, sequence_ids > 0, deterministic)

    def __call__(self, input_ids, token_type_ids, position_ids, sequence_ids, deterministic=True):
        """Returns float32 logits [B, L, num_labels]."""
        features = self.features(input_ids, token_type_ids, position_ids, sequence_ids)
        return self.classify(features, sequence_ids, deterministic)
