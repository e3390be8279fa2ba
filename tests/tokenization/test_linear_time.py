"""The time of every tokenizer is linear in the length of the text, whatever its characters."""

import json
import random
import unicodedata

import pytest
import sentencepiece
import tokenizers
from support import growth, vocabularies
from tokenizers import models, pre_tokenizers, trainers

from bert_jax import tokenization
from bert_jax.tokenization import albert_text, byte_bpe_files, normalization, templates

MARKS = ("\u0301\u0323", "\u0f73\u0f75", "\u302e\U00016ff0", "\uff9e\u0323", "a\u0345\u0301")
FORMS = ("NFC", "NFD", "NFKC", "NFKD")


@pytest.fixture(scope="module")
def vocabulary_files(tmp_path_factory):
    """Small vocabularies of each kind, by name, with the options of `tokenization.load`."""
    folder = tmp_path_factory.mktemp("vocabularies")
    (folder / "vocab.txt").write_text(vocabularies.VOCABULARY + "".join(f"{c}\n##{c}\n" for c in "exyz09"))
    rng = random.Random(0)
    lines = [" ".join(rng.choices(vocabularies.WORDS, k=9)) + " 9, 3" for _ in range(300)]
    with (folder / "unigram.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=file, vocab_size=80, hard_vocab_limit=False,
            minloglevel=2, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
            control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        )  # fmt: skip
    rust = tokenizers.Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(byte_bpe_files.characters_of_bytes().values())
    special = byte_bpe_files.ROBERTA_TOKENS
    options = dict(special_tokens=[*special.values()], initial_alphabet=alphabet, show_progress=False)
    rust.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=300, **options))
    model = json.loads(rust.to_str())["model"]
    merges = [" ".join(merge) for merge in model["merges"]]
    content = byte_bpe_files.tokenizer_json(model["vocab"], merges, special, templates.ROBERTA)
    (folder / "plain").mkdir(), (folder / "nfc").mkdir()
    (folder / "plain" / "tokenizer.json").write_bytes(byte_bpe_files.serialized(content))
    content = json.loads(byte_bpe_files.serialized(content)) | {"normalizer": {"type": "NFC"}}
    (folder / "nfc" / "tokenizer.json").write_text(json.dumps(content))
    unigram = str(folder / "unigram.model")
    return {
        "wordpiece": (str(folder / "vocab.txt"), dict(lower_case=True)),
        "wordpiece, cased": (str(folder / "vocab.txt"), dict(lower_case=False)),
        "sentencepiece": (unigram, dict(lower_case=True)),
        "albert": (unigram, dict(lower_case=True, normalizer="albert")),
        "xlm-r": (str(vocabularies.fairseq_model(folder)), {}),
        "bpe": (str(folder / "plain" / "tokenizer.json"), {}),
        "bpe, nfc": (str(folder / "nfc" / "tokenizer.json"), {}),
    }


NAMES = ("wordpiece", "wordpiece, cased", "sentencepiece", "albert", "xlm-r", "bpe", "bpe, nfc")


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
    marks = "".join(growth.alphabets()["combining"]) + "\u0f73\u0f75\u0f81\u0344\uff9e\uff9f\u3099\u309a"
    starters = "ea\u304b\uac00\u1100\u1161\u1e9b\u0f77\ufb1d\U0001d15e "
    for _ in range(100):
        text = "".join(
            rng.choice(starters) + "".join(rng.choices(marks, k=rng.choice((0, 1, 3, 60, 200))))
            for _ in range(4)
        )
        for form in FORMS:
            assert normalization.normalize(form, text) == unicodedata.normalize(form, text)


@pytest.mark.parametrize("form", FORMS)
def test_long_runs_of_combining_characters_are_normalized_in_linear_time(form):
    texts = [growth.repeated(unit, 20_000) for unit in MARKS]
    assert not growth.superlinear(lambda text: normalization.normalize(form, text), texts)


def test_growth_sees_quadratic_time():
    text = growth.repeated("a", 8_000)
    assert growth.superlinear(lambda text: sum(len(list(text)) for _ in text[::10]), [text])


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_tokenizers(vocabulary_files, name):
    texts = [*growth.texts(20_000).values(), *(growth.repeated(unit, 20_000) for unit in growth.SURROGATES)]
    for function in functions(vocabulary_files, name):
        assert not growth.superlinear(function, texts)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_tokenizers_of_long_texts(vocabulary_files, name):
    for function in functions(vocabulary_files, name):
        assert not growth.superlinear(function, growth.texts(1 << 20).values())


@pytest.mark.parametrize("lower_case", [True, False])
def test_spans_and_vocabularies_of_marks(lower_case):
    text = growth.repeated(MARKS[0], 20_000)
    assert not growth.superlinear(albert_text.normalizer(lower_case, True), [text])
    normalize = normalization.normalizer(lower_case, True)
    assert not growth.superlinear(lambda text: normalization.original_spans(text, normalize), [text])
