"""DeBERTa's ids of random Unicode text equal transformers', in saved and in exported folders."""

import json
import random
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
from support import albert_reference, vocabularies
from support.conversions import random_model
from support.models import small_of

from bert_jax import tokenization
from bert_jax.convert import families, loading
from bert_jax.convert.formats import huggingface

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

COUNT = 20_000
WORDS = "\uff21 caf\u00e9 \ufb01 \u4e2d\u6587 1,000 Fran\u00e7ois The CAT".split()


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A folder with the tokenizer files of a released model."""
    folder = tmp_path_factory.mktemp("released")
    vocabularies.deberta_model(folder, 100, WORDS)
    (folder / "config.json").write_text('{"model_type": "deberta-v2"}')
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false, "vocab_type": "spm"}')
    return folder


def extends(character):
    """Returns whether the library, unlike SentencePiece, may normalize a character with the previous one."""
    ranges = (range(0x1160, 0x1200), range(0x1AB0, 0x1B00), range(0x200C, 0x200E), range(0xFF9E, 0xFFA0))
    return unicodedata.category(character) in ("Mn", "Mc", "Me", "Cn") or any(
        ord(character) in each for each in ranges
    )


def random_texts(count):
    rng = random.Random(1)
    for _ in range(count):
        text = albert_reference.random_text(rng)
        yield " ".join([text, *rng.choices([*WORDS, *vocabularies.WORDS, " [MASK]"], k=rng.randint(0, 6))])


def test_a_folder_that_transformers_saves(released, tmp_path):
    """The folder has only tokenizer.json, whose ids do not depend on the model's character table."""
    theirs = transformers.AutoTokenizer.from_pretrained(released)
    theirs.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "deberta-v2"}')
    assert not (tmp_path / "spm.model").exists()
    ours, texts = tokenization.load(tmp_path), list(random_texts(COUNT))
    assert ours.encode_batch(texts, ["[MASK]"]) == theirs(texts, add_special_tokens=False)["input_ids"]
    pair = ours.layout.row(*ours.encode_batch(["the cat", "a dog"])).tolist()
    assert pair == theirs("the cat", "a dog")["input_ids"]
    assert {role: getattr(theirs, f"{role}_token_id") for role in ours.special_ids} == ours.special_ids


@pytest.mark.parametrize("version_5", [False, True])
def test_an_exported_folder(released, tmp_path, version_5):
    """Its ids equal the original model's, except for combining marks after a space."""
    source, output = tmp_path / "source", tmp_path / "out"
    for folder in (source, output):
        folder.mkdir()
    if version_5:
        transformers.AutoTokenizer.from_pretrained(released).save_pretrained(source)
        (source / "config.json").write_text('{"model_type": "deberta-v2"}')
    tokenizer = tokenization.load(source if version_5 else released)
    config = small_of(families.FAMILIES["deberta-v2"]).replace(vocab_size=tokenizer.vocab_size + 3)
    huggingface.FORMAT.write(random_model(config, "none", tokenizer=tokenizer), output)
    theirs = transformers.AutoTokenizer.from_pretrained(output)
    texts = [text for text in random_texts(COUNT) if not any(map(extends, text))]
    found = theirs(texts, add_special_tokens=False)["input_ids"]
    assert len(texts) > COUNT / 10 and found == tokenizer.encode_batch(texts, ["[MASK]"])
    again = loading.load(str(output), log=lambda line: None).tokenizer
    assert again.encode_batch(texts, ["[MASK]"]) == found
    assert json.loads((output / "config.json").read_text())["vocab_size"] == tokenizer.vocab_size + 3
    if not version_5:
        assert (output / "spm.model").read_bytes() == (released / "spm.model").read_bytes()
        processor = sentencepiece.SentencePieceProcessor(model_file=str(Path(released) / "spm.model"))
        plain = [text for text in texts if "[MASK]" not in text]
        assert tokenizer.encode_batch(plain) == processor.EncodeAsIds(plain)
