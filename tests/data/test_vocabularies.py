"""Whether a checkpoint may go on with records: their vocabulary, their text, the form of their rows."""

import pytest

from bert_jax import tokenization
from bert_jax.data import vocabularies
from bert_jax.errors import UserError
from bert_jax.tokenization import templates

UNCASED = {"lower_case": True, "strip_accents": True}


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """A tokenizer of one vocabulary, by its settings."""
    vocabulary = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "é"]) + "\n")

    def of(**settings):
        return tokenization.load(vocabulary, **UNCASED | settings)

    return of


@pytest.mark.parametrize(
    "theirs, ours, said",
    [
        ({}, {"lower_case": False, "strip_accents": False}, "use `bert-jax data --lower_case=true`"),
        ({"lower_case": False, "strip_accents": False}, {}, "`bert-jax data --lower_case=false`"),
        ({}, {"strip_accents": False}, "was trained with text without accents"),
        ({"template": templates.ROBERTA}, {}, "was trained with rows 'cls:0 A:0 sep:0 sep:0 B:0 sep:0'"),
    ],
)
def test_records_of_another_text_are_an_error(theirs, ours, said, load):
    with pytest.raises(UserError) as refused:
        vocabularies.check("init_from", "run", load(**theirs), load(**ours))
    assert said in str(refused.value)


@pytest.mark.parametrize("theirs", [{}, {"strip_accents": False}])
def test_records_of_the_same_text_are_accepted(theirs, load):
    vocabularies.check("init_from", "run", load(**theirs), load())
