"""What a run's configuration makes of an objective: the optimizer, the train state and the train step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
import optax

from bert_jax.objectives.adapters import recomputes
from bert_jax.objectives.base import Objective
from bert_jax.parallel import sharding
from bert_jax.settings.typed.run_config import RunConfig
from bert_jax.training import budget as budgets
from bert_jax.training.budget import Budget, Clock
from bert_jax.training.optimization.optimizers import finite_check, make_optimizer
from bert_jax.training.state import TrainState, abstract_state
from bert_jax.training.step import make_train_step, spike_rule


@dataclasses.dataclass(frozen=True)
class TrainProgram:
    """The train step of a run, which is not yet compiled.

    Attributes:
        mesh: the device mesh.
        optimizer: the optimizer.
        budget: the budget of the run, or None.
        abstract_state: the shapes and shardings of the train state.
        in_parts: maps the number of parts in which the gradient of a batch is computed to the train step.
    """

    mesh: jax.sharding.Mesh
    optimizer: optax.GradientTransformation
    budget: Budget | None
    abstract_state: TrainState
    in_parts: Callable[[int], sharding.MeshFunction]

    @classmethod
    def of(
        cls, config: RunConfig, objective: Objective, devices: Sequence[jax.Device] | None = None
    ) -> TrainProgram:
        """Returns the train step of a run with this configuration.

        Args:
            config: the configuration of the run.
            objective: the training objective.
            devices: the devices of the mesh; by default those of this run.

        Raises:
            UserError: the mesh, the optimizer, the spike rule or the budget is not valid.
        """
        mesh = sharding.mesh_of(config.mesh, devices=devices)
        optimizer, schedule = make_optimizer(config.optimizer, budgets.schedule_steps(config), objective)
        spikes, budget, check = spike_rule(config), budgets.of(config), finite_check(config.optimizer)
        state = abstract_state(objective, optimizer, mesh, spikes.window if spikes else 0, budget)

        def in_parts(parts):
            step = make_train_step(
                objective, optimizer, schedule, parts, spikes, check, budget, config.max_skipped_steps
            )
            shardings = jax.tree.map(lambda x: x.sharding, state)
            return sharding.jit_train_step(step, mesh, shardings, recomputes(objective))

        return cls(mesh, optimizer, budget, state, in_parts)

    def placed(self, rows: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Returns a batch as at the first step of a run.

        Args:
            rows: this process's rows; see `sharding.global_batch`.
        """
        of_time = self.budget is not None and self.budget.of_time
        return sharding.global_batch(Clock(0).added_to(rows) if of_time else rows, self.mesh)
