"""DistilBERT's record: dropout rates of heads, and what is refused; see also test_goldens.py."""

import pathlib

import jax
import numpy as np
import pytest

from bert_jax import convert
from bert_jax.convert.families import distilbert
from bert_jax.errors import UserError
from bert_jax.models.config import EncoderConfig
from bert_jax.models.embeddings import Embeddings

FOLDER = pathlib.Path(__file__).parents[2] / "testdata" / "distilbert"
FAMILY = distilbert.FAMILY


def test_the_dropout_of_the_heads_is_that_of_the_file():
    model = convert.load(FOLDER / "question_answering")
    assert (model.config.classifier_dropout, model.config.qa_dropout) == (0.2, 0.1)
    fields = FAMILY.write_config(model.config.replace(classifier_dropout=0.5, qa_dropout=0.4), "none")
    assert (fields["seq_classif_dropout"], fields["qa_dropout"]) == (0.5, 0.4)
    config = FAMILY.read_config(fields)
    rates = {head: one.drop_out.of(config) for head, one in FAMILY.classifiers.items()}
    assert rates == {
        "sequence_classification": 0.5,
        "token_classification": config.hidden_dropout_prob,
        "multiple_choice": 0.5,
        "question_answering": 0.4,
    }
    plain = FAMILY.read_config({name: x for name, x in fields.items() if not name.endswith("_dropout")})
    assert FAMILY.classifiers["question_answering"].drop_out.of(plain) == 0.1
    assert FAMILY.classifiers["sequence_classification"].drop_out.of(plain) == 0.2


def test_sinusoidal_positions_start_as_in_transformers():
    """The golden model has the table that transformers fills in, and a field that says so."""
    model, other = convert.load(FOLDER / "masked_lm"), convert.load(FOLDER / "none")
    assert model.config.sinusoidal_start and not other.config.sinusoidal_start
    ids = np.zeros((1, 4), np.int32)
    params = Embeddings(model.config).init(jax.random.key(0), ids, ids, ids, True)["params"]
    expected = model.params["encoder/embeddings/position_embeddings"]
    np.testing.assert_allclose(params["position_embeddings"].unbox(), expected, atol=1e-7)
    with pytest.raises(UserError, match="sinusoidal_start needs position=learned, not rotary"):
        EncoderConfig(sinusoidal_start=True, position="rotary")
