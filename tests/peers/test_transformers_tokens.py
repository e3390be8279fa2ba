"""Token ids here and of transformers' BertTokenizer, the Rust one and the one in plain Python.

benchmarks/token_ids.py compares whole corpora; this compares a sample, and each way in which they differ.
"""

import importlib.util
from pathlib import Path

import pytest

from bert_jax import tokenization

pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "token_ids.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("token_ids", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pair(script, shared_data):
    """A function from a vocabulary's and a tokenizer's name to both sides of the comparison."""

    def made(name, kind):
        vocab = str(shared_data / "vocab" / f"bert-base-{name}-vocab.txt")
        ours = tokenization.load(vocab)
        theirs = script.transformers_encode(kind, vocab, ours.lower_case)
        return ours.encode_batch, theirs, ours.lower_case

    return made


BOTH = pytest.mark.parametrize("kind", ["rust", "python"])
VOCABULARIES = pytest.mark.parametrize("name", ["uncased", "cased"])


@BOTH
@VOCABULARIES
def test_sentences_have_the_same_ids(script, pair, shared_data, name, kind):
    glue = (shared_data / "glue" / "MRPC" / "dev.tsv").read_text("utf-8")
    lines = [*glue.split("\n"), *(shared_data / "sample_text.txt").read_text("utf-8").split("\n")]
    lines += [
        "Ünïcödé, naïve café — “quoted”… 東京 и Москва",
        "100% £5 x² ½ №1 ﬁ ẞ",
        "\ufeffa\u00adb\u200bc\u3000d",
    ]
    assert len(lines) > 400
    assert script.compare(lines, *pair(name, kind)) == {}


@BOTH
@VOCABULARIES
@pytest.mark.parametrize(
    "text, reason, only",
    [
        ("a" * 100, None, None),
        ("a" * 101, "LONG", None),
        ("a" * 200, "LONG", None),
        ("a" * 201, None, None),
        ("it[SEP]is", "SPECIAL", None),
        ("ΝΕΙΛΟΣ", "SIGMA", ("rust", "uncased")),
        ("a\ue000b", "PRIVATE", None),
        ("Cafe\u0301", "COMPOSED", ("python", "cased")),
        ("a\u166db", "PUNCTUATION", "rust"),
        ("a\u2028b", None, None),
    ],
    ids=["100", "101", "200", "201", "special", "sigma", "private", "decomposed", "punctuation", "line"],
)
def test_how_they_differ(script, pair, name, kind, text, reason, only):
    ours, theirs, lower_case = pair(name, kind)
    differs = reason and only in (None, kind, (kind, name))
    found = script.compare([f"the {text} of"], ours, theirs, lower_case)
    assert found == ({getattr(script, reason): {text: 1}} if differs else {})
