"""Reads and writes the `google` schema: the records of google-research/bert, with static masks."""

from bert_jax.data.google.dataset import KINDS, SCHEMA, GoogleDataset, without_masks
from bert_jax.data.google.foreign import describe, is_record_file, list_files

__all__ = [
    "KINDS",
    "SCHEMA",
    "GoogleDataset",
    "describe",
    "is_record_file",
    "list_files",
    "without_masks",
]
