"""The pure train and evaluation steps: (state, batch) in, (state, metrics) out, one dispatch each."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.errors import UserError
from bert_jax.kernels.dropout import row_ids
from bert_jax.objectives import losses
from bert_jax.objectives.base import Batch, Objective, Pairs, Params
from bert_jax.training.state import TrainState

SPIKE_METRICS = ("loss", "grad_norm")


@dataclasses.dataclass(frozen=True)
class SpikeRule:
    """Skips a step whose loss, or gradient norm, is above `factor` times the median of the last `window`
    steps that were not skipped. Until there are so many, nothing is a spike.

    Raises:
        UserError: a factor of 1 or less, or an unknown metric.
    """

    factor: float
    window: int = 128
    metric: str = "loss"

    def __post_init__(self):
        if self.factor <= 1:
            raise UserError(f"spikes.factor={self.factor:g} must be more than 1, or 0 for no rule")
        if self.metric not in SPIKE_METRICS:
            raise UserError(
                f"spikes.metric={self.metric!r} is unknown; choose one of {', '.join(SPIKE_METRICS)}"
            )


def spike_rule(config: Any) -> SpikeRule | None:
    """Returns the rule of a run's configuration; None where spikes.factor is 0."""
    spikes = config.get("spikes")
    return SpikeRule(**spikes) if spikes and spikes["factor"] else None


def split_rows(batch: Batch, parts: int) -> Batch:
    """[B, ...] -> [parts, B / parts, ...]: row r of part p is row r x parts + p of the batch, so that sharded
    rows stay where they are.
    """
    return jax.tree.map(lambda x: x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1), batch)


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    schedule: Callable,
    accumulate_steps: int = 1,
    spikes: SpikeRule | None = None,
    check_update: bool = True,
) -> Callable[[TrainState, Batch, jax.Array], tuple[TrainState, dict[str, jax.Array]]]:
    """Builds the train step.

    It minimizes the sum over losses of scale x (sum over the global batch) / (weight of the global batch):
    with `accumulate_steps` the parts are divided by the whole batch's weights, so the gradient is that of the
    whole batch however unevenly the predicted tokens fall; each row has the dropout that it has in the whole
    batch. A step whose loss, gradient, new parameters or new optimizer state is not finite, or that is a
    spike, leaves parameters and optimizer as they were and counts itself in the metric `skipped`.

    Returns:
      (state, batch, uint32 seed) -> (state, metrics). The seed is no constant of the program, so that runs
      that differ in it alone share what is compiled. Metrics are float32 scalars: loss, <name>_loss, every
      metric of the objective as a mean, grad_norm, learning_rate, skipped, `spike` where there is a rule for
      them, and `tokens`, `sequences` where the prepared batch counts them.
    """

    def train_step(state, batch, seed):
        key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), state.step)
        prepare_key, dropout_key = jax.random.split(key)
        batch = objective.prepare(batch, prepare_key, True)
        weights = {name: jnp.maximum(weight, 1e-9) for name, weight in objective.weights(batch).items()}

        def scaled(name, mean):
            scale = objective.scales.get(name, 1)
            return mean if scale == 1 else scale * mean

        def total_loss(params, part, rngs):
            joined = objective.join(params, state.frozen)
            loss_pairs, metric_pairs = objective.loss(joined, part, rngs)
            _check_scales(objective.scales, loss_pairs)
            total = sum(scaled(name, pair[0] / weights[name]) for name, pair in loss_pairs.items())
            return total, (loss_pairs, metric_pairs)

        gradient = jax.value_and_grad(total_loss, has_aux=True)
        rngs = {"dropout": dropout_key}
        if accumulate_steps == 1:
            (loss, pairs), grads = gradient(state.params, batch, rngs)
        else:
            (loss, pairs), grads = _accumulate(gradient, state.params, batch, rngs, accumulate_steps)

        grad_norm = optax.tree.norm(grads)
        learning_rate = schedule(state.step)

        def update(params, opt_state):
            updates, opt_state = optimizer.update(grads, opt_state, params)
            return jax.tree.map(lambda p, u: p - learning_rate * u, params, updates), opt_state

        accepted = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        if check_update:
            # Computed twice: kept until all of it is known to be finite, what is new would take the memory of
            # the state once more, and be written and read again. The barrier keeps XLA from joining the two.
            accepted &= _all_finite(update(*jax.lax.optimization_barrier((state.params, state.opt_state))))
        params, opt_state = update(state.params, state.opt_state)
        recent = state.recent
        found = {"loss": loss, "grad_norm": grad_norm}
        if spikes is not None:
            value = found[spikes.metric]
            spike = accepted & (value > spikes.factor * jnp.median(recent))  # NaN, until there is a window
            accepted &= ~spike
            recent = jnp.where(accepted, jnp.append(recent[1:], value), recent)
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(accepted, new, old),
            (params, opt_state),
            (state.params, state.opt_state),
        )
        loss_pairs, metric_pairs = pairs
        metrics = found | {"learning_rate": learning_rate, "skipped": 1.0 - accepted.astype(jnp.float32)}
        if spikes is not None:
            metrics["spike"] = spike.astype(jnp.float32)
        metrics |= {f"{name}_loss": losses.mean(pair) for name, pair in loss_pairs.items()}
        metrics |= {name: losses.mean(pair) for name, pair in metric_pairs.items()}
        metrics |= _counts(batch)
        return TrainState(state.step + 1, params, opt_state, recent, state.frozen), metrics

    return train_step


def _accumulate(gradient, params, batch, rngs, parts):
    """The sums over the parts of what `gradient` returns of each, whose rows draw the dropout that they draw
    in the whole batch.
    """
    split = split_rows(batch, parts)
    of_part = jnp.arange(jax.tree.leaves(split)[0].shape[1])

    def body(total, part):
        index, rows = part
        with row_ids(of_part * parts + index):
            return jax.tree.map(jnp.add, total, gradient(params, rows, rngs)), None

    shapes = jax.eval_shape(gradient, params, jax.tree.map(lambda x: x[0], split), rngs)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(body, zeros, (jnp.arange(parts), split))[0]


def _check_scales(scales: Mapping[str, float], loss_pairs: Pairs) -> None:
    if unknown := [name for name in scales if name not in loss_pairs]:
        raise ValueError(f"the objective has scales for {unknown}, and its losses are {list(loss_pairs)}")


def _all_finite(tree: Any) -> jax.Array:
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(x)) for x in leaves], jnp.bool_(True))


def _counts(batch: Batch) -> dict[str, jax.Array]:
    return {
        name: jnp.sum(batch[name]).astype(jnp.float32) for name in ("tokens", "sequences") if name in batch
    }


def make_eval_step(objective: Objective, seed: int) -> Callable[[Params, Batch, jax.Array], Pairs]:
    """Builds (params, batch, batch index, frozen=None) -> {name: (sum, weight)}; add the pairs over batches
    and divide once. `frozen` is `TrainState.frozen`.

    What is random in `prepare` (the masks) depends on the seed and the batch's index, so every evaluation
    sees the same.
    """

    def eval_step(params, batch, index, frozen=None):
        key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), index)
        batch = objective.prepare(batch, key, False)
        loss_pairs, metric_pairs = objective.loss(objective.join(params, frozen), batch, None)
        return {f"{name}_loss": pair for name, pair in loss_pairs.items()} | metric_pairs

    return eval_step
