import re

import jax
import numpy as np
import pytest
from support import numpy_lstm
from support.models import packed_batch, tiny_config
from support.numpy_lstm import drawn

from bert_jax.models import ClassificationModel
from bert_jax.models.heads.lstm import Lstm
from bert_jax.models.heads.structures import SEQUENCE, SPANS, TOKENS
from bert_jax.models.row_inputs import INPUTS, packed_inputs
from bert_jax.parallel.sharding import unbox

CONFIG = tiny_config(hidden_size=8, num_attention_heads=2, intermediate_size=16)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
def test_each_segment_is_read_by_itself(reverse):
    """Segments do not affect each other, also with masked tokens and at the ends of the row."""
    x = np.random.default_rng(1).normal(size=(1, 12, 3)).astype(np.float32)
    segments = np.array([[3, 3, 3, 3, 5, 5, 5, 5, 5, 6, 0, 0]])
    mask = np.array([[0, 1, 1, 1, 1, 1, 0, 1, 0, 1, 0, 0]], bool)
    module = Lstm(CONFIG, features=4, reverse=reverse)
    variables = drawn(module, x, mask)
    found = module.apply(variables, x, mask, segments)
    for number in (3, 5, 6, 0):
        if not number:  # without segments, the row is one segment
            found, segments = module.apply(variables, x, mask), 0 * segments
        places = np.flatnonzero((segments[0] == number) & mask[0])
        expected = numpy_lstm.lstm(variables["params"], x[0, places], reverse)
        np.testing.assert_allclose(found[0, places], expected, atol=1e-5)


@pytest.mark.long
def test_initialization_factorizes_no_batch_of_matrices():
    """Matrices are factorized one by one: two batches at once deadlock on two CPU cores (jaxlib 0.10)."""
    x = np.zeros((1, 2, 3), np.float32)
    module = Lstm(CONFIG, features=7)
    text = jax.jit(module.init).lower(jax.random.key(0), x, x[..., 0] > 0).as_text()
    factorized = [line for line in text.splitlines() if "geqrf" in line]
    assert factorized and not any(re.search(r"tensor<\d+x\d+x\d+xf32", line) for line in factorized)
    recurrent = unbox(module.init(jax.random.key(0), x, x[..., 0] > 0))["params"]["recurrent"]
    for matrix in recurrent:
        np.testing.assert_allclose(matrix @ matrix.T, np.eye(7), atol=1e-5)
    assert np.abs(recurrent[0] - recurrent[1]).max() > 0.1


def inputs_of(batch):
    rows = packed_inputs(batch) | {"input_ids": batch["input_ids"]}
    return [rows[name] for name in INPUTS], rows


@pytest.mark.long
@pytest.mark.parametrize("head", [SEQUENCE, TOKENS, SPANS], ids=["sequences", "tokens", "spans"])
def test_a_head_reads_the_states_of_a_bilstm(head):
    """The head equals a computation by hand from the encoder states of each sequence of packed rows."""
    model = ClassificationModel(CONFIG, 2, head.with_lstm(3))
    batch = packed_batch(rows=3, length=24)
    inputs, rows = inputs_of(batch)
    variables = drawn(model, *inputs, scale=0.3)
    params = variables["params"]
    assert (
        sorted(params)
        == sorted(["encoder", "lstm", head.name])
        == sorted(["encoder", *model.head.new_groups])
    )
    pooled = {"cls_positions": rows["cls_positions"]} if head is SEQUENCE else {}
    found = model.apply(variables, *inputs, **pooled)
    states = np.asarray(model.apply(variables, *inputs, method=lambda model, *rows: model.encoder(*rows)))
    kernel, bias = (np.asarray(params[head.name][name]) for name in ("kernel", "bias"))
    compared = 0
    for row, slot in zip(*np.nonzero(batch["first_lengths"]), strict=True):
        places = np.flatnonzero(rows["sequence_ids"][row] == slot + 1)
        expected = numpy_lstm.bilstm(params["lstm"], states[row, places])
        if head is SEQUENCE:
            expected, mine = expected.max(axis=0), found[row, slot]
        else:
            mine = found[row, places]
        np.testing.assert_allclose(mine, expected @ kernel + bias, atol=1e-5)
        compared += 1
    assert compared > 3
    if head is SEQUENCE:
        assert np.all(np.isfinite(found))  # unused positions too
