"""Text of many languages in a cased WordPiece vocabulary, as multilingual BERT has it."""

import pytest

from bert_jax import tokenization
from bert_jax.cli import main

TEXTS = {
    "de": "Die Straße führt über Österreich. Größe und Übel.",
    "fr": "L'été, Noël et la façade à Genève.",
    "zh": "我爱北京",
    "ja": "ひらがな",
    "ko": "한국어 단어",
    "th": "ภาษาไทย",
    "hi": "हिन्दी में",
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A cased vocabulary learned from seven languages of very different sizes."""
    folder = tmp_path_factory.mktemp("cased")
    for number, (name, text) in enumerate(TEXTS.items()):
        (folder / f"{name}.txt").write_text(f"{text}\n\n" * (400 >> number), encoding="utf-8")
    inputs = [f"--input={folder}/{name}.txt" for name in TEXTS]
    flags = ["--nolower_case", "--sampling_exponent=0.7", "--size=400", f"--output={folder}/vocab.txt"]
    assert main(["vocab", *inputs, *flags, "--character_coverage=1"]) == 0
    return tokenization.load(folder / "vocab.txt", lower_case=False)


def words(tokenizer, text):
    """The words of the tokens of a text."""
    found = []
    for i in tokenizer.encode_batch([text])[0]:
        if tokenizer.is_continuation[i]:
            found[-1] += tokenizer.tokens[i].removeprefix("##")
        else:
            found.append(tokenizer.tokens[i])
    return found


def test_case_and_accents_are_kept(tokenizer):
    assert not (tokenizer.lower_case or tokenizer.strip_accents)
    assert words(tokenizer, "Größe über L'été") == ["Größe", "über", "L", "'", "été"]
    assert {"Größe", "été"} <= set(tokenizer.tokens)


def test_words_of_each_script(tokenizer):
    assert words(tokenizer, "我爱北京。") == ["我", "爱", "北", "京", "[UNK]"]
    for text in ("ひらがな", "한국어", "ภาษาไทย"):  # only ideographs are separated
        assert words(tokenizer, text) == [text]
    assert words(tokenizer, "爱ひらがな京") == ["爱", "ひらがな", "京"]
    assert words(tokenizer, "हिन्दी में") == ["हिन्दी", "में"]  # marks stay with their letters
    for text in TEXTS.values():
        assert tokenizer.unk_id not in tokenizer.encode_batch([text])[0]


def test_marks_of_a_script_without_capitals_are_kept(tmp_path):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    for words, strips in (
        (["में", "है", "किताब", "हम"], False),
        (["cafe", "uber"], True),
        (["café", "uber"], False),
    ):
        (tmp_path / "vocab.txt").write_text("\n".join([*special, *words]) + "\n", encoding="utf-8")
        found = tokenization.load(tmp_path / "vocab.txt")
        assert (found.lower_case, found.strip_accents) == (True, strips)
        assert tokenization.load(tmp_path / "vocab.txt", lower_case=True).strip_accents
