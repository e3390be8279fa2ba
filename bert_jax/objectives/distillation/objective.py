"""Distillation: an objective whose model, the student, also imitates a frozen teacher (Hinton et al. 2015).

It wraps any objective that gives its logits. The teacher reads the same prepared batch, with the same masks,
and computes without dropout.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models import Encoder, collected
from bert_jax.models.config import EncoderConfig
from bert_jax.models.layers import kernel_init
from bert_jax.models.parameters import is_box
from bert_jax.models.row_inputs import INPUTS
from bert_jax.objectives.base import Batch, Computed, Objective, Pairs, Params, Predicted, Rngs
from bert_jax.objectives.distillation import losses
from bert_jax.objectives.distillation.pairs import LOGITS, PAIRS, TASK, Models, PairOptions
from bert_jax.objectives.masked_lm import MaskedLM, at_every_token

DISTILLATION = "distillation"  # the parameters that only the comparison with the teacher has
TEACHER = "teacher"  # the name of the teacher's parameters among the frozen ones


class Taught(Objective, Protocol):
    """An objective whose model can be a student or a teacher."""

    @property
    def config(self) -> EncoderConfig:
        """Returns the configuration of the encoder."""
        ...

    @property
    def loss_names(self) -> tuple[str, ...]:
        """Returns the names of the losses."""
        ...

    def forward(
        self, params: Params, batch: Batch, rngs: Rngs | None = None, collect: Collection[str] = ()
    ) -> tuple[Any, collected.States]:
        """Returns what `losses_of` takes, and what is collected of the encoder."""
        ...

    def losses_of(self, logits: Any, batch: Batch) -> tuple[Pairs, Pairs]:
        """Returns the losses and metrics."""
        ...

    def soft_logits(self, logits: Any) -> list[jax.Array]:
        """Returns the logits of each softmax."""
        ...

    def soft_weights(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns the weights of the rows of these logits, and the sum that their loss is divided by."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Distillation(Objective):
    """Trains a student on its own losses and on comparisons with its teacher.

    If neither its own losses nor its logits count, the student is an encoder without a head.

    Attributes:
        student: the objective of the student.
        teacher: the same objective with the teacher's configuration and head.
        factors: the factor of each comparison: of `TASK`, the student's own losses, of `LOGITS`, and of
            names in `PAIRS`.
        temperature: of the comparison of logits.
        every_token: whether masked LM logits are compared at all tokens, or at the masked ones only.
        options: how states are compared.
        teacher_params: the teacher's parameters as nested arrays; None if only their shapes are known.
    """

    student: Taught
    teacher: Taught
    factors: Mapping[str, float]
    temperature: float = 2.0
    every_token: bool = True
    options: PairOptions = dataclasses.field(default_factory=PairOptions)
    teacher_params: Params | None = None

    @property
    def config(self) -> EncoderConfig:
        """Returns the configuration of the student's encoder."""
        return self.student.config

    @property
    def models(self) -> Models:
        """Returns what is compared."""
        return Models(self.student.config, self.teacher.config, self.options)

    @property
    def scales(self) -> Mapping[str, float]:
        """Returns the factor of each loss."""
        scales = {name: factor for name, factor in self.factors.items() if name != TASK}
        if TASK in self.factors:
            own = self.student.scales
            scales |= {name: self.factors[TASK] * own.get(name, 1) for name in self.student.loss_names}
        return scales

    @property
    def uses_heads(self) -> bool:
        """Returns whether the student has a head, because its outputs count."""
        return bool({TASK, LOGITS} & self.factors.keys())

    @property
    def predicts_everywhere(self) -> bool:
        """Returns whether both models predict at every token."""
        return LOGITS in self.factors and self.every_token and isinstance(self.student, MaskedLM)

    @property
    def _pairs(self) -> list[str]:
        return [name for name in self.factors if name in PAIRS]

    def init(self, key: jax.Array) -> Params:
        """Returns new parameters of the student, and the matrices that map its states to the teacher's."""
        sizes = self.student.config.hidden_size, self.teacher.config.hidden_size
        init = kernel_init(self.student.config.initializer_range)
        maps = {
            name: {
                "kernel": nn.LogicallyPartitioned(init(jax.random.fold_in(key, i), sizes), ("embed", None))
            }
            for i, name in enumerate(self._pairs)
            if PAIRS[name].projects and sizes[0] != sizes[1]
        }
        return self.init_model(key) | ({DISTILLATION: maps} if maps else {})

    def init_model(self, key: jax.Array) -> Params:
        """Returns new parameters of the student."""
        return self._used(self.student.init(key), self.uses_heads)

    @staticmethod
    def _used(params: Params, heads: bool) -> Params:
        return params if heads else {"encoder": params["encoder"]}

    @functools.cached_property
    def teacher_shapes(self) -> Params:
        """Returns the shapes of the teacher's parameters that are used, boxed as in `init`."""
        return self._used(self.teacher.init_shapes, LOGITS in self.factors)

    def frozen(self) -> Params:
        """Returns the teacher's parameters, or their shapes."""
        found = self.teacher_shapes
        if self.teacher_params is not None:
            found = jax.tree.map(
                lambda box, x: box.replace_boxed(x), found, self.teacher_params, is_leaf=is_box
            )
        return {TEACHER: found}

    def join(self, params: Params, frozen: Params | None) -> Params:
        """Returns the parameters of both."""
        assert frozen is not None
        return {"student": params, TEACHER: frozen[TEACHER]}

    def at_step(self, batch: Batch, step: jax.Array) -> Batch:
        """Returns the batch with what the student's objective needs of the step."""
        return self.student.at_step(batch, step)

    def prepare(self, batch: Batch, key: jax.Array, train: bool) -> Batch:
        """Returns the inputs of both models."""
        prepared = self.student.prepare(batch, key, train)
        return at_every_token(prepared) if self.predicts_everywhere else prepared

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the weight of each loss."""
        found = dict(self.student.weights(batch)) if TASK in self.factors else {}
        if LOGITS in self.factors:
            found[LOGITS] = self.student.soft_weights(batch)[1]
        ids = _rows(batch["sequence_ids"])
        return found | {name: PAIRS[name].weight(ids) for name in self._pairs}

    def loss(self, params: Params, batch: Batch, rngs: Rngs | None) -> tuple[Pairs, Pairs]:
        """Returns the losses of all comparisons, and the metrics of the student's objective."""
        names = list(dict.fromkeys(state for name in self._pairs for state in PAIRS[name].states))
        student, states = self._forward(self.student, self.uses_heads, params["student"], batch, rngs, names)
        teacher, targets = self._forward(
            self.teacher, LOGITS in self.factors, params[TEACHER], batch, None, names
        )
        # Two losses read these logits, and their gradients can be added only if they have one dtype.
        student = jax.tree.map(lambda x: x.astype(jnp.float32), student)
        found, metrics = self.student.losses_of(student, batch) if self.uses_heads else ({}, {})
        sums: dict[str, jax.Array] = {}
        if LOGITS in self.factors:
            sums[LOGITS] = self._compare_logits(student, teacher, batch)
        ids = _rows(batch["sequence_ids"])
        tokens = (ids > 0).astype(jnp.float32)
        for name in self._pairs:
            mine, pair = states, PAIRS[name]
            if projection := params["student"].get(DISTILLATION, {}).get(name):
                kernel = projection["kernel"]
                mine = {each: [x @ kernel.astype(x.dtype) for x in mine[each]] for each in pair.states}
            sums[name] = pair.loss((mine, targets), ids, tokens, self.models)
        weights = self.weights(batch)
        if TASK not in self.factors:
            found = {}
        return found | {name: (total, weights[name]) for name, total in sums.items()}, metrics

    def _forward(self, objective, heads, params, batch, rngs, names):
        if heads:
            return objective.forward(params, batch, rngs, names)
        inputs = (_rows(batch[name]) for name in INPUTS)
        options = {"deterministic": rngs is None, "rngs": rngs}
        encoder = Encoder(objective.config)
        states = collected.apply(
            encoder, objective.config, params["encoder"], *inputs, collect=names, **options
        )[1]
        return None, states

    def _compare_logits(self, student, teacher, batch):
        """Returns the divergence of the teacher's predictions from the student's, a mean over softmaxes."""
        weights = self.student.soft_weights(batch)[0]
        both = zip(self.student.soft_logits(student), self.teacher.soft_logits(teacher), strict=True)
        found = [losses.divergence(mine, theirs, weights, self.temperature) for mine, theirs in both]
        return sum(found) / len(found)

    def computed(self, left_to_right: bool = False) -> Sequence[Computed]:
        """Returns the student, and the teacher without a backward pass."""
        predicted = Predicted.EVERY if self.predicts_everywhere else Predicted.MASKED
        return (
            Computed(self.student, predicted if self.uses_heads else Predicted.NONE),
            Computed(self.teacher, predicted if LOGITS in self.factors else Predicted.NONE, is_trained=False),
        )

    def predict(self, params: Params, batch: Batch) -> jax.Array:
        """Returns the student's outputs."""
        return self.student.predict(params["student"], batch)


def _rows(x: jax.Array) -> jax.Array:
    """Returns int32 [rows, L] of inputs [..., L]."""
    return x.reshape(-1, x.shape[-1])
