"""Base class of objectives for rows with one text or one pair of texts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models import intermediates
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import ClassificationHead
from bert_jax.models.row_inputs import INPUTS, TYPES, packed_inputs, row_inputs
from bert_jax.objectives import losses
from bert_jax.objectives.base import Batch, Objective, Pairs, Params, Rngs


class RowObjective(Objective):
    """An objective whose `model` reads rows made by `bert_jax.tasks.rows.batches`.

    Its loss is written once, in `criterion`: training calls it with logits, and evaluation calls it through
    `evaluation_loss` with the outputs of `predict`.
    """

    config: EncoderConfig
    loss_names = ("task",)
    classifier: ClassificationHead  # which depends on the model family
    windows: bool = False  # whether rows are windows of longer texts, weighted by their `row_weights`
    token_types: tuple[int, int] = TYPES  # of the first and of the second text
    choices: int = 1  # consecutive rows that form one example
    may_be_packed = False  # whether rows may hold several examples; see `bert_jax.tasks.rows.packing`
    # A regular expression for parameters that may be missing from a checkpoint or be extra in it, such as the
    # pooler, which pre-training without next-sentence labels does not have.
    may_differ = "pooler/.*"

    @property
    def model(self) -> nn.Module:
        raise NotImplementedError

    @property
    def new_groups(self) -> tuple[str, ...]:
        """Returns the parameter groups that are always newly initialized in fine-tuning."""
        return self.classifier.new_groups

    @property
    def has_softmax(self) -> bool:
        """Returns whether the logits are softmax inputs, which a comparison with a teacher needs."""
        return True

    def init(self, key: jax.Array) -> Params:
        ids = jnp.zeros((1, 8), jnp.int32)
        return self.model.init(key, ids, ids, ids, ids)["params"]

    def row_widths(self, rows: int, width: int) -> tuple[int, ...]:
        """Returns the tokens that the model computes for each row of a group, padded to `width` tokens."""
        return (width,) * rows

    def prepare(self, batch: Batch, key: jax.Array | None, train: bool) -> Batch:
        """Returns the batch with the model's inputs, int32 [..., L], added, without randomness.

        Packed rows also have int32 `cls_positions` [B, S].
        """
        del key, train
        if self.may_be_packed and "starts" in batch:
            inputs = packed_inputs(batch, self.token_types)
        else:
            inputs = row_inputs(
                batch["input_ids"], batch["lengths"], batch.get("first_lengths"), self.token_types
            )
        return batch | inputs | {"tokens": batch["lengths"], "sequences": batch["weights"]}

    def apply(
        self, params: Params, batch: Batch, rngs: Rngs | None, collect: Collection[str] = (), **options: Any
    ) -> tuple[Any, intermediates.States]:
        """Returns the model's output for the rows of a prepared batch, and the intermediates in `collect`.

        `params` are the parameters of the whole model, and `options` additional arguments of the model. Rows
        of a group are consecutive.
        """
        inputs = (batch[name].reshape(-1, batch[name].shape[-1]) for name in INPUTS)
        options = {"deterministic": rngs is None, **options, "rngs": rngs}
        return intermediates.apply(self.model, self.config, params, *inputs, collect=collect, **options)

    def options(self, batch: Batch) -> dict[str, Any]:
        """Returns additional arguments of the model for a prepared batch."""
        return {}

    def shaped(self, output: jax.Array, batch: Batch) -> jax.Array:
        """Converts the model's output to the logits that `criterion` takes."""
        return output

    def forward(
        self, params: Params, batch: Batch, rngs: Rngs | None = None, collect: Collection[str] = ()
    ) -> tuple[jax.Array, intermediates.States]:
        """Returns the float32 logits for a prepared batch, and the intermediates in `collect`."""
        output, states = self.apply(params, batch, rngs, collect, **self.options(batch))
        return self.shaped(output, batch), states

    def logits(self, params: Params, batch: Batch, rngs: Rngs | None = None) -> jax.Array:
        return self.forward(params, batch, rngs)[0]

    def criterion(self, logits: jax.Array, targets: Any, weights: jax.Array) -> losses.Pair:
        """Returns the loss as (sum, weight)."""
        raise NotImplementedError

    def metrics(self, logits: jax.Array, targets: Any, weights: jax.Array) -> Pairs:
        """Returns the metrics that training reports, as {name: (sum, weight)}."""
        return {"accuracy": losses.accuracy(logits, targets, weights)}

    def targets(self, batch: Batch) -> Any:
        """Returns the targets in the shape that `criterion` takes."""
        return batch["targets"]

    def present(self, batch: Batch) -> jax.Array:
        """Returns float32 1 for each target that counts, and 0 for padding."""
        return batch["weights"]

    def example_weights(self, batch: Batch) -> jax.Array:
        return self.present(batch)

    def row_weights(self, batch: Batch) -> jax.Array:
        """Returns the weight of each window, which is 1 on average over the data set."""
        return batch["row_weights"]

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"task": jnp.sum(self.example_weights(batch))}

    def loss(self, params: Params, batch: Batch, rngs: Rngs | None) -> tuple[Pairs, Pairs]:
        """Returns the loss `task` and the metrics of a prepared batch."""
        return self.losses_of(self.logits(params, batch, rngs), batch)

    def losses_of(self, logits: jax.Array, batch: Batch) -> tuple[Pairs, Pairs]:
        """Returns the loss `task` and the metrics of the logits for a prepared batch."""
        targets, weights = self.targets(batch), self.example_weights(batch)
        counted = weights * self.row_weights(batch) if self.windows else weights
        total, _ = self.criterion(logits, targets, counted)
        metrics = self.metrics(logits, targets, self.present(batch))
        # The sum of `counted` would be the wrong divisor. Windows of long texts all have the same length, so
        # they fill entire batches, where it would give each window the weight of a whole text.
        return {"task": (total, jnp.sum(weights))}, metrics

    def soft_logits(self, logits: jax.Array) -> list[jax.Array]:
        """Returns the logits of each softmax, for comparison with a teacher's logits."""
        return [logits]

    def soft_weights(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns the weights of `soft_logits` and the divisor of their loss.

        Both are as in `loss`, except that there are no class weights.
        """
        weights = self.present(batch)
        return weights * self.row_weights(batch) if self.windows else weights, jnp.sum(weights)

    def predict(self, params: Params, batch: Batch) -> jax.Array:
        """Returns the outputs for the rows of a batch of the loader; see `outputs`."""
        return self.outputs(self.logits(params, self.prepare(batch, None, False)))

    def outputs(self, logits: jax.Array) -> jax.Array:
        """Converts logits to the result of `predict`, by default class probabilities."""
        return jax.nn.softmax(logits, axis=-1)

    def logits_of(self, outputs: jax.Array) -> jax.Array:
        """Inverts `outputs`: returns logits for which `outputs` returns these values."""
        return jnp.log(jnp.maximum(outputs, jnp.finfo(jnp.float32).tiny))

    def evaluation_loss(self, outputs: Any, targets: Any) -> float:
        """Returns the mean loss of outputs of `predict`, with equal weight for every target.

        The outputs are float32 arrays of whole examples; for an example with several windows, their mean. A
        negative integer marks a target that does not count.
        """
        with jax.transfer_guard("allow"):  # only a few operations on host arrays
            weights = jnp.ones(len(outputs), jnp.float32)
            for leaf in jax.tree.leaves(targets):
                if jnp.issubdtype(leaf.dtype, jnp.integer):
                    weights *= (jnp.asarray(leaf) >= 0).astype(jnp.float32)
            return float(losses.mean(self.criterion(self.logits_of(outputs), targets, weights)))
