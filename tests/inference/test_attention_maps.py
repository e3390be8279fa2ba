import jax
import numpy as np
import pytest
from support.embeddings import by_hand, tiny_model

from bert_jax.errors import UserError
from bert_jax.inference.attention_maps import attention_maps
from bert_jax.kernels import attention, xla_attention


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("texts", [("the cat is big",), ("the cat", "is $ 5 .")], ids=["text", "pair"])
def test_maps_are_those_of_a_model_by_hand(model, texts):
    maps = attention_maps(model, *texts)
    assert maps.weights.shape == (3, 4, len(maps.tokens), len(maps.tokens))
    np.testing.assert_allclose(maps.weights, by_hand(model, *texts)[1], atol=2e-5)
    if len(texts) == 1:
        assert maps.tokens == ["[CLS]", "the", "cat", "is", "big", "[SEP]"] and maps.first_length == 6
    else:
        assert maps.tokens == ["[CLS]", "the", "cat", "[SEP]", "is", "$", "5", ".", "[SEP]"]
        assert maps.first_length == 4


@pytest.mark.parametrize("causal", [False, True])
def test_probabilities_times_values_are_the_context(causal):
    query, key, value = (jax.random.normal(jax.random.key(i), (2, 12, 3, 4)) for i in range(3))
    ids = np.array([[1] * 5 + [2] * 4 + [0] * 3, [1] * 12])
    weights = xla_attention.probabilities(query, key, ids, causal)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    context = attention.attention(query, key, value, ids, implementation="xla", causal=causal)
    np.testing.assert_allclose(np.einsum("bnqk,bknd->bqnd", weights, value), context, atol=1e-6)


def test_a_mask_may_be_spelled_out(model):
    assert attention_maps(model, "the [MASK] is big").tokens[2] == "[MASK]"


def test_a_text_that_is_too_long(model):
    with pytest.raises(UserError, match="more tokens than the 40 positions"):
        attention_maps(model, "cat " * 50)


def test_layers_that_are_not_berts_are_refused(model):
    table = "encoder/embeddings/position_embeddings"
    without_positions = {name: x for name, x in model.params.items() if name != table}
    assert len(without_positions) == len(model.params) - 1
    for params, fields, message in (
        (without_positions, dict(position="alibi"), "position=alibi"),
        (model.params, dict(norm_placement="pre"), "norm_placement=pre"),
    ):
        other = model.replace(params=params, config=model.config.replace(**fields))
        with pytest.raises(UserError, match=message):
            attention_maps(other, "the cat")
