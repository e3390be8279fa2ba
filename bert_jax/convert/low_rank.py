"""Defines what a run with low-rank updates (LoRA) trains, without the base that it belongs to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bert_jax.objectives.adapters import assemble, low_rank_name, low_rank_updates


class Update(NamedTuple):
    """The update scale * a b of one kernel, float32; the shapes are those of `adapters.add_low_rank`."""

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
        base: The checkpoint that the updates belong to.
        updates: {name of a kernel: its update}.
        params: The parameters that are trained as a whole, such as the head's.
    """

    base: str
    updates: Mapping[str, Update]
    params: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, base: str, trained: Mapping[str, np.ndarray], frozen: Mapping[str, np.ndarray]):
        """Returns the adapter of the stored parameters of a run; None if it has no low-rank updates."""
        stored = {**frozen, **trained}
        updates = {
            name: Update(stored[parts["a"]], stored[parts["b"]], float(stored[parts["scale"]]))
            for name, parts in low_rank_updates(stored).items()
        }
        whole = {name: x for name, x in trained.items() if not low_rank_updates([name])}
        return cls(base, updates, whole) if updates else None

    def merged(self, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the parameters of a base with the updates added and the others replaced."""
        stored = {**params, **self.params}
        for name, update in self.updates.items():
            factors = zip(("a", "b", "scale"), update, strict=True)
            stored |= {low_rank_name(name, factor): np.asarray(x) for factor, x in factors}
        return assemble(stored)
