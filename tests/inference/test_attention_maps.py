import numpy as np
import pytest
from support.embeddings import of_row, tiny_model

from bert_jax.errors import UserError
from bert_jax.inference.attention_maps import attention_maps

MODERN = dict(position="rotary", norm_placement="pre", local_window=1, global_every=2)


@pytest.mark.parametrize(
    "fields", [{}, MODERN, dict(position="alibi", causal=True)], ids=["bert", "modern", "alibi"]
)
def test_maps_are_those_of_a_model_by_hand(tmp_path, fields):
    model = tiny_model(tmp_path, **fields)
    maps = attention_maps(model, "the cat", "is $ [MASK] .")
    assert maps.tokens == ["[CLS]", "the", "cat", "[SEP]", "is", "$", "[MASK]", ".", "[SEP]"]
    assert maps.first_length == 4 and maps.weights.shape == (3, 4, 9, 9)
    ids = [model.tokenizer.tokens.index(token) for token in maps.tokens]
    np.testing.assert_allclose(maps.weights, of_row(model, ids, [0] * 4 + [1] * 5)[1], atol=2e-5)


def test_a_text_that_is_too_long(tmp_path):
    with pytest.raises(UserError, match="more tokens than the 40 positions"):
        attention_maps(tiny_model(tmp_path), "cat " * 50)
