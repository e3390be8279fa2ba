"""Saves checkpoints in the background, verifies them on restore, and loads weights from other runs.

This is the only package that imports orbax. A step is one orbax directory `checkpoints/STEP/`. Orbax restores
an array file with a flipped bit without an error, so the step's metadata holds a checksum of every leaf, next
to its shape and dtype. It is computed on the devices from the values that are saved, and again from those
that are restored. It does not depend on how a leaf is sharded.
"""

from bert_jax.checkpoint.leaves import Leaf, Report, select_params
from bert_jax.checkpoint.reading import (
    is_step,
    list_steps,
    load_params,
    load_state,
    parameter_names,
    read_stored,
    verify,
)
from bert_jax.checkpoint.saving import Checkpointer

__all__ = [
    "Checkpointer",
    "Leaf",
    "Report",
    "is_step",
    "list_steps",
    "load_params",
    "load_state",
    "parameter_names",
    "read_stored",
    "select_params",
    "verify",
]
