"""Grades of texts."""

from bert_jax import tasks


def get_config(size: str = "base"):
    return tasks.default_config(size or "base", "ordinal")
