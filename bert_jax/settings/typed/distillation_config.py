"""The part of a configuration that names a teacher, and what is compared with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from etils import epy

from bert_jax.settings import config_fields
from bert_jax.settings.config_fields import Part, option

with epy.lazy_imports():  # It imports jax, which `estimate` has to set up after it has read the config.
    from bert_jax.objectives import distillation


@dataclasses.dataclass(frozen=True)
class DistillationConfig(Part):
    """The teacher of the model that is trained, and how the two are compared."""

    teacher: str = option(
        "",
        "checkpoint of a model that the trained one imitates, of any kind that `init_from` takes; empty for "
        "none; see [distillation](distillation.md)",
    )
    losses: str = option(
        "logits=5, task=2, cosine=1",
        "what is compared, `NAME=SCALE` with commas between: `logits`; `cosine` of the last states; "
        "`embeddings`, `hidden` and attention `scores`, squared differences; `attention`, and the relations "
        "between `values`, between `queries` and between `keys`, divergences in one layer; and `task`, the "
        "loss without a teacher",
    )
    temperature: float = option(
        2.0, "both models' logits are divided by it before they are compared", above=0, maximum=1000
    )
    layers: str = option(
        "",
        "for `hidden` and `scores`: the teacher's layer, from 0, for each layer of the student, such as "
        "`2,5,8,11`; empty: every n-th one up to the last",
    )
    relation_layer: int = option(
        -1,
        "the teacher's layer, from 0, for `attention` and relations; -1: the last",
        minimum=-1,
        maximum=10_000,
    )
    init_layers: str = ""


@dataclasses.dataclass(frozen=True)
class PretrainDistillationConfig(DistillationConfig):
    """Distillation in pre-training; the defaults are DistilBERT's."""

    init_layers: str = option(
        "",
        "the model starts with these layers of the teacher, such as `0,2,4,7,9,11`, and has its widths, "
        "vocabulary and positions; `spread`: as many as `model.num_hidden_layers`, evenly from the first to "
        "the last; empty: as without a teacher",
    )


def unused(config: Any) -> Iterator[tuple[str, str]]:
    """Yields (field, reason) for each field of distillation that has no effect in a run.

    Args:
        config: the configuration of a run, as a config file has it or as a `RunConfig`.
    """
    part = config.distillation
    declared = PretrainDistillationConfig if hasattr(config, "masking") else DistillationConfig
    every = [name for name, _ in config_fields.fields(declared())]
    if not part.teacher:
        for name in every:
            if name != "teacher":
                yield f"distillation.{name}", "there is no teacher, give distillation.teacher=CHECKPOINT"
        return
    names = distillation.parse_scales(part.losses)
    pairs = [distillation.PAIRS[name] for name in names if name in distillation.PAIRS]
    for name, is_used in (
        ("temperature", "logits" in names),
        ("layers", any(pair.layers for pair in pairs)),
        ("relation_layer", any(pair.relations for pair in pairs)),
    ):
        if not is_used and name in every:
            yield f"distillation.{name}", f"distillation.losses={part.losses} does not use it"
    if getattr(part, "init_layers", ""):
        yield "init_from", "the model starts with layers of the teacher"
