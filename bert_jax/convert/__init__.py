"""Reads and writes models, with a registry of formats, a record per model family, and a table of heads."""

from etils import epy

with epy.lazy_api_imports(globals()):
    from bert_jax.convert.heads import HEADS
    from bert_jax.convert.loading import (
        adopt_architecture,
        commit_of_hub,
        describe_architecture,
        detect,
        load,
        load_architecture,
        load_params,
        load_sentence,
        local_path,
    )
    from bert_jax.convert.model import Model

__all__ = [
    "HEADS",
    "Model",
    "adopt_architecture",
    "commit_of_hub",
    "describe_architecture",
    "detect",
    "load",
    "load_architecture",
    "load_params",
    "load_sentence",
    "local_path",
]
