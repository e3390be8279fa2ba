"""A tag a word from its first word-piece (paper, section 5.3), as a pure task."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models import FeatureTagger, TokenClassifier
from bert_jax.models.config import EncoderConfig
from bert_jax.objectives import losses


@dataclasses.dataclass(frozen=True, eq=False)
class TaggingTask:
    """Tokens with a tag each, or `NO_TARGET`, in the batches of `bert_jax.tasks.rows.batches`.

    `layers` are those of the encoder whose frozen outputs the head reads; without any, encoder and head are
    trained together. `lstm_layers` of size `lstm_size` make a BiLSTM of a frozen encoder's head.
    """

    config: EncoderConfig
    num_labels: int
    layers: tuple[int, ...] = ()
    lstm_layers: int = 0
    lstm_size: int = 768

    head = "classifier"

    @property
    def model(self) -> TokenClassifier | FeatureTagger:
        if not self.layers:
            return TokenClassifier(self.config, num_labels=self.num_labels)
        return FeatureTagger(self.config, self.num_labels, self.layers, self.lstm_layers, self.lstm_size)

    @property
    def expected_initial_loss(self) -> float:
        """ln C: what an untrained classifier loses."""
        return float(np.log(self.num_labels))

    def init(self, key: jax.Array) -> Any:
        ids = jnp.zeros((1, 8), jnp.int32)
        return self.model.init(key, ids, ids, ids, ids)["params"]

    def prepare(self, batch: dict[str, jax.Array], key: jax.Array, train: bool) -> dict[str, jax.Array]:
        """Adds the model's inputs: int32 [B, L] `token_type_ids`, `position_ids` and `sequence_ids`."""
        del key, train
        index = jnp.arange(batch["input_ids"].shape[1], dtype=jnp.int32)
        real = index < batch["lengths"][:, None]
        given = {name: batch[name] for name in ("tags", "features") if name in batch}
        return given | {
            "input_ids": batch["input_ids"],
            "token_type_ids": jnp.zeros_like(batch["input_ids"]),
            "position_ids": jnp.where(real, index, 0),
            "sequence_ids": real.astype(jnp.int32),
            "tokens": batch["lengths"],
            "sequences": batch["weights"],
        }

    def features(self, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        """float16 [B, L, F] of a batch as the loader gives it; `params` needs the encoder's alone."""
        return self._features(params, self.prepare(batch, None, False))

    def _features(self, params, batch):
        params = {"params": {"encoder": params["encoder"]}}
        return self.model.apply(params, *_inputs(batch), method="features")

    def logits(
        self, params: Any, batch: dict[str, jax.Array], dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """float32 [B, L, C] of a prepared batch."""
        options = dict(
            deterministic=dropout_key is None,
            rngs=None if dropout_key is None else {"dropout": dropout_key},
        )
        if not self.layers:
            return self.model.apply({"params": params}, *_inputs(batch), **options)
        features = batch["features"] if "features" in batch else self._features(params, batch)
        head = {"params": {self.head: params[self.head]}}
        return self.model.apply(head, features, batch["sequence_ids"], method="classify", **options)

    def loss_weights(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return {"task": jnp.sum(_weights(batch))}

    def loss(self, params: Any, batch: dict[str, jax.Array], dropout_key: jax.Array | None):
        row = (self.logits(params, batch, dropout_key), batch["tags"], _weights(batch))
        return {"task": losses.cross_entropy(*row)}, {"accuracy": losses.accuracy(*row)}

    def predict(self, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        """float32 [B, L, C] probabilities, of a batch as the loader gives it."""
        return jax.nn.softmax(self.logits(params, self.prepare(batch, None, False)), axis=-1)


def _inputs(batch):
    return (batch[name] for name in ("input_ids", "token_type_ids", "position_ids", "sequence_ids"))


def _weights(batch):
    return (batch["tags"] >= 0).astype(jnp.float32)
