"""100,000 random Unicode strings against google-research/bert's algorithm.

The vocabulary has every character but three, as a word and as a continuation, so that no difference in
cleaning, lower-casing, stripping or splitting hides behind [UNK].
"""

import random
import sys
import unicodedata

import pytest
from support import random_text
from support.wordpiece_oracle import tokenize

from bert_jax import tokenization

PARTS, PART = 20, 5_000
# Words with the first two are [UNK] (the tokenizer's docstring says why); the third is in no cleaned text.
LEFT_OUT = {0x166D, 0x111C9, 0xFFFD}


@pytest.fixture(scope="module")
def alphabets():
    return random_text.alphabets()


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##ing"]
    for code_point in range(sys.maxunicode + 1):
        char = chr(code_point)
        if unicodedata.category(char)[0] not in "CZ" and code_point not in LEFT_OUT:
            tokens += [char, "##" + char]
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(tokens) + "\n", encoding="utf-8", newline="")
    return str(path)


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def tokenizer(request, vocabulary):
    return tokenization.load(vocabulary, lower_case=request.param)


@pytest.fixture(scope="module")
def ids(tokenizer):
    return {token: number for number, token in enumerate(tokenizer.tokens)}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_equals_the_algorithm_on_random_unicode(tokenizer, ids, alphabets, part):
    rng, lower_case = random.Random(part), tokenizer.lower_case
    texts = [random_text.text(rng, alphabets) for _ in range(PART)]
    tokens = unknown = 0
    for one, found in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert found == [ids[token] for token in tokenize(one, ids, lower_case, lower_case)], ascii(one)
        tokens, unknown = tokens + len(found), unknown + found.count(tokenizer.unk_id)
    assert tokens > PART and unknown < 0.1 * tokens
