"""Inputs of encoders: what is no row of tokens is named in one line."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from support.models import tiny_config

from bert_jax.models import Encoder
from bert_jax.models.row_inputs import INPUTS, check_inputs

IDS = np.ones((2, 6), np.int32)


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"input_ids": IDS[0]}, "input_ids is int32 [6]: expected integers [B, L]"),
        ({"input_ids": IDS.tolist()}, "input_ids is list: expected an array of integers [B, L]"),
        ({"input_ids": IDS > 0}, "input_ids is bool [2, 6]: expected integers [B, L]"),
        (
            {"token_type_ids": IDS.astype(np.float32)},
            "token_type_ids is float32 [2, 6]: expected integers [B, L]",
        ),
        (
            {"position_ids": IDS[:, :5]},
            "position_ids is int32 [2, 5]: expected the shape of input_ids, [2, 6]",
        ),
        ({"sequence_ids": IDS[:, None]}, "sequence_ids is int32 [2, 1, 6]: expected integers [B, L]"),
    ],
)
def test_an_input_that_does_not_fit_is_named(changed, message):
    inputs = dict.fromkeys(INPUTS, IDS) | changed
    with pytest.raises(ValueError, match=re.escape(message)):
        jax.eval_shape(lambda key: Encoder(tiny_config()).init(key, **inputs), jax.random.key(0))


def test_inputs_that_fit():
    check_inputs(IDS.astype(np.uint8), None, IDS[:1].astype(np.int64), IDS > 0)
    check_inputs(*[IDS[:0]] * 4)
    rows = jax.ShapeDtypeStruct(export.symbolic_shape("batch, sequence"), jnp.int32)
    found = export.export(jax.jit(lambda *inputs: check_inputs(*inputs) or inputs[0]))(*[rows] * 4)
    assert str(found.out_avals[0].shape) == "(batch, sequence)"
