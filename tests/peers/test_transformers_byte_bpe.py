"""Byte-level BPE here and in transformers: ids and offsets of random Unicode, and exported tokenizers."""

import dataclasses
import json
import random
from pathlib import Path

import pytest
from support import albert_reference
from support.conversions import random_model

from bert_jax import tokenization
from bert_jax.convert import families
from bert_jax.convert.formats import huggingface
from bert_jax.models.config import EncoderConfig
from bert_jax.tokenization import templates
from bert_jax.tokenization.families import TokenizerRecord
from bert_jax.tokenization.huggingface import read_tokenizer

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

FOLDER = Path(__file__).resolve().parents[1] / "testdata" / "bpe"
COUNT = 50_000
INPUTS = {"model_input_names": ["input_ids", "attention_mask"]}


@pytest.fixture(scope="module")
def ours():
    return tokenization.load(FOLDER)


@pytest.fixture(scope="module")
def theirs():
    """transformers' tokenizer of vocab.json and merges.txt."""
    return transformers.RobertaTokenizer.from_pretrained(FOLDER, split_special_tokens=True)


def random_texts(count):
    rng, texts = random.Random(0), []
    for _ in range(count):
        text = albert_reference.random_text(rng)
        place = rng.randint(0, len(text))
        extra = rng.choice(["<s>", "<mask>", " </s>", "1,234", "  \n\n ", "👩\u200d👧", "'ll"])
        texts.append(text[:place] + extra * (rng.random() < 0.2) + text[place:])
    return texts


def test_random_unicode(ours, theirs):
    texts = random_texts(COUNT)
    expected = theirs(texts, add_special_tokens=False, return_offsets_mapping=True)
    found = ours.encode_with_offsets(texts)
    assert ours.encode_batch(texts) == expected["input_ids"]
    for text, (ids, offsets), offsets_there in zip(texts, found, expected["offset_mapping"], strict=True):
        assert offsets.tolist() == [list(span) for span in offsets_there], ascii(text)
        assert ours.decode(ids) == text


@pytest.mark.parametrize("name", ["RobertaTokenizer", "PreTrainedTokenizerFast"])
def test_an_exported_tokenizer(ours, monkeypatch, tmp_path, name):
    record = TokenizerRecord(name, "bpe", templates.ROBERTA, fields=INPUTS)
    family = dataclasses.replace(families.FAMILIES["bert"], tokenizer=record)
    monkeypatch.setitem(families.FAMILIES, "bert", family)
    sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    config = EncoderConfig(vocab_size=ours.vocab_size, max_position_embeddings=16, **sizes)
    huggingface.FORMAT.write(random_model(config, tokenizer=ours), tmp_path)

    there = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert there.model_input_names == ["input_ids", "attention_mask"]
    texts = random_texts(2000)
    special = list(ours.special_tokens.values())
    assert there(texts, add_special_tokens=False)["input_ids"] == ours.encode_batch(texts, special)
    masked = json.loads((FOLDER / "tokens.json").read_text())["masked"]
    rows = [
        ours.layout.row(*ours.encode_batch(pair, special)).tolist()
        for pair in zip(texts[: 9 * len(masked)], masked * 9, strict=True)
    ]
    assert there(list(texts[: len(rows)]), masked * 9)["input_ids"] == rows
    for role, token in ours.special_tokens.items():
        assert getattr(there, f"{role}_token_id") == ours.special_ids[role]
        assert getattr(there, f"{role}_token") == token
    again = read_tokenizer(str(tmp_path), record)
    assert again.tokens == ours.tokens and again.template == templates.ROBERTA
    for file in ("vocab.json", "merges.txt"):
        assert (tmp_path / file).exists()
