"""The protocol of an objective: what a model learns, as pure functions that one train step runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import jax

from bert_jax.objectives.losses import Pair

Params = Any
Batch = dict[str, jax.Array]
Pairs = dict[str, Pair]
Rngs = Mapping[str, jax.Array]


class Objective(Protocol):
    """What is learned. Everything but `init`, `prepare`, `weights`, `loss` and `predict` has a default.

    Attributes:
        scales: the factor of each loss in the sum that is minimized, by the loss's name; 1 for one that is
            not named.
        initial_loss: that sum for an untrained model; None where it depends on the data.
    """

    scales: Mapping[str, float] = {}
    initial_loss: float | None = None

    def init(self, key: jax.Array) -> Params:
        """Returns new trained parameters, each boxed with its logical axis names
        (`flax.linen.LogicallyPartitioned`).
        """
        ...

    def frozen(self) -> Params | None:
        """Returns the parameters that are read and never trained, boxed as those of `init`; None for none.

        They are sharded like trained parameters, have no gradient and no optimizer state, and are saved once
        for a run. Leaves are arrays; or, where the run that resumes has saved them, shapes
        (`jax.ShapeDtypeStruct`).
        """
        return None

    def join(self, params: Params, frozen: Params | None) -> Params:
        """Returns what `loss` and `predict` take, from the trained and the frozen parameters."""
        return params

    def prepare(self, batch: Batch, key: jax.Array, train: bool) -> Batch:
        """Returns the model's inputs from a batch of the loader, on the device.

        Rows stay along axis 0. What is random, in training and in evaluation, depends on `key` and the row's
        place in the global batch alone.
        """
        ...

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the weight that `loss` reports for each loss of a prepared batch, which is known without
        the model.
        """
        ...

    def loss(self, params: Params, batch: Batch, rngs: Rngs | None) -> tuple[Pairs, Pairs]:
        """Returns ({loss: (sum, weight)}, {metric: (sum, weight)}) of a prepared batch.

        The train step minimizes the sum over losses of scale x sum / weight over the whole global batch.

        Args:
            params: what `join` returned.
            batch: what `prepare` returned, or some of its rows.
            rngs: the keys of Flax's random streams in training, which is `dropout`; None in evaluation.
        """
        ...

    def predict(self, params: Params, batch: Batch) -> jax.Array:
        """Returns the outputs for a batch of the loader, one for each row."""
        ...
