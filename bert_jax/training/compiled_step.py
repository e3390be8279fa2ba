"""The train step, compiled ahead of time for each batch shape."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import jax
import numpy as np

from bert_jax.kernels import dispatch
from bert_jax.parallel import host_memory
from bert_jax.parallel.sharding import MeshFunction
from bert_jax.training.metrics.metrics_writer import MetricsWriter
from bert_jax.training.preemption import PreemptionGuard
from bert_jax.training.state import TrainState
from bert_jax.training.watchdog import Watchdog


class CompiledStep:
    """The train step, compiled once for each batch shape that occurs.

    Args:
        train_step: the result of `sharding.jit_train_step`.
        abstract_state: the shapes and shardings of the train state.
        seed: the seed of the run, which is the last argument of the train step.
        writer: logs each compilation.
        watchdog: is paused during compilation.
    """

    def __init__(
        self,
        train_step: MeshFunction,
        abstract_state: TrainState,
        seed: np.uint32,
        writer: MetricsWriter,
        watchdog: Watchdog,
    ):
        self._train_step, self._abstract_state, self.seed = train_step, abstract_state, seed
        self._writer, self._watchdog = writer, watchdog
        self._programs: dict[tuple, Callable] = {}
        self._logged: list[dispatch.Choice] = []

    def compile(self, batch: Mapping[str, jax.Array], guard: PreemptionGuard) -> Callable:
        """Returns the compiled step for batches of this shape: (state, batch, seed) -> (state, metrics).

        Args:
            batch: a global batch.
            guard: interrupts the compilation if the run is requested to stop.
        """
        key = tuple((name, x.shape, x.dtype) for name, x in sorted(batch.items()))
        if key not in self._programs:
            began = time.monotonic()
            with self._watchdog.paused(), self._writer.stage("compiling"):
                self._programs[key], choices = guard.wait_for(lambda: self._lower_and_compile(batch))
            again = f" for another shape, {len(self._programs)} by now" if len(self._programs) > 1 else ""
            self._writer.message(f"compiled the train step in {time.monotonic() - began:.1f} s{again}")
            self._log_kernels(choices)
        return self._programs[key]

    def _lower_and_compile(self, batch: Mapping[str, jax.Array]) -> tuple[Callable, list[dispatch.Choice]]:
        with dispatch.record() as choices:
            lowered = self._train_step.lower(self._abstract_state, batch, self.seed)
        compiled = lowered.compile()
        host_memory.keep_activations(compiled, jax.local_device_count())
        return compiled, choices

    def _log_kernels(self, choices: list[dispatch.Choice]) -> None:
        """Logs each choice of kernels once. On a CPU there are no choices to log."""
        if jax.default_backend() != "cpu":
            for choice in choices:
                if choice not in self._logged:
                    self._writer.message(str(choice))
                    self._logged.append(choice)
