"""The train step, compiled ahead of time for each batch shape."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np

from bert_jax.kernels import dispatch
from bert_jax.parallel import host_memory
from bert_jax.parallel.sharding import MeshFunction
from bert_jax.training.metrics.metrics_writer import MetricsWriter
from bert_jax.training.preemption import PreemptionGuard
from bert_jax.training.state import TrainState
from bert_jax.training.watchdog import Watchdog

# A compiled train step and the kernels that were chosen for it, and programs by the shape of their batch.
Program = tuple[jax.stages.Compiled, list[dispatch.Choice]]
Programs = dict[tuple, Program]


def shape_key(batch: Mapping[str, jax.Array]) -> tuple:
    """Returns the names, shapes and dtypes of a batch, for which a program is compiled."""
    return tuple((name, x.shape, x.dtype) for name, x in sorted(batch.items()))


def lower_and_compile(
    train_step: MeshFunction,
    abstract_state: TrainState,
    batch: Mapping[str, Any],
    seed: np.uint32 | jax.Array,
    compile_: Callable[[jax.stages.Lowered], jax.stages.Compiled] = jax.stages.Lowered.compile,
) -> Program:
    """Returns a train step compiled for batches like this one: (state, batch, seed) -> (state, metrics)."""
    with dispatch.record() as choices:
        lowered = train_step.lower(abstract_state, batch, seed)
    return compile_(lowered), choices


class CompiledStep:
    """The train step, compiled once for each batch shape that occurs.

    Args:
        train_step: the result of `sharding.jit_train_step`.
        abstract_state: the shapes and shardings of the train state.
        seed: the seed of the run, uint32 on the devices, which is the last argument of the train step. One of
            the host would be transferred for every step.
        writer: logs each compilation.
        watchdog: is paused during compilation.
        programs: programs that have been compiled before.
    """

    def __init__(
        self,
        train_step: MeshFunction,
        abstract_state: TrainState,
        seed: jax.Array,
        writer: MetricsWriter,
        watchdog: Watchdog,
        programs: Programs | None = None,
    ):
        self._train_step, self._abstract_state, self.seed = train_step, abstract_state, seed
        self._writer, self._watchdog = writer, watchdog
        self._programs: dict[tuple, Callable] = {}
        self._ready = dict(programs or {})
        self._logged: list[dispatch.Choice] = []

    def compile(
        self,
        batch: Mapping[str, jax.Array],
        guard: PreemptionGuard,
        paused: Callable[[], AbstractContextManager] = contextlib.nullcontext,
    ) -> Callable:
        """Returns the compiled step for batches of this shape: (state, batch, seed) -> (state, metrics).

        Args:
            batch: a global batch.
            guard: interrupts the compilation if the run is requested to stop.
            paused: makes the context of a compilation, whose time does not count as that of steps.
        """
        key = shape_key(batch)
        if key not in self._programs:
            began, compiled_before = time.monotonic(), key in self._ready
            with paused(), self._watchdog.paused(), self._writer.stage("compiling the train step"):
                program, choices = self._ready.pop(key, None) or lower_and_compile(
                    self._train_step, self._abstract_state, batch, self.seed, guard.compile
                )
            host_memory.keep_activations(program, jax.local_device_count())
            self._programs[key] = program
            if not compiled_before:
                again = f" for another shape, {len(self._programs)} by now" if len(self._programs) > 1 else ""
                self._writer.message(f"compiled the train step in {time.monotonic() - began:.1f} s{again}")
            self._log_kernels(choices)
        return self._programs[key]

    def _log_kernels(self, choices: list[dispatch.Choice]) -> None:
        """Logs each choice of kernels once. On a CPU there are no choices to log."""
        if jax.default_backend() != "cpu":
            for choice in choices:
                if choice not in self._logged:
                    self._writer.message(str(choice))
                    self._logged.append(choice)
