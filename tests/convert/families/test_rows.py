"""A new model has rows and text of its family: one rule for vocabularies and for records."""

import contextlib

import pytest

from bert_jax import tokenization
from bert_jax.convert import families
from bert_jax.errors import UserError
from bert_jax.models.config import EncoderConfig
from bert_jax.tokenization import templates

BERT = EncoderConfig(vocab_size=30)
ROBERTA = BERT.replace(model_type="roberta", type_vocab_size=1)
MODERNBERT = BERT.replace(model_type="modernbert", type_vocab_size=0)


@pytest.fixture
def wordpiece(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    return str(path)


@pytest.mark.parametrize(
    ("template", "config", "is_error"),
    [
        (templates.BERT, BERT, False),
        (templates.ROBERTA, BERT, True),
        (templates.ROBERTA, MODERNBERT, True),
        (templates.BERT, MODERNBERT, False),  # the model has no token types
    ],
)
def test_rows_of_records(wordpiece, template, config, is_error):
    tokenizer = tokenization.load(wordpiece, template=template)
    with pytest.raises(UserError, match="x has the row template") if is_error else contextlib.nullcontext():
        families.check_rows(tokenizer, config, "x")


@pytest.mark.parametrize(
    ("config", "template"),
    [(BERT, templates.BERT), (ROBERTA, templates.ROBERTA), (MODERNBERT, templates.MODERNBERT)],
)
def test_a_vocabulary_without_rows_gets_those_of_the_family(wordpiece, config, template):
    assert families.load_tokenizer(wordpiece, config).template == template
