"""SentencePiece behind the interface of WordPiece."""

import pytest
import sentencepiece
from support import vocabularies

from bert_jax import tokenization
from bert_jax.errors import UserError
from bert_jax.tokenization import templates

WORDS = """the quick brown fox jumps over lazy dog a tokenizer splits words into pieces of that continue word
have no mark before them reference lower cases and strips accents""".split()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer = tokenization.load(vocabularies.albert_model(folder, words=WORDS, size=90))
    assert tokenizer.tokens[tokenizer.pad_id] == "<pad>" and tokenizer.tokens[tokenizer.mask_id] == "[MASK]"
    assert tokenization.load(folder).path == tokenizer.path
    return tokenizer


def test_round_trip(tokenizer):
    ids = tokenizer.encode_batch(["The quick BROWN fox", "", " \n", "wörds wórds", "\x00\u200bdog"])
    assert [tokenizer.decode(i) for i in ids] == ["the quick brown fox", "", "", "words words", "dog"]
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.unk_id in tokenizer.encode_batch(["\u4e2d"])[0]


def test_ids_as_of_xlm_r(tmp_path):
    path = vocabularies.fairseq_model(tmp_path, words=WORDS, size=90)
    tokenizer, processor = tokenization.load(tmp_path), sentencepiece.SentencePieceProcessor(model_file=path)
    size = processor.GetPieceSize()
    assert tokenizer.special_ids == {"cls": 0, "pad": 1, "sep": 2, "unk": 3, "mask": size + 1}
    assert tokenizer.vocab_size == size + 2 and tokenizer.template == templates.ROBERTA
    texts = ["The quick  fox, \u200b jumps \ud800", "\u6f22 <s> a", ""]
    plain = [text.replace("\ud800", "\ufffd") for text in texts]
    expected = [[i + 1 if i else 3 for i in processor.EncodeAsIds(text)] for text in plain]
    assert tokenizer.encode_batch(texts) == expected and 3 in expected[1] and 0 not in expected[1]
    found = tokenizer.encode_with_offsets(texts)
    assert [ids.tolist() for ids, _ in found] == expected
    assert tokenizer.tokens[4] == processor.IdToPiece(3) and tokenizer.tokens[-2] == processor.IdToPiece(
        size - 1
    )
    (masked,) = tokenizer.encode_batch(["the <mask> dog"], ["<mask>"])
    assert masked.count(size + 1) == 1
    assert tokenizer.decode(tokenizer.encode_batch(["the lazy dog"])[0]) == "the lazy dog"
    assert not tokenizer.lower_case  # although every token is in lower case
    assert not tokenizer.is_continuation[list(tokenizer.special_ids.values())].any()
    assert tokenizer.is_continuation[tokenizer.tokens.index("s")]
    with pytest.raises(UserError, match="fixes the normalization"):
        tokenization.load(path, lower_case=True)
