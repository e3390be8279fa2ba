"""The results of an experiment so far."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from bert_jax.io import files, json_files

FILE = "results.json"

_RESULT = {"arm": str, "seed": int, "measure": str, "scores": {str: float}}


class Results:
    """The results of an experiment so far, stored in results.json.

    Args:
        directory: the directory of the experiment.
    """

    def __init__(self, directory: str):
        self._path = os.path.join(directory, FILE)
        stored = json_files.read(self._path, [_RESULT]) if files.exists(self._path) else []
        self.rows: list[dict[str, Any]] = stored

    def get(self, arm: str, seed: int, measure: str) -> dict[str, float] | None:
        """Returns the scores of a measure, or None if there are none yet."""
        wanted = (arm, seed, measure)
        for row in self.rows:
            if (row["arm"], row["seed"], row["measure"]) == wanted:
                return row["scores"]
        return None

    def has(self, arm: str, measure: str) -> bool:
        """Returns whether there are scores of a measure with any seed."""
        return any((row["arm"], row["measure"]) == (arm, measure) for row in self.rows)

    def add(self, arm: str, seed: int, measure: str, scores: Mapping[str, float]) -> None:
        """Adds the scores of a measure, and writes the file."""
        self.rows.append({"arm": arm, "seed": seed, "measure": measure, "scores": dict(scores)})
        json_files.write(self._path, self.rows)

    def over_seeds(self, arm: str, measure: str) -> dict[str, list[float]]:
        """Returns the values of each metric of a measure, in the order of the seeds."""
        found: dict[str, list[float]] = {}
        for row in sorted(self.rows, key=lambda row: row["seed"]):
            if (row["arm"], row["measure"]) == (arm, measure):
                for name, value in row["scores"].items():
                    found.setdefault(name, []).append(value)
        return found
