"""Knowledge distillation: a model, the student, also imitates a frozen teacher (Hinton et al. 2015).

`Distillation` wraps an objective with logits. The teacher reads the same prepared batch, with the same masks,
and has no dropout. The losses compare logits and the states in `STATES`: `cosine` is from DistilBERT (Sanh et
al. 2019); `embeddings`, `hidden` and `scores` are from TinyBERT (Jiao et al. 2020, section 3.1); `attention`
and `values` are from MiniLM (Wang et al. 2020, section 3).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.errors import UserError
from bert_jax.io import comma_lists
from bert_jax.kernels.xla_attention import attention_logits
from bert_jax.models import Encoder, intermediates
from bert_jax.models.config import EncoderConfig
from bert_jax.models.layers import kernel_init
from bert_jax.models.parameters import is_box
from bert_jax.models.row_inputs import INPUTS
from bert_jax.objectives.base import Batch, Objective, Pairs, Params, Rngs
from bert_jax.objectives.masked_lm import MaskedLM, at_every_token
from bert_jax.objectives.rows import RowObjective

DISTILLATION = "distillation"  # the group of parameters that only distillation uses
TEACHER = "teacher"  # the name of the teacher's parameters in the tree of frozen parameters
TASK, LOGITS = "task", "logits"  # the names for the student's own losses and for the comparison of logits

DistillableObjective: TypeAlias = MaskedLM | RowObjective

_COSINE_EPSILON = 1e-12  # added to each squared norm, as in torch.nn.CosineEmbeddingLoss


# Distances, as sums over weighted rows


def divergence(
    logits: jax.Array, targets: jax.Array, weights: jax.Array, temperature: float = 1.0
) -> jax.Array:
    """Returns the sum of weight x T^2 KL(softmax(targets / T) || softmax(logits / T)), in nats.

    The factor T^2 keeps the gradient's size independent of the temperature T > 0 (Hinton et al. 2015, section
    2). The logits of the student and `targets`, the logits of the teacher, are float [..., C] and converted
    to float32; targets get no gradient. The weights are float32, broadcast to [...].
    """
    logits, targets = (x.astype(jnp.float32) / temperature for x in (logits, targets))
    return temperature**2 * jnp.sum(_divergence(logits, targets) * weights)


@jax.custom_vjp
def _divergence(logits, targets):
    return _divergence_fwd(logits, targets)[0]


def _divergence_fwd(logits, targets):
    log_sum, log_sum_of_targets = (jax.nn.logsumexp(x, axis=-1, keepdims=True) for x in (logits, targets))
    expected = jnp.sum(jnp.exp(targets - log_sum_of_targets) * (targets - logits), axis=-1)
    divergence = expected + (log_sum - log_sum_of_targets)[..., 0]
    return divergence, (logits, targets, log_sum, log_sum_of_targets)


def _divergence_bwd(residuals, g):
    # This is one pass over both logits; autodiff would also keep their probabilities.
    logits, targets, log_sum, log_sum_of_targets = residuals
    return (jnp.exp(logits - log_sum) - jnp.exp(targets - log_sum_of_targets)) * g[..., None], None


_divergence.defvjp(_divergence_fwd, _divergence_bwd)


def cosine_distance(states: jax.Array, targets: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns the sum of weight x (1 - cosine) of states [..., H], with weights [...]."""
    x, y = (each.astype(jnp.float32) for each in (states, targets))
    squares, squares_of_targets = (jnp.sum(jnp.square(each), axis=-1) + _COSINE_EPSILON for each in (x, y))
    cosine = jnp.sum(x * y, axis=-1) * jax.lax.rsqrt(squares * squares_of_targets)
    return jnp.sum((1 - cosine) * weights)


