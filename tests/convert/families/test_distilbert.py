"""DistilBERT's family record: head dropout rates and unsupported settings; see also test_goldens.py."""

import pathlib

from bert_jax import convert
from bert_jax.convert.families import distilbert

FOLDER = pathlib.Path(__file__).parents[2] / "testdata" / "distilbert"
FAMILY = distilbert.FAMILY


def test_the_dropout_of_the_heads_is_that_of_the_file():
    model = convert.load(FOLDER / "question_answering")
    assert model.config.classifier_dropout == 0.2
    fields = FAMILY.write_config(model.config.replace(classifier_dropout=0.5), "none")
    assert fields["seq_classif_dropout"] == 0.5
    config = FAMILY.read_config(fields)
    rates = {head: one.drop_out.of(config) for head, one in FAMILY.classifiers.items()}
    assert rates == {
        "sequence_classification": 0.5,
        "token_classification": config.hidden_dropout_prob,
        "multiple_choice": 0.5,
        "question_answering": 0.1,
    }
    plain = FAMILY.read_config({name: x for name, x in fields.items() if not name.endswith("_dropout")})
    assert FAMILY.classifiers["question_answering"].drop_out.of(plain) == 0.1
    assert FAMILY.classifiers["sequence_classification"].drop_out.of(plain) == 0.2
