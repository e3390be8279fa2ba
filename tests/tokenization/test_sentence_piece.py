"""SentencePiece behind the interface of WordPiece."""

import io

import pytest
import sentencepiece

from bert_jax import tokenization
from bert_jax.errors import UserError
from bert_jax.tokenization import templates

TEXT = [
    "the quick brown fox jumps over the lazy dog",
    "a tokenizer splits words into pieces of words",
    "pieces that continue a word have no mark before them",
    "the reference tokenizer lower cases and strips accents",
] * 20


def train(path, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=model,
        vocab_size=90,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    path.write_bytes(model.getvalue())
    return str(path)


OURS = {
    "pad_id": 0,
    "unk_id": 1,
    "bos_id": 2,
    "eos_id": 3,
    "pad_piece": "[PAD]",
    "unk_piece": "[UNK]",
    "bos_piece": "[CLS]",
    "eos_piece": "[SEP]",
    "control_symbols": ["[MASK]"],
}
# As google-research/albert trained its models.
ALBERT = {
    "pad_id": 0,
    "unk_id": 1,
    "bos_id": -1,
    "eos_id": -1,
    "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tokenization.load(train(tmp_path_factory.mktemp("model") / "vocab.model", **OURS))


def test_models_of_albert(tmp_path):
    tokenizer = tokenization.load(train(tmp_path / "spiece.model", **ALBERT))
    assert tokenizer.tokens[tokenizer.pad_id] == "<pad>"
    assert tokenizer.tokens[tokenizer.mask_id] == "[MASK]"
    assert tokenization.load(tmp_path).path == tokenizer.path


def test_round_trip(tokenizer):
    ids = tokenizer.encode_batch(["The quick BROWN fox", "", " \n", "wörds wórds", "\x00\u200bdog"])
    assert [tokenizer.decode(i) for i in ids] == ["the quick brown fox", "", "", "words words", "dog"]
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.unk_id in tokenizer.encode_batch(["\u4e2d"])[0]


# As XLM-R's model was trained: SentencePiece's own special pieces, and no padding.
FAIRSEQ = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}


def test_ids_as_of_xlm_r(tmp_path):
    path = train(tmp_path / "sentencepiece.bpe.model", **FAIRSEQ)
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
