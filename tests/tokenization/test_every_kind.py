"""Of every tokenizer: its time is linear in the length of the text, and its settings restore it."""

import pickle
import random
import unicodedata

import pytest
from support import growth, small_tokenizers

from bert_jax import tokenization
from bert_jax.tokenization import normalization

MARKS = ("\u0301\u0323", "\u0f73\u0f75", "\u302e\U00016ff0", "\uff9e\u0323", "a\u0345\u0301")
FORMS = ("NFC", "NFD", "NFKC", "NFKD")


@pytest.fixture(scope="module")
def vocabulary_files(tmp_path_factory):
    return small_tokenizers.write(tmp_path_factory.mktemp("vocabularies"))


def functions(vocabulary_files, name):
    path, options = vocabulary_files[name]
    tokenizer = tokenization.load(path, **options)
    mask = tokenizer.special_tokens["mask"]
    return (
        lambda text: tokenizer.encode_batch([text]),
        lambda text: tokenizer.encode_batch([text], allow_special=[mask]),
        lambda text: tokenizer.encode_with_offsets([text]),
    )


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


def test_the_normal_form_is_that_of_unicodedata():
    rng = random.Random(0)
    marks = "".join(growth.alphabets()["Mn"]) + "\u0f73\u0f75\u0f81\u0344\uff9e\uff9f\u3099\u309a"
    starters = "ea\u304b\uac00\u1100\u1161\u1e9b\u0f77\ufb1d\U0001d15e "
    for _ in range(100):
        text = "".join(
            rng.choice(starters) + "".join(rng.choices(marks, k=rng.choice((0, 1, 3, 60, 200))))
            for _ in range(4)
        )
        for form in FORMS:
            assert normalization.normalize(form, text) == unicodedata.normalize(form, text)


@pytest.mark.long
@pytest.mark.parametrize("name", small_tokenizers.NAMES)
def test_tokenizers(vocabulary_files, name):
    units = (*growth.SURROGATES, *MARKS)
    texts = [*growth.texts(20_000).values(), *(growth.repeated(unit, 20_000) for unit in units)]
    for function in functions(vocabulary_files, name):
        assert not growth.superlinear(function, texts)


@pytest.mark.parametrize("name", small_tokenizers.NAMES)
def test_settings_and_pickles_restore_it(vocabulary_files, name):
    path, options = vocabulary_files[name]
    tokenizer = tokenization.load(path, **options)
    texts = ["The cats, 1999, sat: ``a'' \u00c9 \ud800", ""]
    copy = pickle.loads(pickle.dumps(tokenizer))
    for again in (copy, tokenization.restore(path, tokenizer.settings())):
        assert again.settings() == tokenizer.settings() and again.tokens == tokenizer.tokens
        assert again.encode_batch(texts) == tokenizer.encode_batch(texts)
