"""Duplicates: what is planted is found, wherever it lies and whoever looks; what is different is kept."""

import collections
import dataclasses
import random

import numpy as np
import pytest
from support.builds import contents

from data_pipelines import build, cleaning, readers, sorted_runs
from data_pipelines.cleaning import duplicates
from data_pipelines.stages import tokenizing

pytest.importorskip("rensa")

VOCABULARY = [f"word{number}" for number in range(3000)]


def article(rng, words=400):
    return [" ".join(rng.choices(VOCABULARY, k=20)) + "." for _ in range(words // 20)]


def edited(rng, sentences, share):
    """The text with one stretch of words, `share` of all, replaced."""
    words = " ".join(sentences).split()
    count = round(share * len(words))
    start = rng.randrange(len(words) - count)
    words[start : start + count] = rng.choices(VOCABULARY, k=count)
    return [" ".join(words[i : i + 20]) for i in range(0, len(words), 20)]


@pytest.fixture
def planted(tmp_path):
    """A folder of 6 files with 60 articles, 20 copies in another case, and 20 with edits of 1% to 5%.

    Returns the folder and the group of each document by its first word, which is a number.
    """
    rng = random.Random(3)
    articles = [article(rng) for _ in range(60)]
    texts = [(number, text) for number, text in enumerate(articles)]
    texts += [
        (number, [s.upper() if number % 2 else s + "  " for s in articles[number]]) for number in range(20)
    ]
    texts += [(20 + i, edited(rng, articles[20 + i], 0.01 + 0.04 * i / 19)) for i in range(20)]
    texts += [(40, articles[40])] * 4
    rng.shuffle(texts)
    folder = tmp_path / "planted"
    folder.mkdir()
    for number in range(6):
        documents = ["\n".join(text) for _, text in texts[number::6]]
        (folder / f"{number}.txt").write_text("\n\n".join(documents) + "\n")
    groups = {}
    for group, text in texts:
        groups[cleaning.folded_text(text)] = group
    return folder, groups


@pytest.fixture
def planted_options(options, planted, tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
    vocabulary.write_text("\n".join(special + VOCABULARY) + "\n")
    return dataclasses.replace(
        options, input=(str(planted[0] / "*.txt"),), vocab=str(vocabulary), clean="exact,near"
    )


def expected_keys(folder, groups, steps):
    """The keys of the documents that stay, by comparing all with all."""
    kept, members = {}, collections.defaultdict(list)
    for range_ in readers.split_ranges(readers.list_inputs(str(folder)), 1 << 30):
        for document in readers.read_documents(range_, "text"):
            folded = cleaning.folded_text(document.passages)
            group = groups[folded] if "near" in steps else folded
            members[group].append(sorted_runs.document_key(document.key))
    for group, keys in members.items():
        kept[group] = min(keys)
    return sorted(kept.values())


@pytest.fixture
def kept_keys(monkeypatch):
    """The keys of the documents that the rows are made of."""
    found = []
    read = sorted_runs._read_range

    def spy(*args):
        for piece in read(*args):
            found.append(piece[0])
            yield piece

    monkeypatch.setattr(sorted_runs, "_read_range", spy)
    return found


@pytest.mark.parametrize("clean, left", [("exact", 80), ("near", 60), ("exact,near", 60)])
def test_the_smallest_key_of_each_group_stays(planted_options, planted, kept_keys, clean, left):
    manifest = build.build(dataclasses.replace(planted_options, clean=clean)).manifest
    assert sorted(kept_keys) == expected_keys(*planted, clean) and len(kept_keys) == left
    assert manifest["text"]["documents"] == left == sum(s["documents"] for s in manifest["splits"].values())
    report = manifest["cleaned"]
    assert report["documents"] == 104 and report["documents_kept"] == left
    dropped = {step: one["documents_dropped"] for step, one in report["steps"].items()}
    assert (
        dropped
        == {"exact": {"exact": 24}, "near": {"near": 44}, "exact,near": {"exact": 24, "near": 20}}[clean]
    )
    for step in report["steps"].values():
        assert len(step["examples"]) == 5
        assert all(
            shown["kept"] != shown["document"] and len(shown["text"]) == 100 for shown in step["examples"]
        )
    assert manifest["cleaning"]["steps"] == clean.split(",")


@pytest.mark.long
def test_records_do_not_depend_on_workers_ranges_runs_or_partitions(planted_options, tmp_path, monkeypatch):
    build.build(planted_options)
    other = dataclasses.replace(planted_options, output=str(tmp_path / "other"))
    build.build(other, workers=3)
    assert contents(other.output) == contents(planted_options.output)
    monkeypatch.setattr(build, "_RANGE_BYTES", (9000, 9000))
    monkeypatch.setattr(tokenizing, "_RUN_TOKENS", 900)
    monkeypatch.setattr(duplicates, "_PAIRS_AT_ONCE", 3)
    small = dataclasses.replace(planted_options, output=str(tmp_path / "small"))
    build.build(small)
    assert contents(small.output) == contents(planted_options.output)


def test_a_chain_of_near_duplicates_is_one_group():
    rng = random.Random(5)
    texts = [article(rng)]
    for _ in range(6):
        texts.append(edited(rng, texts[-1], 0.05))
    keys = [40, 30, 60, 10, 70, 50, 20]
    values = [duplicates.signature(cleaning.folded_text(text))[None] for text in texts]
    pairs = duplicates.find("near", np.array(keys, np.uint64), values, 0.8)
    assert sorted(pairs[:, 1].tolist()) == [0, 1, 2, 4, 5, 6]
    assert set(pairs[:, 0].tolist()) == {3}  # the one with the key 10


def test_signatures_stay_as_they_are():
    """Other ones would be other records: the version of the algorithm is in the manifest."""
    signature = duplicates.signature("the quick brown fox jumps over the lazy dog")
    assert signature.dtype == np.uint32 and signature.shape == (126,)
    assert signature[:4].tolist() == [3745571858, 3298934994, 3190686803, 3448217988]
