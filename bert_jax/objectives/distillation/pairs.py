"""The pairs of states of a student and its teacher that can be compared, by name.

`cosine` is DistilBERT's (Sanh et al. 2019), `embeddings`, `hidden` and `scores` are TinyBERT's (Jiao et al.
2020, section 3.1), `attention` and `values` MiniLM's (Wang et al. 2020, section 3), and `queries` and `keys`
those of its second version (Wang et al. 2021).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.errors import UserError
from bert_jax.io import comma_lists
from bert_jax.io.wording import counted
from bert_jax.models import collected
from bert_jax.models.config import EncoderConfig
from bert_jax.objectives.distillation import losses

TASK, LOGITS = "task", "logits"  # the student's own losses, and the comparison of predictions


@dataclasses.dataclass(frozen=True)
class PairOptions:
    """How states are compared.

    Attributes:
        layers: the teacher's layer, from 0, for each layer of the student; empty for every n-th one, up to
            the last.
        relation_layer: the teacher's layer for relations between tokens, from 0; -1 for the last.
        relation_heads: the number of heads of relations between values, between queries and between keys; 0
            for those of attention.
    """

    layers: tuple[int, ...] = ()
    relation_layer: int = -1
    relation_heads: int = 0


@dataclasses.dataclass(frozen=True)
class Models:
    """The architectures of a student and its teacher, with the options of their comparison."""

    student: EncoderConfig
    teacher: EncoderConfig
    options: PairOptions = PairOptions()

    @property
    def layers(self) -> tuple[int, ...]:
        """Returns the teacher's layer for each layer of the student."""
        few, many = self.student.computed_layers, self.teacher.computed_layers
        return self.options.layers or tuple((i + 1) * many // few - 1 for i in range(few))

    @property
    def depths(self) -> str:
        """Returns the numbers of layers, for messages."""
        return (
            f"the student has {counted(self.student.computed_layers, 'layer')} and the teacher "
            f"{self.teacher.computed_layers}"
        )


Side = tuple[collected.States, collected.States]  # of the student and of the teacher
Loss = Callable[[Side, jax.Array, jax.Array, Models], jax.Array]
Refusal = Callable[[Models], str | None]


@dataclasses.dataclass(frozen=True)
class Pair:
    """A comparison of states.

    Attributes:
        states: the names of the states; see `models.collected`.
        loss: function of the states of both models, the sequence ids [B, L], the weight of each token, and
            the models, which returns a sum.
        refusals: return what is wrong with the models in one line, or None.
        counts_pairs: whether the sum is divided by the number of pairs of tokens of a sequence, in place of
            the number of tokens.
        projects: whether the student's states are multiplied by a learned matrix if the teacher is wider or
            narrower.
        layers: whether the teacher's layers are those of `PairOptions.layers`.
        relations: whether the teacher's layer is `PairOptions.relation_layer`.
        divides_heads: whether heads are those of `PairOptions.relation_heads`.
    """

    states: tuple[str, ...]
    loss: Loss
    refusals: tuple[Refusal, ...] = ()
    counts_pairs: bool = False
    projects: bool = False
    layers: bool = False
    relations: bool = False
    divides_heads: bool = False

    def weight(self, sequence_ids: jax.Array) -> jax.Array:
        """Returns the number of tokens, or of pairs of tokens, that the sum is divided by."""
        real = sequence_ids > 0
        if self.counts_pairs:
            real = (sequence_ids[:, :, None] == sequence_ids[:, None]) & real[:, None]
        return jnp.sum(real).astype(jnp.float32)


def _only(compare: Callable, name: str) -> Loss:
    def loss(sides, ids, tokens, models):
        (student,), (teacher,) = (side[name] for side in sides)
        return compare(student, teacher, tokens)

    return loss


def _layers(sides: Side, name: str, models: Models) -> list[tuple[jax.Array, jax.Array]]:
    student, teacher = (side[name] for side in sides)
    return [(mine, teacher[number]) for mine, number in zip(student, models.layers, strict=True)]


def _hidden(sides, ids, tokens, models):
    pairs = _layers(sides, collected.LAYERS, models)
    return sum(losses.squared_distance(mine, theirs, tokens) for mine, theirs in pairs)


def _scores(sides, ids, tokens, models):
    total = jnp.float32(0)
    queries, keys = (_layers(sides, name, models) for name in (collected.QUERIES, collected.KEYS))
    for query, key in zip(queries, keys, strict=True):
        mine, theirs = (losses.relation_logits(query[i], key[i], ids) for i in range(2))
        # The logits of tokens of two sequences are the same constant on both sides.
        squares = jnp.sum(jnp.square(mine - theirs), axis=-1)
        total += jnp.sum(jnp.mean(squares, axis=1) * tokens)
    return total


def _relation(first: str, second: str, divides_heads: bool = True) -> Loss:
    """Returns the divergence of the distributions over tokens, a mean over heads (MiniLM, equation 4)."""

    def loss(sides, ids, tokens, models):
        heads = models.options.relation_heads if divides_heads else 0
        layers = (-1, models.options.relation_layer)
        mine, theirs = (
            losses.relation_logits(side[first][layer], side[second][layer], ids, heads)
            for side, layer in zip(sides, layers, strict=True)
        )
        return losses.divergence(mine, theirs, tokens[:, None]) / mine.shape[1]

    return loss


def _check_widths(models: Models) -> str | None:
    mine, theirs = models.student.hidden_size, models.teacher.hidden_size
    if mine == theirs:
        return None
    return f"the student's hidden_size is {mine} and the teacher's {theirs}; leave it out, or take hidden"


def _check_layers(models: Models) -> str | None:
    few, many = models.student.computed_layers, models.teacher.computed_layers
    given = models.options.layers
    if not given and many % few:
        return f"{models.depths}; set distillation.layers to one layer of the teacher for each of the student"
    if given and (len(given) != few or not all(0 <= layer < many for layer in given)):
        return (
            f"{models.depths}, and distillation.layers={','.join(map(str, given))}; expected one layer of "
            f"the teacher, 0 to {many - 1}, for each of the student"
        )
    return None


def _check_relation_layer(models: Models) -> str | None:
    many, layer = models.teacher.computed_layers, models.options.relation_layer
    return None if -1 <= layer < many else f"{models.depths}; relation_layer={layer} is none of them"


def _check_heads(models: Models) -> str | None:
    mine, theirs = models.student.num_attention_heads, models.teacher.num_attention_heads
    heads = counted(mine, "attention head")
    return None if mine == theirs else f"the student has {heads} and the teacher {theirs}"


def _check_divided_heads(models: Models) -> str | None:
    heads = models.options.relation_heads
    if not heads:
        problem = _check_heads(models)
        return problem and f"{problem}; set distillation.relation_heads, such as 12"
    for who, config in (("student", models.student), ("teacher", models.teacher)):
        if config.hidden_size % heads:
            return f"the {who}'s hidden_size={config.hidden_size} is no multiple of relation_heads={heads}"
    return None


def _check_attention(models: Models) -> str | None:
    for who, config in (("student", models.student), ("teacher", models.teacher)):
        if config.causal or config.local_window or config.position == "alibi":
            return f"the attention of the {who} is causal, local or has a bias (ALiBi), which is not compared"
    return None


_RELATIONS: Any = {
    "relations": True,
    "divides_heads": True,
    "refusals": (_check_relation_layer, _check_divided_heads),
}

PAIRS: Mapping[str, Pair] = {
    "cosine": Pair((collected.LAST,), _only(losses.cosine_distance, collected.LAST), (_check_widths,)),
    "embeddings": Pair(
        (collected.EMBEDDINGS,), _only(losses.squared_distance, collected.EMBEDDINGS), projects=True
    ),
    "hidden": Pair((collected.LAYERS,), _hidden, (_check_layers,), projects=True, layers=True),
    "scores": Pair(
        (collected.QUERIES, collected.KEYS),
        _scores,
        (_check_layers, _check_heads, _check_attention),
        counts_pairs=True,
        layers=True,
    ),
    "attention": Pair(
        (collected.QUERIES, collected.KEYS),
        _relation(collected.QUERIES, collected.KEYS, divides_heads=False),
        (_check_relation_layer, _check_heads, _check_attention),
        relations=True,
    ),
    **{
        name: Pair((name,), _relation(name, name), **_RELATIONS)
        for name in (collected.QUERIES, collected.KEYS, collected.VALUES)
    },
}


def parse_scales(text: str) -> dict[str, float]:
    """Returns the scale of each pair in a text like `logits=5, task=2, cosine=1`.

    Raises:
        UserError: the text has another form, or there is no such pair.
    """
    known, scales = (TASK, LOGITS, *PAIRS), dict[str, float]()
    for part in comma_lists.names(text, "distillation.losses"):
        name, _, value = (each.strip() for each in part.partition("="))
        try:
            scale = float(value)
        except ValueError:
            scale = -1.0
        if name not in known or name in scales or not 0 < scale < float("inf"):
            raise UserError(
                f"distillation.losses={text!r}: {part!r} is not NAME=SCALE with a scale above 0 and each of "
                f"the names {', '.join(known)} at most once"
            )
        scales[name] = scale
    if not scales.keys() - {TASK}:
        raise UserError(
            f"distillation.losses={text!r} compares nothing with the teacher; add some of "
            f"{', '.join(known[1:])}, such as logits=5"
        )
    return scales


def parse_layers(text: str, field: str = "layers") -> tuple[int, ...]:
    """Returns the numbers in a text like `2,5,8,11`, the value of a field of the configuration.

    Raises:
        UserError: the text has another form.
    """
    try:
        return tuple(int(part) for part in comma_lists.names(text, f"distillation.{field}"))
    except ValueError:
        raise UserError(
            f"distillation.{field}={text!r} is not a list of layers; expected numbers from 0, such as 2,5,8"
        ) from None


def check(names: Sequence[str], models: Models) -> None:
    """Raises UserError if some of the pairs cannot be compared for these models."""
    for name in names:
        for refusal in PAIRS[name].refusals:
            if problem := refusal(models):
                raise UserError(f"distillation.losses: {name}: {problem}")
