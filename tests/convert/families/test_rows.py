"""A new model has rows and text of its family: one rule for vocabularies and for records."""

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
    ("template", "config", "refused"),
    [
        (templates.BERT, BERT, ""),
        (templates.ROBERTA, BERT, "--template=bert"),
        (templates.ROBERTA, MODERNBERT, "--template=modernbert"),
        (templates.BERT, MODERNBERT, ""),  # the model has no token types
    ],
)
def test_rows_of_records(wordpiece, template, config, refused):
    tokenizer = tokenization.load(wordpiece, template=template)
    if not refused:
        families.check_rows(tokenizer, config, "the records x")
        return
    with pytest.raises(UserError, match=f"records x: the format of rows is .* `bert-jax data {refused}`, or"):
        families.check_rows(tokenizer, config, "the records x")


@pytest.mark.parametrize(
    ("config", "template"),
    [(BERT, templates.BERT), (ROBERTA, templates.ROBERTA), (MODERNBERT, templates.MODERNBERT)],
)
def test_a_vocabulary_without_rows_gets_those_of_the_family(wordpiece, config, template):
    assert families.load_tokenizer(wordpiece, config).template == template
