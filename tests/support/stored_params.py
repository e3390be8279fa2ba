"""Reads the parameters in a checkpoint."""

from bert_jax import checkpoint
from bert_jax.objectives.adapters import assemble


def stored_params(path):
    """Returns the parameters of the model of a checkpoint, trained and frozen, by name."""
    _, trained, frozen = checkpoint.read_stored(path)
    return assemble(trained | frozen)
