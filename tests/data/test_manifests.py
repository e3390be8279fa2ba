"""Manifests that are not what `bert-jax data` writes: one line, and nothing outside of the folder."""

import shutil

import pytest
from support import processes

from bert_jax import cli
from bert_jax.data import cache, records
from bert_jax.errors import UserError


@pytest.mark.parametrize("name", ["../outside/x.tfrecord", "/etc/x", "..", "", "gs://x"])
def test_names_stay_inside_the_folder(make_records, tmp_path, monkeypatch, name):
    monkeypatch.setenv("BERT_JAX_RECORD_CACHE", str(tmp_path / "cache"))
    for place in (("splits", "train", "files", 0, "name"), ("vocabulary", "file")):
        directory, _ = make_records(name="r" + place[0])
        processes.change_manifest(directory, *place, value=name)
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
        (("vocabulary", "template"), {"single": "A"}, "differ in their template: None and"),
        (("nsp",), "sop", "differ in their labels .*: next and sop"),
    ],
)
def test_records_of_different_kinds_are_not_one_dataset(make_records, tmp_path, place, value, message):
    first, _ = make_records()
    second = shutil.copytree(first, tmp_path / "second")
    assert len(records.open_dataset(f"{first},{second}", "train")) == 2 * len(
        records.open_dataset(first, "train")
    )
    processes.change_manifest(first, "nsp", value="next")
    processes.change_manifest(second, *place, value=value)
    with pytest.raises(UserError, match=message):
        records.open_dataset(f"{first},{second}", "train")
