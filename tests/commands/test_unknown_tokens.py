"""Texts that the vocabulary does not know get a warning wherever rows are encoded."""

import numpy as np
import pytest
from support.pretrained import vocabulary  # noqa: F401

from bert_jax import tokenization
from bert_jax.tasks.rows.assembly import UnknownTokens


def warnings_of(lines):
    return [line for line in lines if line.startswith("warning") and "[UNK]" in line]


@pytest.mark.parametrize("count, warned", [(6, True), (5, False)])
def test_the_fraction_without_special_tokens(vocabulary, count, warned):  # noqa: F811
    tokenizer, said = tokenization.load(vocabulary), []
    unknown = UnknownTokens(tokenizer, said.append)
    assert str(unknown) == ""
    unknown.add(tokenizer.layout.row(tokenizer.encode_batch(["a"])[0] * (100 - count)))
    unknown.add(np.concatenate([tokenizer.layout.row([tokenizer.unk_id])] * count))
    unknown.add(tokenizer.layout.row([]))
    assert str(unknown) == f"; {count}.0% of the tokens are [UNK]"
    assert len(warnings_of(said)) == len(said) == warned
