"""A budget of time or tokens, which ends a run and drives its learning rate in place of the step.

What has been spent is a part of the train state, and so of every checkpoint: a run that resumes goes on from
the value that was saved.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.settings.run_config import RunConfig

# A schedule counts the parts of a budget as steps.
PARTS = 1_000_000

ELAPSED = "elapsed_milliseconds"  # Entry of a batch: uint32 [B], the same value for all rows of a process.

UNITS = _MILLISECONDS, _TOKENS = "milliseconds", "tokens"


@dataclasses.dataclass(frozen=True)
class Budget:
    """A budget.

    Attributes:
        unit: "tokens" or "milliseconds", which is the name of what has been spent in the train state.
        amount: the size of the budget in this unit.
    """

    unit: str
    amount: int

    @property
    def of_time(self) -> bool:
        """Returns whether this is a budget of time."""
        return self.unit == _MILLISECONDS

    def initial(self) -> dict[str, np.ndarray]:
        """Returns what has been spent at the start: uint32 [2], the lower and the upper half of a number."""
        return {self.unit: np.zeros(2, np.uint32)}

    def after(self, spent: dict[str, jax.Array], amount: jax.Array) -> dict[str, jax.Array]:
        """Returns what has been spent after a step.

        Args:
            spent: see `initial`.
            amount: the tokens of the step, or the milliseconds that had been spent when it began.
        """
        low, high = spent[self.unit]
        amount = amount.astype(jnp.uint32)
        if self.of_time:
            return {self.unit: jnp.stack([jnp.maximum(low, amount), high])}
        total = low + amount
        return {self.unit: jnp.stack([total, high + (total < low).astype(jnp.uint32)])}

    def count(self, spent: dict[str, jax.Array]) -> int:
        """Returns what has been spent as a number, after waiting for it."""
        low, high = np.asarray(spent[self.unit]).tolist()
        return low + 2**32 * high

    def share(self, spent: dict[str, jax.Array]) -> jax.Array:
        """Returns the share of the budget that has been spent, a float32 scalar of at most 1."""
        low, high = spent[self.unit].astype(jnp.float32)
        return jnp.minimum((low + 2.0**32 * high) / float(self.amount), 1.0)


class Clock:
    """Milliseconds that a run has spent, over all of its processes.

    Args:
        spent: the milliseconds at the start, from the state.
    """

    def __init__(self, spent: int):
        self._spent, self._began = spent, time.monotonic()

    def added_to(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns this process's rows of a batch with the entry `ELAPSED`."""
        now = self._spent + round(1000 * (time.monotonic() - self._began))
        rows = len(next(iter(batch.values())))
        return {**batch, ELAPSED: np.full(rows, min(now, 2**32 - 1), np.uint32)}


def from_config(config: RunConfig) -> Budget | None:
    """Returns the budget of a run, or None if it has none.

    Raises:
        UserError: there are two budgets.
    """
    if config.budget is None or not (config.budget.hours or config.budget.tokens):
        return None
    hours, tokens = config.budget.hours, config.budget.tokens
    if hours and tokens:
        raise UserError(
            f"budget.hours={hours:g} and budget.tokens={tokens}: a run has one budget; set one of them to 0"
        )
    return Budget(_TOKENS, tokens) if tokens else Budget(_MILLISECONDS, max(1, round(3_600_000 * hours)))


def schedule_steps(config: RunConfig) -> int:
    """Returns the steps that a schedule has: those of the run, or the parts of its budget."""
    return PARTS if from_config(config) else config.steps
