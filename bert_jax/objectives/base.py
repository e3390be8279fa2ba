"""The base class of training objectives, which are pure functions called by the train step."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax

from bert_jax.models.config import EncoderConfig
from bert_jax.models.parameters import abstract_key
from bert_jax.objectives.losses import Pair

Params = Any
Batch = dict[str, jax.Array]
Pairs = dict[str, Pair]
Rngs = dict[str, jax.Array]


class Objective:
    """A training objective: `init`, `prepare`, `weights`, `loss` and `predict`.

    Wrappers of an objective, which freeze parameters or add a teacher, also have `frozen`, `join`,
    `init_model` and `split`. An objective whose loss depends on all rows of a batch together `compares_rows`:
    with `accumulate_steps`, `row_outputs` is called with some of the rows at a time, and `compare` with the
    outputs of all of them.
    """

    compares_rows = False

    @property
    def encoders(self) -> Mapping[str, EncoderConfig]:
        """Returns {prefix of its parameter names: architecture} for each trained encoder."""
        config = encoder_config(self)
        return {} if config is None else {"": config}

    @property
    def scales(self) -> Mapping[str, float]:
        """Returns the factor of each loss in the minimized sum, by name; losses not listed have 1."""
        return {}

    def init(self, key: jax.Array) -> Params:
        """Returns new trainable parameters, boxed with their axis names (`nn.LogicallyPartitioned`)."""
        raise NotImplementedError

    @functools.cached_property
    def init_shapes(self) -> Params:
        """Returns the shapes of the parameters that `init` returns, boxed in the same way."""
        return jax.eval_shape(self.init, abstract_key())

    def prepare(self, batch: Batch, key: jax.Array, train: bool) -> Batch:
        """Returns the model's inputs for a batch of the loader, on the device.

        Axis 0 is still the rows. Random values, in training and in evaluation, depend only on `key` and the
        row's position in the global batch, or on row keys in the batch.
        """
        raise NotImplementedError

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the weight that `loss` reports for each loss, without running the model."""
        raise NotImplementedError

    def loss(self, params: Params, batch: Batch, rngs: Rngs | None) -> tuple[Pairs, Pairs]:
        """Returns ({loss: (sum, weight)}, {metric: (sum, weight)}) of a prepared batch.

        The train step minimizes the sum over losses of scale x sum / weight over the whole global batch. The
        parameters are from `join`, the batch, or some of its rows, from `prepare`. `rngs` has the key of
        Flax's random stream `dropout` in training, and is None in evaluation.
        """
        raise NotImplementedError

    def predict(self, params: Params, batch: Batch) -> jax.Array:
        """Returns the outputs for a batch of the loader, one per row."""
        raise TypeError(f"{type(self).__name__} makes no predictions")

    def row_outputs(self, params: Params, batch: Batch, rngs: Rngs | None) -> Any:
        """Returns the outputs to compare, arrays with rows on axis 0; the arguments are as in `loss`."""
        raise TypeError(f"{type(self).__name__} does not compare rows")

    def compare(self, params: Params, outputs: Any, batch: Batch) -> tuple[Pairs, Pairs]:
        """Returns the result of `loss` from the outputs of all rows of a batch."""
        raise TypeError(f"{type(self).__name__} does not compare rows")

    def frozen(self) -> Params | None:
        """Returns the frozen parameters, boxed as in `init`; None if there are none.

        They are sharded like trainable parameters, have no gradient and no optimizer state, and are saved
        once per run. Leaves are arrays, or shapes (`jax.ShapeDtypeStruct`) if a resumed run has already saved
        them or a new run gets them from `init_model`.
        """
        return None

    def join(self, params: Params, frozen: Params | None) -> Params:
        """Combines trained and frozen parameters into the parameters that `loss` and `predict` take."""
        return params

    def init_model(self, key: jax.Array) -> Params:
        """Returns new parameters of the trained model, boxed as in `init`.

        By default, all of them are trained. If `frozen` returns only shapes, a new run takes the values of
        frozen parameters from here; see `split`.
        """
        return self.init(key)

    @functools.cached_property
    def init_model_shapes(self) -> Params:
        """Returns the shapes of the parameters that `init_model` returns, boxed in the same way."""
        if type(self).init_model is Objective.init_model:
            return self.init_shapes
        return jax.eval_shape(self.init_model, abstract_key())

    def split(self, params: Params) -> tuple[Params, Params | None]:
        """Splits some or all of the parameters of `init_model` into trained and frozen ones."""
        return params, None


def encoder_config(objective: Objective) -> EncoderConfig | None:
    """Returns the configuration of an objective's encoder, or None if the objective has no encoder."""
    return getattr(objective, "config", None)
