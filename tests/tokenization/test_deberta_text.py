"""The vocabulary of DeBERTa: a SentencePiece model without a mask, and what transformers 5 makes of it."""

import random
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
from support import albert_reference, vocabularies

from bert_jax import cli, tokenization
from bert_jax.errors import UserError
from bert_jax.tokenization import sentence_piece, templates

CHARACTERS = "\uff21 caf\u00e9 \ufb01 \u4e2d\u6587 1,000 Fran\u00e7ois".split()
SPELLED = ["the [CLS] cat", "[UNK] [MASK]", " The  CAT\u3000sat\n", "\ufb01 \uff21", "e\u0301 \u00e9", ""]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return vocabularies.deberta_model(tmp_path_factory.mktemp("model"), 90, CHARACTERS)


def write(folder, path="", **files):
    """Writes a folder of a DeBERTa with some files, and returns it."""
    vocabularies.write_json(folder, **{"config": {"model_type": "deberta-v2"}, **files})
    if path:
        (folder / "spm.model").write_bytes(Path(path).read_bytes())
    return folder


def random_texts(count):
    rng = random.Random(0)
    texts = [albert_reference.random_text(rng) for _ in range(count)]
    return [" ".join(filter(None, [text, rng.choice(CHARACTERS), "cat"])) for text in texts]


def test_ids_are_those_of_the_model_and_the_mask_is_the_last(path, tmp_path):
    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    size = processor.GetPieceSize()
    texts = [*random_texts(300), *SPELLED]
    expected = processor.EncodeAsIds(texts)
    # Of a file, and of a folder as Microsoft's.
    settings = {"do_lower_case": False, "vocab_type": "spm"}
    for tokenizer in (
        tokenization.load(path),
        tokenization.load(write(tmp_path / "released", path, tokenizer_config=settings)),
    ):
        assert tokenizer.encode_batch(texts) == expected
        assert [ids.tolist() for ids, _ in tokenizer.encode_with_offsets(texts)] == expected
        assert tokenizer.special_ids == {"pad": 0, "cls": 1, "sep": 2, "unk": 3, "mask": size}
        assert (tokenizer.vocab_size, tokenizer.template) == (size + 1, templates.BERT)
        assert not tokenizer.lower_case and not tokenizer.strip_accents
        (masked,) = tokenizer.encode_batch(["the [MASK] cat"], ["[MASK]"])
        assert masked == [*processor.EncodeAsIds("the"), size, *processor.EncodeAsIds("cat")]
        # Whitespace that the model does not normalize is text.
        assert tokenizer.encode_batch(["\x85[MASK]"], ["[MASK]"]) == [[*processor.EncodeAsIds("\x85"), size]]


def test_a_tokenizer_json_of_version_5_has_the_ids_of_the_library(path, tmp_path):
    """Its class composes characters, and does not read the table of characters of the model."""
    content = vocabularies.version_5(Path(path).read_bytes())
    settings = {"tokenizer_class": "DebertaV2Tokenizer", "do_lower_case": False, "split_by_punct": False}
    tokenizer = tokenization.load(write(tmp_path, tokenizer=content, tokenizer_config=settings))
    assert tokenizer.tokens == tokenization.load(path).tokens
    library = tokenizers.Tokenizer.from_str(content)
    texts = [*random_texts(300), *SPELLED[2:]]
    expected = [one.ids for one in library.encode_batch(texts, add_special_tokens=False)]
    assert tokenizer.encode_batch(texts) == expected
    assert expected != tokenization.load(path).encode_batch(texts)
    for text, ids, (found, spans) in zip(texts, expected, tokenizer.encode_with_offsets(texts), strict=True):
        assert found.tolist() == ids
        surfaces = [text[begin:end] for begin, end in spans]
        assert all(surface == surface.strip() for surface in surfaces)
    (spelled,) = tokenizer.encode_batch(["the [CLS] [SEP] [PAD] [MASK]"])
    assert {*tokenizer.special_ids.values()}.intersection(spelled) == {tokenizer.unk_id}
    again = tokenization.restore(tokenizer.path, tokenizer.settings())
    assert again.encode_batch(texts) == expected


def test_the_library_gives_a_text_the_ids_of_the_model(path):
    """But for marks after spaces, which it normalizes in another way."""
    texts = [x for x in random_texts(600) if not any(unicodedata.category(c)[0] == "M" for c in x)]
    texts += ["\u200bthe cat\u200b", "\u200b the\u200b \u200bcat \u200b", "\u2581the\u2581cat"]
    rust = sentence_piece.rust_unigram(Path(path).read_bytes())
    found = [one.ids for one in rust.encode_batch(texts, add_special_tokens=False)]
    assert len(texts) > 100 and found == tokenization.load(path).encode_batch(texts)


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"split_by_punct": True}},
        {"tokenizer_config": {"do_lower_case": True}},
        {"added_tokens": {"[MASK]": 95}},
        {"tokenizer_config": {"mask_token": "<mask>"}},
    ],
)
def test_what_gives_a_text_other_ids_is_an_error(path, tmp_path, files):
    with pytest.raises(UserError, match="--normalizer"):
        tokenization.load(path, normalizer="albert")
    with pytest.raises(UserError, match=r"split_by_punct|lower_case|\[MASK\] is 95|<mask>"):
        tokenization.load(write(tmp_path / "folder", path, **files))


def test_a_vocabulary_that_is_learned(tmp_path):
    rng = random.Random(0)
    words = [*vocabularies.WORDS, *CHARACTERS, "Caf\u00e9", "``Dog"]
    words += ["".join(rng.choices("abcdefgh", k=6)) for _ in range(60)]
    lines = [" ".join(rng.choices(words, k=9)) for _ in range(400)]
    (tmp_path / "text.txt").write_text("\n".join(lines), "utf-8")
    flags = [f"--input={tmp_path}/text.txt", "--kind=sentencepiece", "--normalizer=deberta", "--size=100"]
    outputs = [tmp_path / f"{name}.model" for name in ("one", "two")]
    for output in outputs:
        assert cli.main(["vocab", *flags, f"--output={output}"]) == 0
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    tokenizer = tokenization.load(outputs[0])
    assert tokenizer.tokens[:4] == ["[PAD]", "[CLS]", "[SEP]", "[UNK]"] and tokenizer.tokens[-1] == "[MASK]"
    assert tokenizer.normalizer == "deberta" and tokenizer.vocab_size == 100
    assert not any('"' in token for token in tokenizer.tokens)  # which two backquotes are in ALBERT's text
    assert any("C" in token for token in tokenizer.tokens[4:-1])  # the case of the text is kept
    assert cli.main(["vocab", *flags, f"--output={tmp_path}/three.model", "--lower_case"]) == 2
