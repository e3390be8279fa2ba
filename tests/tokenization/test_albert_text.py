"""The text of ALBERT: normalization, the comma after a digit, and where it is stored."""

import itertools
import json
import random
from pathlib import Path

import pytest
import sentencepiece
from support import albert_reference

from bert_jax import cli, tokenization
from bert_jax.convert.families import FAMILIES
from bert_jax.tokenization.huggingface import read_tokenizer

WORDS = "the quick brown fox tokenizer words in 1999, or 1,000, 42, 7, 3,5 times, he said: cost".split()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that `bert-jax vocab` learned with ALBERT's normalizer, from digits followed by commas."""
    rng, folder = random.Random(0), tmp_path_factory.mktemp("text")
    lines = [" ".join(rng.choices(WORDS, k=9)) + "\n" * (1 + (i % 4 == 3)) for i in range(400)]
    (folder / "text.txt").write_text("".join(lines))
    flags = [f"--input={folder}/text.txt", "--kind=sentencepiece", "--normalizer=albert", "--size=110"]
    assert cli.main(["vocab", *flags, f"--output={folder}/vocab.model"]) == 0
    return f"{folder}/vocab.model"


@pytest.fixture(scope="module")
def tokenizer(model):
    return tokenization.load(model, normalizer="albert")


@pytest.mark.parametrize("keep", [False, True])
def test_ids_are_those_of_the_original(model, keep):
    tokenizer = tokenization.load(model, lower_case=not keep, strip_accents=not keep, normalizer="albert")
    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    rng = random.Random(7)
    texts = [albert_reference.random_text(rng) for _ in range(1500)]
    expected = [albert_reference.encode(processor, text, not keep, keep) for text in texts]
    assert tokenizer.encode_batch(texts) == expected
    assert expected != tokenization.load(model).encode_batch(texts)
    assert [ids.tolist() for ids, _ in tokenizer.encode_with_offsets(texts)] == expected


def test_offsets(tokenizer):
    text = "  In\u00a0 \u00b9999, ``Caf\u00e9'' cost  1,000,"
    ((ids, spans),) = tokenizer.encode_with_offsets([text])
    surfaces = [text[begin:end] for begin, end in spans]
    assert "".join(surfaces) == "In\u00b9999,``Caf\u00e9''cost1,000,"
    assert [s for s, i in zip(surfaces, ids, strict=True) if tokenizer.tokens[i] == '"'] == ["``", "''"]
    assert surfaces[-1] == "," and tokenizer.tokens[ids[-1]] == ","
    rng = random.Random(3)
    for text in (albert_reference.random_text(rng) for _ in range(300)):
        ((ids, spans),) = tokenizer.encode_with_offsets([text])
        assert all(0 <= begin <= end <= len(text) for begin, end in spans)
        assert all(a[0] <= b[0] for a, b in itertools.pairwise(spans))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (None, ("albert", True, True)),
        ({}, ("albert", True, True)),
        ({"do_lower_case": False, "keep_accents": True, "remove_space": True}, ("albert", False, False)),
        # As bert_jax wrote it before it knew ALBERT's normalization.
        ({"do_lower_case": True, "strip_accents": True, "keep_accents": False}, ("bert", True, True)),
    ],
)
def test_hugging_face_folders(model, tmp_path, settings, expected):
    (tmp_path / "spiece.model").write_bytes(Path(model).read_bytes())
    if settings is not None:
        content = settings | {"tokenizer_class": "AlbertTokenizer"}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(content))
    found = read_tokenizer(str(tmp_path), FAMILIES["albert"].tokenizer)
    assert (found.normalizer, found.lower_case, found.strip_accents) == expected
