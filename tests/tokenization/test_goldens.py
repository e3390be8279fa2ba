"""Token ids of difficult texts, as transformers' BertTokenizer gave them.

They were written by tests/testdata/make_goldens.py.
"""

import json
from pathlib import Path

import pytest

from bert_jax import tokenization

FOLDER = Path(__file__).resolve().parents[1] / "testdata" / "goldens"
GOLDEN = json.loads((FOLDER / "tokens.json").read_text())

DIFFERENT = ["[MASK] of [CLS] and [mask]"]  # special tokens in a text are words like others


@pytest.mark.parametrize("kind", ["uncased", "cased"])
def test_ids(kind):
    tokenizer = tokenization.load(str(FOLDER / "vocab.txt"), lower_case=kind == "uncased")
    found = [list(ids) for ids in tokenizer.encode_batch(GOLDEN["texts"])]
    differing = [
        text
        for text, ours, theirs in zip(GOLDEN["texts"], found, GOLDEN[kind], strict=True)
        if ours != theirs
    ]
    assert differing == DIFFERENT
    known = {text: ids for text, ids in zip(GOLDEN["texts"], found, strict=True) if ids}
    assert len(known) > 25 and any(tokenizer.unk_id not in ids for ids in known.values())
