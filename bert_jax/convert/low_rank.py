"""Defines what a run with low-rank updates (LoRA) trains, without the base that it belongs to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bert_jax.objectives.adapters import assemble, low_rank_name, low_rank_updates


class Update(NamedTuple):
    """The update scale * a b of one kernel, float32; shapes as in `adapters.add_low_rank`."""

    a: np.ndarray
    b: np.ndarray
    scale: float

    @property
    def rank(self) -> int:
        """The rank of the product."""
        return self.a.shape[-1]


@dataclasses.dataclass(frozen=True)
class LowRankAdapter:
    """What a run with low-rank updates has trained.

    Attributes:
        base: the checkpoint that the updates belong to.
        updates: {name of a kernel: its update}.
        params: the parameters that are trained as a whole, such as the head's.
        frozen: the parameters of the base that stay whole, without the updates.
    """

    base: str
    updates: Mapping[str, Update]
    params: Mapping[str, np.ndarray]
    frozen: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_stored(cls, base: str, trained: Mapping[str, np.ndarray], frozen: Mapping[str, np.ndarray]):
        """Returns the adapter of the stored parameters of a run; None if it has no low-rank updates."""
        stored = {**frozen, **trained}
        updates = {
            name: Update(stored[names["a"]], stored[names["b"]], float(stored[names["scale"]]))
            for name, names in low_rank_updates(stored).items()
        }
        whole, of_base = (
            {name: x for name, x in some.items() if not low_rank_updates([name])}
            for some in (trained, frozen)
        )
        return cls(base, updates, whole, of_base) if updates else None

    @property
    def stored(self) -> dict[str, np.ndarray]:
        """The updates and the other trained parameters by the names that `adapters.assemble` knows."""
        stored = dict(self.params)
        for name, update in self.updates.items():
            factors = zip(("a", "b", "scale"), update, strict=True)
            stored |= {low_rank_name(name, factor): np.asarray(x, np.float32) for factor, x in factors}
        return stored

    def merged(self, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the parameters of a base with the updates added and the others replaced."""
        return assemble({**params, **self.stored})
