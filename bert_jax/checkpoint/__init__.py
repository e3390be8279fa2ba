"""Checkpoints: save in the background, verify on restore, fall back, load weights from elsewhere.

The only importer of orbax. A step is one orbax directory `checkpoints/STEP/`, written beside its place and
renamed when complete. Orbax restores an array file with a flipped bit without an error, so every step carries
two kinds of digests, which become visible with it:

- `files.json`, of the bytes of every file, computed in the background once they are written. It is checked
  before orbax reads anything: it names the file, and a torn one never gets as far as TensorStore.
- one for each leaf, in the step's metadata with its shape and dtype, computed on the devices from the values
  that are saved and again from those restored. It does not depend on how a leaf is split over devices or
  hosts, so nothing is gathered, and a step saved on one mesh is verified on any other.
"""

from bert_jax.checkpoint.leaves import Leaf, Report, sizes
from bert_jax.checkpoint.reading import describe, load_frozen, load_params, load_state, read_params, verify
from bert_jax.checkpoint.saving import Checkpointer

__all__ = [
    "Checkpointer",
    "Leaf",
    "Report",
    "describe",
    "load_frozen",
    "load_params",
    "load_state",
    "read_params",
    "sizes",
    "verify",
]
