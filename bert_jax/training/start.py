"""The initial state of a run: resumed, from another run, from given weights, or from scratch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax import checkpoint
from bert_jax.checkpoint.leaves import flatten, nest
from bert_jax.errors import UserError
from bert_jax.objectives.adapters import PARAMS, low_rank_name
from bert_jax.objectives.base import Objective
from bert_jax.objectives.low_rank import LowRank
from bert_jax.parallel.sharding import on_all_devices
from bert_jax.settings.typed.run_config import RunConfig
from bert_jax.training import budget as budgets
from bert_jax.training.state import (
    TrainState,
    abstract_model,
    init_state,
    initial_counts,
    place_frozen,
    without_values,
)


@dataclasses.dataclass(frozen=True)
class Start:
    """Creates the initial state of a run.

    Attributes:
        config: the configuration of the run.
        objective: initializes the parameters.
        optimizer: initializes the optimizer state.
        mesh: the device mesh of the state.
        abstract: the shapes and shardings of the state.
        checkpointer: the checkpointer of the run's own checkpoints.
        initial_params: see `loop.fit`.
        log: called with a line that names the source of the state.
    """

    config: RunConfig
    objective: Objective
    optimizer: optax.GradientTransformation
    mesh: jax.sharding.Mesh
    abstract: TrainState
    checkpointer: checkpoint.Checkpointer
    initial_params: Any
    log: Callable[[str], None]

    def state(self, directory: str, start: int | None = None) -> tuple[int, TrainState]:
        """Returns the initial step and state, from the first of four sources that applies.

        The sources are, in order: the newest checkpoint of this run, the state of another run
        (`resume_from`), given weights, and a random initialization. The frozen values that the objective has,
        those of a teacher, come before those of another run.

        Args:
            directory: the work directory, for the message.
            start: the step to which the run has gone back, which is read from the other run if it is the
                start of this one. None for the newest step of the other run.

        Raises:
            UserError: a source does not fit the run, or the state of the other run is gone.
        """
        self._check_frozen()
        if resumed := self.checkpointer.restore_latest(self._form):
            self.log(f"resumed from step {resumed[0]} of {directory}")
            return resumed[0], self._completed(resumed[1])
        if other := self.source(start):
            return self._from_other(other)
        return 0, self._new()

    def _from_other(self, other: str) -> tuple[int, TrainState]:
        """Returns the step and the state that another run has saved at a path.

        Raises:
            UserError: it does not fit the run, or nothing is left to train from there.
        """
        source, state = checkpoint.load_state(other, self._form, log=self.log)
        state = self._completed(state)
        step = int(state.step)
        if step >= self.config.steps:
            raise UserError(
                f"resume_from={other} is at step {step}, and the run has steps={self.config.steps}; set "
                "more steps"
            )
        budget = budgets.of(self.config)
        if budget and state.spent is not None and budget.count(state.spent) >= budget.amount:
            field = "budget.hours" if budget.of_time else "budget.tokens"
            raise UserError(
                f"resume_from={other} is at step {step}, where {field} of the run is spent; set a larger one"
            )
        self._check_scale(state)
        self.log(f"went on from {source}, step {step}")
        if self.config.init_from:
            self.log(f"of {self.config.init_from} only the architecture is used, not the weights")
        return step, self._with_own_frozen(state)

    def source(self, start: int | None) -> str:
        """Returns the path of the other run's state, or "" if the run starts from none.

        Args:
            start: see `state`. The other run may have saved further steps since this one read it.

        Raises:
            UserError: the step is gone.
        """
        other = self.config.resume_from
        if not other or start is None:
            return other
        if step := checkpoint.find_step(other, start):
            return step
        raise UserError(
            f"resume_from={other} has no step {start} any more, from which this run started and to which it "
            "goes back; put it back, or start another work directory"
        )

    def _check_frozen(self) -> None:
        """Raises an error if the objective's frozen parameters differ from those that the run has saved.

        Those of which the objective has only the shapes are not compared; they are as the run has saved them.
        """
        frozen, without = self.abstract.frozen, without_values(self.objective)
        if not self.checkpointer.saved.agreed_steps() or len(without) == len(jax.tree.leaves(frozen)):
            return
        shardings = jax.tree.map(lambda x: x.sharding, frozen)
        given = place_frozen(self.objective, shardings, dict.fromkeys(without))
        self.checkpointer.check_frozen(given)
        jax.tree.map(lambda x: x.delete(), given)  # The saved ones are restored in their place.

    def _check_scale(self, state: TrainState) -> None:
        """Raises an error if the updates of another run have another scale than those of this run."""
        if not isinstance(self.objective, LowRank):
            return
        saved, own = flatten(state.frozen), self.objective.scale
        for name in self.objective.targets:
            scale = float(saved[f"{PARAMS}/{low_rank_name(name, 'scale')}"])
            if not math.isclose(scale, own, rel_tol=1e-5):
                alpha = self.config.adapter.alpha * scale / own
                raise UserError(
                    f"resume_from={self.config.resume_from}: its updates have the scale of "
                    f"--config.adapter.alpha={alpha:g}; set this"
                )

    def _with_own_frozen(self, state: TrainState) -> TrainState:
        """Returns a state of another run with the frozen values that the objective has."""
        shardings = jax.tree.map(lambda x: x.sharding, state.frozen)
        kept = flatten(state.frozen)
        for name in kept.keys() - without_values(self.objective):
            kept.pop(name).delete()  # A device may not have memory for two teachers.
        return state.replace(frozen=place_frozen(self.objective, shardings, kept))

    def _new(self) -> TrainState:
        given = self.initial_params
        if callable(given):
            given = given(abstract_model(self.objective, self.mesh))
        else:  # The train step deletes what it is given, and the run may come back here.
            given = jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, given)
        weights = self.config.init_from
        source = f"the weights of {weights}" if weights else "the weights given"
        self.log("started from scratch" if given is None else f"started from {source}")
        return init_state(self.objective, self.optimizer, self.mesh, self.config.seed, self.abstract, given)

    def _form(self, saved: Mapping[str, checkpoint.Leaf]) -> TrainState:
        """Returns the abstract state with the counts of a saved one, which `_completed` then replaces.

        The spike rule and the budget of a run may change, and with them `TrainState.recent` and `spent`.
        Earlier versions saved no `skipped`.
        """
        place, counts = self.abstract.step.sharding, dict.fromkeys(initial_counts(self.abstract))
        leaves = {
            name: jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(leaf.dtype), sharding=place)
            for name, leaf in saved.items()
            if name.partition("/")[0] in counts
        }
        return self.abstract.replace(**(counts | nest(leaves)))

    def _completed(self, state: TrainState) -> TrainState:
        """Returns a restored state in which counts of another form than this run's are initial ones."""
        for name, initial in initial_counts(self.abstract).items():
            if jax.tree.map(jnp.shape, getattr(state, name)) != jax.tree.map(jnp.shape, initial):
                placed = jax.tree.map(lambda x: on_all_devices(x, self.mesh), initial)
                state = state.replace(**{name: placed})
        return state
