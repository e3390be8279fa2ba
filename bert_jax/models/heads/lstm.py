"""Bidirectional LSTM layers, which read each sequence of a row separately."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.layers import Module


def _orthogonal(key, shape, dtype):
    """Returns one orthogonal matrix per gate.

    They are factorized one by one. On a CPU, jaxlib factorizes a batch in tasks, and waits for them in a
    thread of the pool that runs them. If the number of concurrent batches reaches the core count, they hang.
    """
    one = nn.initializers.orthogonal()
    return jnp.stack([one(key, shape[1:], dtype) for key in jax.random.split(key, shape[0])])


class Lstm(Module):
    """One direction of an LSTM (Hochreiter and Schmidhuber 1997) with a forget gate whose bias starts at 1.

    It takes x [B, L, F] and a mask bool [B, L], and returns [B, L, features]. Where the mask is False the
    state does not change, so padding at either end has no effect.
    """

    features: int = 768
    reverse: bool = False

    @nn.compact
    def __call__(self, x, mask, segments=None):
        """Returns the states [B, L, features] for inputs x [B, L, F] and the mask bool [B, L] of read tokens.

        The state is reset where the number in `segments`, int [B, L], changes. Without them each row is read
        as a whole.
        """
        size = self.features
        # Matmuls that do not depend on the state are computed for all tokens together, outside the loop.
        gates = self.dense("inputs", (4, size), ("embed",), ("gates", "state"))(x)
        recurrent = self.param(
            "recurrent",
            nn.with_logical_partitioning(_orthogonal, ("gates", "state_in", "state")),
            (4, size, size),
            jnp.float32,
        ).astype(self.dtype)
        recurrent = recurrent.transpose(1, 0, 2).reshape(size, 4 * size)

        def step(carry, inputs):
            gate, real, *new_segment = inputs
            if new_segment:
                carry = jax.tree.map(lambda state: jnp.where(new_segment[0][:, None], 0, state), carry)
            hidden, cell = carry
            gate = gate + (hidden @ recurrent).reshape(gate.shape)
            write, forget, new, read = (gate[:, i] for i in range(4))
            now = jax.nn.sigmoid(forget + 1) * cell + jax.nn.sigmoid(write) * jnp.tanh(new)
            out = jax.nn.sigmoid(read) * jnp.tanh(now)
            real = real[:, None]
            carry = jnp.where(real, out, hidden), jnp.where(real, now, cell)
            return carry, carry[0]

        zeros = jnp.zeros((x.shape[0], size), self.dtype)
        rows = [gates.swapaxes(0, 1), mask.T]
        if segments is not None:
            rows.append(_begins(segments, self.reverse).T)
        return jax.lax.scan(step, (zeros, zeros), tuple(rows), reverse=self.reverse)[1].swapaxes(0, 1)


def _begins(segments, reverse):
    """Returns bool [B, L], the first token of each segment in the order of reading."""
    changes = segments[:, 1:] != segments[:, :-1]
    edge = jnp.ones_like(segments[:, :1], bool)
    return jnp.concatenate([changes, edge] if reverse else [edge, changes], axis=1)


def bidirectional(module, x, mask, layers, size, deterministic, segments=None, name=""):
    """Returns the states [B, L, 2 * size] of a stack of bidirectional LSTM layers, with dropout before each.

    The module, which has the parameters, calls this function in a compact method. Inputs x [B, L, F] are
    returned if there are no layers. `mask` and `segments` are as for `Lstm`; `name` is a prefix of the names
    of the layers.
    """
    for layer in range(layers):
        x = module.drop(x, deterministic)
        forward = Lstm(module.config, size, name=f"{name}forward_{layer}")(x, mask, segments)
        backward = Lstm(module.config, size, reverse=True, name=f"{name}backward_{layer}")(x, mask, segments)
        x = jnp.concatenate([forward, backward], axis=-1)
    return x


class BiLstm(Module):
    """Bidirectional LSTM layers on the states of an encoder: [B, L, H] -> [B, L, 2 * size]."""

    layers: int = 2
    size: int = 768

    @nn.compact
    def __call__(self, x, sequence_ids, deterministic):
        """Returns states [B, L, 2 * size]; each sequence of a packed row is read separately."""
        x = x.astype(self.dtype)
        mask = sequence_ids > 0
        return bidirectional(self, x, mask, self.layers, self.size, deterministic, sequence_ids)