def squared_distance(states: jax.Array, targets: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns the sum of weight x mean squared difference of states [..., H], with weights [...]."""
    difference = states.astype(jnp.float32) - targets.astype(jnp.float32)
    return jnp.sum(jnp.mean(jnp.square(difference), axis=-1) * weights)


# Comparisons of states

# The states (see `models.intermediates`) that each comparison reads.
STATES: Mapping[str, tuple[str, ...]] = {
    "cosine": (intermediates.LAST,),
    "embeddings": (intermediates.EMBEDDINGS,),
    "hidden": (intermediates.LAYERS,),
    "scores": (intermediates.QUERIES, intermediates.KEYS),
    "attention": (intermediates.QUERIES, intermediates.KEYS),
    "values": (intermediates.VALUES,),
}
LAYERED = ("hidden", "scores")  # these compare each layer of the student with a layer of the teacher
_PROJECTED = ("embeddings", "hidden")  # these apply a learned projection if the widths differ


def compare_states(
    name: str,
    student: intermediates.States,
    teacher: intermediates.States,
    sequence_ids: jax.Array,
    layers: Sequence[int],
) -> jax.Array:
    """Returns the sum of a comparison of states over all real tokens, or over pairs of tokens for `scores`.

    `name` is a key of `STATES`, and `sequence_ids` are int32 [B, L], 0 at padding. `layers` are the teacher's
    layers for each layer of the student.
    """
    tokens = (sequence_ids > 0).astype(jnp.float32)
    mine, theirs = ([side[each] for each in STATES[name]] for side in (student, teacher))
    if name == "cosine":
        return cosine_distance(mine[0][0], theirs[0][0], tokens)
    if name == "embeddings":
        return squared_distance(mine[0][0], theirs[0][0], tokens)
    if name == "hidden":
        pairs = zip(mine[0], layers, strict=True)
        return sum((squared_distance(x, theirs[0][layer], tokens) for x, layer in pairs), jnp.float32(0))
    if name == "scores":
        total = jnp.float32(0)
        for query, key, layer in zip(*mine, layers, strict=True):
            logits = attention_logits(query, key, sequence_ids)
            targets = attention_logits(theirs[0][layer], theirs[1][layer], sequence_ids)
            # Logits between different sequences are the same constant for student and teacher.
            squares = jnp.sum(jnp.square(logits - targets), axis=-1)
            total += jnp.sum(jnp.mean(squares, axis=1) * tokens)
        return total
    # The divergence of the attention distributions of the last layers, averaged over heads (MiniLM,
    # equations 4 and 6). "values" uses the scaled products of values with values instead.
    logits, targets = (attention_logits(side[0][-1], side[-1][-1], sequence_ids) for side in (mine, theirs))
    return divergence(logits, targets, tokens[:, None]) / logits.shape[1]


def teacher_layers(few: int, many: int, numbers: Sequence[int]) -> Sequence[int]:
    """Returns the teacher's layer, from 0, for each student layer: every n-th layer, or `numbers`."""
    return numbers or tuple((i + 1) * many // few - 1 for i in range(few))


def parse_scales(text: str) -> dict[str, float]:
    """Returns the scale of each loss in a text like `logits=5, task=2, cosine=1`.

    It raises UserError if the text has another form or an unknown name, or no comparison with the teacher.
    """
    known, pairs = (TASK, LOGITS, *STATES), [part.partition("=") for part in comma_lists.names(text)]
    scales: dict[str, float] = {}
    with contextlib.suppress(ValueError):
        scales = {name.strip(): float(value) for name, _, value in pairs}
    valid = len(scales) == len(pairs) and all(0 < scale < float("inf") for scale in scales.values())
    if not valid or scales.keys() - set(known) or not scales.keys() - {TASK}:
        raise UserError(
            f"distillation.losses={text!r}: expected NAME=SCALE of {', '.join(known)}, such as "
            "logits=5,task=2, with scales above 0, and not task alone"
        )
    return scales


def parse_layers(text: str, field: str = "layers") -> tuple[int, ...]:
    """Returns the numbers in the value of a field like `2,5,8,11`; raises UserError for other values."""
    try:
        return tuple(int(part) for part in comma_lists.names(text))
    except ValueError:
        raise UserError(
            f"distillation.{field}={text!r}: expected numbers of layers from 0, such as 2,5,8"
        ) from None


def check(
    names: Sequence[str], student: EncoderConfig, teacher: EncoderConfig, layers: Sequence[int]
) -> None:
    """Raises UserError if some states of these models cannot be compared."""
    both = student, teacher
    few, many = (config.num_hidden_layers for config in both)
    valid = len(layers) == few and all(0 <= layer < many for layer in layers)
    for name in names:
        field = "hidden_size" if name == "cosine" else "num_attention_heads"
        heads = name in ("scores", "attention", "values")
        problem = ""
        if (heads or name == "cosine") and getattr(student, field) != getattr(teacher, field):
            problem = f"student and teacher must have the same {field}"
        elif name in LAYERED and not (valid if layers else many % few == 0):
            problem = (
                f"set distillation.layers to {few} numbers from 0 to {many - 1}, the teacher's layer for "
                "each layer of the student"
            )
        elif intermediates.KEYS in STATES[name] and any(
            config.causal or config.local_window or config.position in ("alibi", "disentangled")
            for config in both
        ):
            problem = "causal, local, disentangled and ALiBi attention is not supported"
        if problem:
            raise UserError(f"distillation.losses: {name}: {problem}")


@dataclasses.dataclass(frozen=True, eq=False)
class Distillation(Objective):
    """Trains a student on its own losses and on comparisons with its teacher.

    If neither its own losses nor its logits have a factor, the student is an encoder without a head. Masked
    LM logits are compared at all tokens.
    """

    student: DistillableObjective
    teacher: DistillableObjective  # the same objective with the teacher's configuration and head
    factors: Mapping[str, float]  # of `TASK` (the student's own losses), `LOGITS`, and names in `STATES`
    temperature: float = 2.0  # for the comparison of logits
    layer_numbers: tuple[int, ...] = ()  # see `teacher_layers`
    teacher_params: Params | None = None  # None if only their shapes are known

    @property
    def config(self) -> EncoderConfig:
        return self.student.config

    @property
    def scales(self) -> Mapping[str, float]:
        scales = {name: factor for name, factor in self.factors.items() if name != TASK}
        if TASK in self.factors:
            own = self.student.scales
            scales |= {name: self.factors[TASK] * own.get(name, 1) for name in self.student.loss_names}
        return scales

    @property
    def uses_heads(self) -> bool:
        """Returns whether the student has a head, because a loss uses its outputs."""
        return bool({TASK, LOGITS} & self.factors.keys())

    @property
    def predicts_everywhere(self) -> bool:
        """Returns whether both models predict at every token."""
        return LOGITS in self.factors and isinstance(self.student, MaskedLM)

    @property
    def _compared(self) -> list[str]:
        return [name for name in self.factors if name in STATES]

    def init(self, key: jax.Array) -> Params:
        """Returns new parameters of the student, and of the projections of its states to the teacher's."""
        sizes = self.student.config.hidden_size, self.teacher.config.hidden_size
        init = kernel_init(self.student.config.initializer_range)
        maps = {
            name: {
                "kernel": nn.LogicallyPartitioned(init(jax.random.fold_in(key, i), sizes), ("embed", None))
            }
            for i, name in enumerate(self._compared)
            if name in _PROJECTED and sizes[0] != sizes[1]
        }
        return self.init_model(key) | ({DISTILLATION: maps} if maps else {})

    def init_model(self, key: jax.Array) -> Params:
        return _used(self.student.init(key), self.uses_heads)

    @functools.cached_property
    def teacher_shapes(self) -> Params:
        """Returns the shapes of the teacher's parameters that are used, boxed as in `init`."""
        return _used(self.teacher.init_shapes, LOGITS in self.factors)

    def frozen(self) -> Params:
        params = self.teacher_shapes
        if self.teacher_params is not None:
            params = jax.tree.map(
                lambda box, x: box.replace_boxed(x), params, self.teacher_params, is_leaf=is_box
            )
        return {TEACHER: params}

    def join(self, params: Params, frozen: Params | None) -> Params:
        assert frozen is not None
        return {"student": params, TEACHER: frozen[TEACHER]}

    def prepare(self, batch: Batch, key: jax.Array, train: bool) -> Batch:
        prepared = self.student.prepare(batch, key, train)
        return at_every_token(prepared) if self.predicts_everywhere else prepared

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        weights = dict(self.student.weights(batch)) if TASK in self.factors else {}
        if LOGITS in self.factors:
            weights[LOGITS] = self.student.soft_weights(batch)[1]
        ids = _rows(batch["sequence_ids"])
        for name in self._compared:
            real = ids > 0
            if name == "scores":  # counts pairs of tokens
                real = (ids[:, :, None] == ids[:, None]) & real[:, None]
            weights[name] = jnp.sum(real).astype(jnp.float32)
        return weights

    def loss(self, params: Params, batch: Batch, rngs: Rngs | None) -> tuple[Pairs, Pairs]:
        names = list(dict.fromkeys(state for name in self._compared for state in STATES[name]))
        student, states = _forward(self.student, self.uses_heads, params["student"], batch, rngs, names)
        teacher, targets = _forward(self.teacher, LOGITS in self.factors, params[TEACHER], batch, None, names)
        # Two losses read these logits, and their gradients can be added only if the dtypes are equal.
        student = jax.tree.map(lambda x: x.astype(jnp.float32), student)
        own, metrics = self.student.losses_of(student, batch) if self.uses_heads else ({}, {})
        sums: dict[str, jax.Array] = {}
        if LOGITS in self.factors:
            sums[LOGITS] = self._compare_logits(student, teacher, batch)
        ids = _rows(batch["sequence_ids"])
        few, many = (each.config.num_hidden_layers for each in (self.student, self.teacher))
        layers = teacher_layers(few, many, self.layer_numbers)
        for name in self._compared:
            mine = states
            if projection := params["student"].get(DISTILLATION, {}).get(name):
                kernel = projection["kernel"]
                mine = {each: [x @ kernel.astype(x.dtype) for x in states[each]] for each in STATES[name]}
            sums[name] = compare_states(name, mine, targets, ids, layers)
        weights = self.weights(batch)
        own = own if TASK in self.factors else {}
        return own | {name: (total, weights[name]) for name, total in sums.items()}, metrics

    def _compare_logits(self, student, teacher, batch):
        """Returns KL(teacher || student) of the predictions, averaged over softmaxes."""
        weights = self.student.soft_weights(batch)[0]
        both = zip(self.student.soft_logits(student), self.teacher.soft_logits(teacher), strict=True)
        sums = [divergence(mine, theirs, weights, self.temperature) for mine, theirs in both]
        return sum(sums) / len(sums)

    def predict(self, params: Params, batch: Batch) -> jax.Array:
        return self.student.predict(params["student"], batch)


def _used(params: Params, heads: bool) -> Params:
    return params if heads else {"encoder": params["encoder"]}


def _forward(objective: DistillableObjective, heads, params, batch, rngs, names) -> tuple[Any, Any]:
    """Returns the logits (None without a head) and the states with these names."""
    if heads:
        return objective.forward(params, batch, rngs, names)
    inputs = (_rows(batch[name]) for name in INPUTS)
    options = {"deterministic": rngs is None, "rngs": rngs}
    encoder, config = Encoder(objective.config), objective.config
    return None, intermediates.apply(encoder, config, params["encoder"], *inputs, collect=names, **options)[1]


def _rows(x: jax.Array) -> jax.Array:
    """Returns int32 [rows, L] of inputs [..., L]."""
    return x.reshape(-1, x.shape[-1])
