"""The train step and the evaluation step, which are pure functions and one dispatch each."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.errors import UserError
from bert_jax.kernels import dispatch
from bert_jax.objectives import losses
from bert_jax.objectives.adapters import recomputes
from bert_jax.objectives.base import Batch, Objective, Pairs, Params
from bert_jax.parallel import microbatches, placement, sharding
from bert_jax.settings.run_config import RunConfig
from bert_jax.training.optimizers import finite_check, make_optimizer
from bert_jax.training.state import TrainState, abstract_state

# For parameters p with a smaller norm, a trust ratio |p| / |u| is finite: |u|, if not 0, is at least 4e-23.
_LARGEST_NORM = 1e15


@dataclasses.dataclass(frozen=True)
class TrainSetup:
    """The optimizer, the train state and the train step of a configuration; nothing is compiled yet.

    `abstract_state` has the shapes and shardings of the train state. `step_with` maps a number of
    microbatches to the train step.
    """

    mesh: jax.sharding.Mesh
    optimizer: optax.GradientTransformation
    abstract_state: TrainState
    step_with: Callable[[int], sharding.MeshFunction]

    @classmethod
    def from_config(
        cls, config: RunConfig, objective: Objective, devices: Sequence[jax.Device] | None = None
    ) -> TrainSetup:
        """Sets up a run, by default on all devices; raises UserError for an invalid mesh or optimizer."""
        mesh = sharding.mesh_of(config.mesh, devices=devices)
        optimizer, schedule = make_optimizer(config.optimizer, config.steps, objective)
        check = finite_check(config.optimizer)
        state = abstract_state(objective, optimizer, mesh, config.mesh.shard_optimizer)
        shardings = jax.tree.map(lambda x: x.sharding, state)
        moments = None
        if config.mesh.shard_optimizer:
            moments = sharding.parameter_shardings(objective.init_shapes, mesh, over_data=True)
        reduce_dtype = config.mesh.reduce_dtype
        if reduce_dtype != "float32" and (mesh.size > mesh.shape["data"] or objective.compares_rows):
            raise UserError(
                f"mesh.reduce_dtype={reduce_dtype} needs mesh.fsdp=1, mesh.tensor=1 and a loss that does not "
                "compare rows"
            )
        reduce_dtype = reduce_dtype if mesh.size > 1 else "float32"

        def step_with(microbatches: int) -> sharding.MeshFunction:
            limit = config.max_skipped_steps
            step = make_train_step(
                objective, optimizer, schedule, microbatches, check, limit, moments, reduce_dtype
            )
            return sharding.jit_train_step(step, mesh, shardings, recomputes(objective))

        return cls(mesh, optimizer, state, step_with)


def shape_key(batch: Mapping[str, jax.Array]) -> tuple:
    """Returns the names, shapes and dtypes of a batch, for which a program is compiled."""
    return tuple((name, x.shape, x.dtype) for name, x in sorted(batch.items()))


def lower_and_compile(
    train_step: sharding.MeshFunction,
    state: TrainState,
    batch: Mapping[str, Any],
    seed: np.uint32 | jax.Array,
) -> tuple[jax.stages.Compiled, list[dispatch.Choice]]:
    """Returns the train step compiled for batches like this one, and the kernels that were chosen for it."""
    with dispatch.record() as choices:
        lowered = train_step.lower(state, batch, seed)
    return lowered.compile(), choices


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    schedule: Callable,
    accumulate_steps: int = 1,
    check: str = "update",
    max_skipped: int = np.iinfo(np.int32).max,
    moments: Any = None,
    reduce_dtype: str = "float32",
) -> Callable[[TrainState, Batch, jax.Array], tuple[TrainState, dict[str, jax.Array]]]:
    """Returns the train step.

    The total loss is the sum over the objective's losses of scale x (sum over the global batch) / (weight of
    the global batch). With `accumulate_steps`, the sums of each microbatch are divided by the weights of the
    whole batch, so the gradient does not depend on how the predicted tokens are distributed over the
    microbatches. Each row has the same dropout as in the whole batch. An objective that compares rows also
    has the loss of the whole batch: only the model is computed in microbatches, and again in the backward
    pass, so that memory holds the activations of one microbatch (gradient caching, Gao et al. 2021).

    A step is skipped if its loss or its gradient norm is not finite, or if the new parameters or the new
    optimizer state might not be finite (see `check`). A skipped step leaves the parameters and the optimizer
    state unchanged. Once `max_skipped` consecutive steps were skipped, every later step is skipped, so the
    host can detect this at any later step without losing anything.

    Args:
        objective: the training objective.
        optimizer: the descent direction; see `bert_jax.training.optimizers`.
        schedule: maps a step to its learning rate.
        accumulate_steps: the number of microbatches.
        check: "update" checks that the new parameters and the new optimizer state are finite, "norm" that the
            norm of the parameters is below 1e15; "nothing" is no check. See `optimizers.finite_check`.
        max_skipped: see above.
        moments: the NamedShardings of the gradients and of arrays computed from them, a tree like the
            parameters; None for the shardings of the parameters. Updates are gathered last.
        reduce_dtype: dtype in which the devices' gradients, float32 sums over their rows, are added up.

    Returns:
        (state, batch, uint32 seed) -> (state, metrics). The seed is an argument, not a constant, so that runs
        that differ only in their seeds share a compiled program. The metrics are float32 scalars: loss,
        <name>_loss, the mean of each metric of the objective, grad_norm, learning_rate, `skipped`, the number
        of consecutive skipped steps up to this one, and `tokens` and `sequences` if the prepared batch
        contains these counts.
    """

    def train_step(state, batch, seed):
        key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), state.step)
        prepare_key, dropout_key = jax.random.split(key)
        batch = objective.prepare(batch, prepare_key, True)
        rngs = {"dropout": dropout_key}
        (loss, pairs), grads = _differentiate(objective, state, batch, rngs, accumulate_steps, reduce_dtype)
        before = state.params
        if moments is not None:
            # With a psum_scatter of each layer, libtpu would copy each gradient to another layout: 7 ms of a
            # step of Base on v5e:16x16.
            grads, before = jax.lax.with_sharding_constraint((grads, before), (moments, moments))
        with jax.named_scope("grad_norm"):
            grad_norm = optax.tree.norm(grads)
        with _promotion_of_optax():
            learning_rate = schedule(state.step)
        # With `jax_enable_x64`, a schedule may return float64, which would make the parameters float64.
        learning_rate = jnp.asarray(learning_rate, jnp.float32)

        with jax.named_scope("optimizer"):
            with _promotion_of_optax():
                updates, opt_state = optimizer.update(grads, state.opt_state, before)
            params = jax.tree.map(lambda p, u: p - learning_rate * u, before, updates)
        accepted = jnp.isfinite(loss) & jnp.isfinite(grad_norm) & (state.skipped < max_skipped)
        if check == "norm":
            accepted &= optax.tree.norm(before) < _LARGEST_NORM
        elif check == "update":
            accepted &= _all_finite((params, opt_state))
        with jax.named_scope("optimizer"):
            params, opt_state = jax.tree.map(
                lambda new, old: jnp.where(accepted, new, old), (params, opt_state), (before, state.opt_state)
            )
        skipped = jnp.where(accepted, 0, state.skipped + 1)
        metrics = {"loss": loss, "grad_norm": grad_norm, "learning_rate": learning_rate}
        metrics["skipped"] = skipped.astype(jnp.float32)
        metrics |= _means(*pairs) | _counts(batch)
        return TrainState(state.step + 1, params, opt_state, state.frozen, skipped), metrics

    return train_step


def _promotion_of_optax() -> contextlib.AbstractContextManager:
    return jax.numpy_dtype_promotion("standard")  # Optax adds integers and floats.


def _differentiate(
    objective: Objective,
    state: TrainState,
    batch: Batch,
    rngs: dict[str, jax.Array],
    accumulate_steps: int,
    reduce_dtype: str,
) -> tuple[tuple[jax.Array, tuple[Pairs, Pairs]], Params]:
    weights = {name: jnp.maximum(weight, 1e-9) for name, weight in objective.weights(batch).items()}
    count = accumulate_steps if objective.compares_rows else 1

    def scaled(name, mean):
        scale = objective.scales.get(name, 1)
        return mean if scale == 1 else scale * mean

    def total_loss(params, part, rngs):
        joined = objective.join(params, state.frozen)
        if count == 1:
            loss_pairs, metric_pairs = objective.loss(joined, part, rngs)
        else:
            outputs = microbatches.mapped(
                lambda rows: objective.row_outputs(joined, rows, rngs), part, count, recompute=True
            )
            loss_pairs, metric_pairs = objective.compare(joined, outputs, part)
        total = sum(scaled(name, pair[0] / weights[name]) for name, pair in loss_pairs.items())
        return total, (loss_pairs, metric_pairs)

    gradient = jax.value_and_grad(total_loss, has_aux=True)
    if objective.compares_rows:
        return gradient(state.params, batch, rngs)

    def of_rows(given, rows):
        params, rngs = given
        sums, grads = microbatches.summed(lambda part: gradient(params, part, rngs), rows, accumulate_steps)
        return sums, jax.tree.map(lambda g: g.astype(reduce_dtype), grads)

    sums, grads = sharding.sum_over_rows(of_rows, (state.params, rngs), batch)
    return sums, jax.tree.map(lambda g, p: g.astype(p.dtype), grads, state.params)


def _means(loss_pairs: Pairs, metric_pairs: Pairs) -> dict[str, jax.Array]:
    reported = {f"{name}_loss": pair for name, pair in loss_pairs.items()} | metric_pairs
    return {name: losses.mean(pair, otherwise=math.nan) for name, pair in reported.items()}


def _all_finite(tree: Any) -> jax.Array:
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    # Without the barrier, XLA copies the conjunction over all leaves into the update of every leaf, and
    # a step takes twice as long to compile on a CPU.
    return jnp.all(jax.lax.optimization_barrier(jnp.stack([jnp.all(jnp.isfinite(x)) for x in leaves])))


def _counts(batch: Batch) -> dict[str, jax.Array]:
    return {
        name: jnp.sum(batch[name]).astype(jnp.float32) for name in ("tokens", "sequences") if name in batch
    }


def make_eval_step(
    objective: Objective, parts_of: Callable[[Batch], int] = lambda batch: 1
) -> Callable[[Params, Batch, jax.Array, jax.Array], Pairs]:
    """Returns the evaluation step, which computes a batch in `parts_of(prepared batch)` microbatches.

    It maps (params, batch, batch index, uint32 seed, frozen=None) to {name: (sum, weight)}, where `frozen` is
    `TrainState.frozen`. To get means, add the pairs over all batches and divide once. Random choices in
    `Objective.prepare`, such as the masks, depend only on the seed and the index of the batch, so they are
    the same in every evaluation.
    """

    def eval_step(params, batch, index, seed, frozen=None):
        key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), index)
        batch = objective.prepare(batch, key, False)
        joined = objective.join(params, frozen)
        return losses_in_microbatches(objective, joined, batch, parts_of(batch))

    return eval_step


def losses_in_microbatches(objective: Objective, params: Params, batch: Batch, parts: int) -> Pairs:
    """Returns {name: (sum, weight)} of a batch, without dropout: of losses, `NAME_loss`, and of metrics.

    The batch is prepared, and `params` may contain `placement.UnstackedLayers`. The number of microbatches,
    `parts`, is ignored if the objective compares rows.
    """

    def of_part(params, rows):
        return objective.loss(placement.restack(params), rows, None)

    def of_rows(params, rows):
        return microbatches.summed(lambda part: of_part(params, part), rows, parts)

    if parts == 1 or objective.compares_rows:
        loss_pairs, metric_pairs = of_part(params, batch)
    else:  # each device adds up its own rows
        loss_pairs, metric_pairs = sharding.sum_over_rows(of_rows, params, batch)
    return {f"{name}_loss": pair for name, pair in loss_pairs.items()} | metric_pairs
