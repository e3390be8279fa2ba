"""A small corpus and its vocabulary."""

import random

import pytest

from data_pipelines import build
from data_pipelines.stages import buckets

WORDS = [
    *"the of a river stone old bright wind walks under over seven houses".split(),
    *"and slow green hill music letter".split(),
]


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory):
    """The path of a vocab.txt that has every word of the corpus."""
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    tokens = [*"[PAD] [UNK] [CLS] [SEP] [MASK]".split(), *WORDS, ".", *map(str, range(60))]
    path.write_text("\n".join(tokens) + "\n")
    return str(path)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder of text files: 60 documents, one sentence a line, each with the number of its document."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(0)
    documents = []
    for number in range(60):
        lines = [
            f"{number} {' '.join(rng.choices(WORDS, k=rng.randint(2, 25)))}."
            for _ in range(rng.randint(1, 40))
        ]
        documents.append("\n".join(lines) + "\n")
    for number in range(3):
        (folder / f"{number}.txt").write_text("\n".join(documents[number::3]))
    return folder


@pytest.fixture
def options(corpus, vocabulary, tmp_path):
    return build.Options(
        input=(str(corpus / "*.txt"),),
        vocab=vocabulary,
        output=str(tmp_path / "out"),
        max_seq_length=48,
        eval_fraction=0.2,
        seed=7,
    )


@pytest.fixture
def small_steps(monkeypatch):
    """Buckets and shards so small that a small corpus has several."""
    monkeypatch.setattr(buckets, "BUCKET_TOKENS", (500, 500))
    monkeypatch.setattr(buckets, "MIN_BUCKET_DOCUMENTS", 3)
    monkeypatch.setattr(build, "_SHARD_BYTES", 4000)
