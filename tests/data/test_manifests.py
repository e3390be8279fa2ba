"""Manifests that are not what `bert-jax data` writes: one line, and nothing outside of the folder."""

import json
import os
import shutil

import pytest

from bert_jax import cli
from bert_jax.data import cache, manifests, records
from bert_jax.errors import UserError


def test_the_counts_of_parts_are_summed():
    counts = ("documents", "rows", "sequences", "tokens", "random_next", "labeled")
    languages = {"en": {"documents": 2, "rows": 4, "sequences": 10, "tokens": 100}}
    one = dict(zip(counts, (2, 4, 10, 100, 3, 6), strict=True)) | {"files": ["a"], "languages": languages}
    one |= {"sequence_lengths": [0, 1, 9], "sequences_per_row": [0, 2, 2]}
    languages = {
        "de": {"documents": 1, "rows": 1, "sequences": 1, "tokens": 12},
        "en": {"documents": 0, "rows": 0, "sequences": 1, "tokens": 8},
    }
    other = dict(zip(counts, (1, 1, 2, 20, 0, 0), strict=True)) | {"files": ["b"], "languages": languages}
    other |= {"sequence_lengths": [0, 0, 1, 1], "sequences_per_row": [0, 0, 1]}
    merged = manifests.merge_splits([one, other], 30)
    assert merged == dict(zip(counts, (3, 5, 12, 120, 3, 6), strict=True)) | {
        "files": ["a", "b"],
        "sequence_lengths": [0, 1, 10, 1],
        "sequences_per_row": [0, 2, 3],
        "languages": {
            "en": {"documents": 2, "rows": 4, "sequences": 11, "tokens": 108},
            "de": {"documents": 1, "rows": 1, "sequences": 1, "tokens": 12},
        },
        "fill": 120 / (5 * 30),
        "random_next_share": 3 / 6,
    }
    # What is not known of one part is not known of both; then all sequences count as labeled.
    unknown = ("labeled", "languages", "sequence_lengths", "sequences_per_row")
    for name in unknown:
        without = {key: value for key, value in other.items() if key != name}
        found = manifests.merge_splits([one, without], 30)
        assert found.keys() == merged.keys() - {name}
        assert found["random_next_share"] == (3 / 12 if name == "labeled" else 3 / 6)


def change(directory, *place, value):
    path = os.path.join(directory, manifests.FILE)
    with open(path) as file:
        content = json.load(file)
    inner = content
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with open(path, "w") as file:
        json.dump(content, file)


@pytest.mark.parametrize(
    "name", ["../outside/x.tfrecord", "/etc/x", "..", ".", "", "a/b", "a\\b", "gs://x", "a\0"]
)
def test_names_stay_inside_the_folder(make_records, tmp_path, monkeypatch, name):
    monkeypatch.setenv("BERT_JAX_RECORD_CACHE", str(tmp_path / "cache"))
    for place in (("splits", "train", "files", 0, "name"), ("vocabulary", "file")):
        directory, _ = make_records(name="r" + place[0])
        change(directory, *place, value=name)
        before = sorted(path for path in tmp_path.rglob("*"))
        with pytest.raises(UserError, match="it names the file"):
            records.open_dataset(directory, "train")
        with pytest.raises(UserError, match="it names the file"):
            cache.local_copy(f"file://{directory}")
        cli.main(["inspect", directory])
        assert sorted(path for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "place, value, message",
    [
        (("vocabulary", "lower_case"), False, "differ in their lower_case: True and False"),
        (("vocabulary", "normalizer"), "albert", "differ in their normalizer: None and albert"),
        (
            ("vocabulary", "template"),
            {"single": "[CLS] A [SEP]"},
            "differ in their template: None and",
        ),
        (("nsp",), "sop", "differ in their labels .*: next and sop"),
    ],
)
def test_records_of_different_kinds_are_not_one_dataset(make_records, tmp_path, place, value, message):
    first, _ = make_records()
    second = shutil.copytree(first, tmp_path / "second")
    assert len(records.open_dataset(f"{first},{second}", "train")) == 2 * len(
        records.open_dataset(first, "train")
    )
    change(first, "nsp", value="next")
    change(second, *place, value=value)
    with pytest.raises(UserError, match=message):
        records.open_dataset(f"{first},{second}", "train")
