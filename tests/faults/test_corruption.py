"""Corruptions of records, checkpoints, adapters and runs: detected, or the data is the same bit for bit."""

import json

import pytest
from support import corruption as corruption_support
from support.corruption import DETECTED, WRONG, try_all


@pytest.mark.parametrize(
    "kind, count",
    [
        ("records", 60),
        ("checkpoints", 12),
        ("best", 500),
        pytest.param("adapters", 40, marks=pytest.mark.long),
        pytest.param("runs", 30, marks=pytest.mark.long),
    ],
)
def test_a_sample_of_corruptions(tmp_path, kind, count):
    outcomes, wrong = try_all(kind, tmp_path, range(count))
    assert not wrong
    assert sum(number for (_, outcome), number in outcomes.items() if outcome == DETECTED) > count / 8


def test_wrong_data_is_seen(tmp_path, monkeypatch):
    # Without the digests of the manifest, records that were swapped are not noticed.
    def remove_digests(directory):
        manifest = json.loads((directory / "manifest.json").read_text())
        for split in manifest["splits"].values():
            for entry in split["files"]:
                del entry["crc32c"]
        (directory / "manifest.json").write_text(json.dumps(manifest))

    monkeypatch.setattr(corruption_support, "prepare", remove_digests)
    outcomes, wrong = try_all("records", tmp_path, range(60))
    assert wrong and any(outcome == WRONG for _, outcome in outcomes)
