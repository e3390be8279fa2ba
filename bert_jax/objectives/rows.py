"""What the tasks over rows of one text, or of one pair, share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

INPUTS = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")


def row_inputs(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """A batch with the model's inputs [..., L]: int32 `token_type_ids`, `position_ids`, `sequence_ids`."""
    index = jnp.arange(batch["input_ids"].shape[-1], dtype=jnp.int32)
    real = index < batch["lengths"][..., None]
    return batch | {
        "token_type_ids": (real & (index >= batch["first_lengths"][..., None])).astype(jnp.int32),
        "position_ids": jnp.where(real, index, 0),
        "sequence_ids": real.astype(jnp.int32),
        "tokens": batch["lengths"],
        "sequences": batch["weights"],
    }


class RowTask:
    """A task whose `model` reads rows as `bert_jax.tasks.rows.batches` makes them."""

    model: Any

    def init(self, key: jax.Array) -> Any:
        """Parameters, each boxed with its logical axis names."""
        ids = jnp.zeros((1, 8), jnp.int32)
        return self.model.init(key, ids, ids, ids, ids)["params"]

    def prepare(self, batch: dict[str, jax.Array], key: jax.Array, train: bool) -> dict[str, jax.Array]:
        """Adds the model's inputs: int32 [..., L] `token_type_ids`, `position_ids` and `sequence_ids`."""
        del key, train
        return row_inputs(batch)

    def apply(
        self, params: Any, batch: dict[str, jax.Array], dropout_key: jax.Array | None = None, **more: Any
    ) -> jax.Array:
        """What the model makes of the rows of a prepared batch, those of a group one after the other; `more`
        are other arguments of the model.
        """
        return self.model.apply(
            {"params": params},
            *(batch[name].reshape(-1, batch[name].shape[-1]) for name in INPUTS),
            deterministic=dropout_key is None,
            **more,
            rngs=None if dropout_key is None else {"dropout": dropout_key},
        )
