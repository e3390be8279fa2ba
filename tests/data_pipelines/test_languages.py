"""Several languages in one set of records: what is written of each, and that they are not mixed."""

import collections
import dataclasses
import random

import numpy as np
import pytest
from support import builds

from data_pipelines import build

SIZES = {"aa": 1600, "bb": 500, "cc": 150, "dd": 40, "ee": 8}  # documents
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def tokens():
    """The vocabulary: 20 words of each language, and a name for each document."""
    words = [f"{name}{number}" for name in SIZES for number in range(20)]
    return [*SPECIAL, *words, *(f"{name}doc{number}" for name, n in SIZES.items() for number in range(n))]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, tokens):
    """A folder with `lg/NAME/text.txt` for each language, and the vocabulary."""
    folder = tmp_path_factory.mktemp("languages")
    rng = random.Random(0)
    for name, documents in SIZES.items():
        (folder / "lg" / name).mkdir(parents=True)
        with open(folder / "lg" / name / "text.txt", "w") as file:
            for number in range(documents):
                for sentence in range(3):
                    words = [f"{name}{rng.randrange(20)}" for _ in range(rng.randint(2, 9))]
                    file.write(" ".join([f"{name}doc{number}"] * (sentence == 0) + words) + "\n")
                file.write("\n")
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    return folder


@pytest.fixture
def options(corpus, tmp_path):
    return build.Options(
        input=tuple(f"{corpus}/lg/{name}/*" for name in SIZES),
        vocab=str(corpus / "vocab.txt"),
        output=str(tmp_path / "records"),
        max_seq_length=48,
        nsp="none",
        short_seq_prob=0.0,
        eval_fraction=0.1,
        sampling_exponent=0.7,
    )


def sequences(directory, split, tokens):
    """The words of each sequence, with its label, in the order of the rows."""
    for ids, _, label in builds.sequences(directory, split):
        yield [tokens[i] for i in ids], label


def words_by_language(found):
    counts = collections.Counter()
    for words, _ in found:
        counts.update(word[:2] for word in words if word not in SPECIAL)
    return counts


@pytest.mark.long
def test_shares_are_those_of_the_exponent(options, tokens):
    manifest = build.build(options).manifest
    found = list(sequences(options.output, "train", tokens))
    names = collections.Counter(word for words, _ in found for word in words if "doc" in word)
    written = collections.Counter()
    for words, _ in found:
        assert len([word for word in words if "doc" in word]) == 1  # a document is a sequence
        written[words[1][:2]] += len(words)
    weights = {name: manifest["languages"][name]["tokens"] ** 0.7 for name in SIZES}
    for name in SIZES:
        share = weights[name] / sum(weights.values())
        # Of the smallest, two of eight documents are held out.
        assert written[name] / written.total() == pytest.approx(share, rel=0.1, abs=0.003)
        assert manifest["languages"][name]["share"] == written[name] / written.total()
        # Every document that is not held out is there, some of them once more than the others.
        times = [names[word] for word in names if word.startswith(name)]
        assert max(times) - min(times) <= 1
        assert np.mean(times) == pytest.approx(manifest["languages"][name]["used"], rel=0.1)
        counts = manifest["splits"]["train"]["languages"][name]
        assert (counts["documents"], counts["tokens"]) == (len(times), written[name])
    assert manifest["languages"]["aa"]["used"] == 1
    for count in ("rows", "sequences", "tokens", "documents"):
        split = manifest["splits"]["train"]
        assert sum(one[count] for one in split["languages"].values()) == split[count]
    # Held-out documents are there once, in no row of train, and the languages are mixed from the beginning.
    held_out = list(sequences(options.output, "eval", tokens))
    again = collections.Counter(word for words, _ in held_out for word in words if "doc" in word)
    assert set(again.values()) == {1} and not again.keys() & names.keys()
    assert len(again) + len(names) == sum(SIZES.values())
    fifth = len(held_out) // 5
    assert words_by_language(held_out[:fifth]).keys() == {"aa", "bb", "cc"}
    assert words_by_language(held_out[fifth:-fifth]).keys() == SIZES.keys()  # the smallest have a row each


@pytest.mark.long
def test_the_second_segment_is_of_the_same_language(options, tokens):
    manifest = build.build(dataclasses.replace(options, nsp="next")).manifest
    random_next = collections.Counter()
    for words, label in sequences(options.output, "train", tokens):
        assert len({word[:2] for word in words if word not in SPECIAL}) == 1
        random_next[words[1][:2]] += label
    assert random_next.keys() == SIZES.keys() and min(random_next.values()) > 0
    assert manifest["languages"]["ee"]["used"] > manifest["languages"]["aa"]["used"] == 1
