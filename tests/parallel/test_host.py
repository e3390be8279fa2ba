"""What the host offers: cores, memory that is kept between steps, and devices."""

import os

import pytest

from bert_jax.parallel import host


@pytest.mark.parametrize(
    "files, expected",
    [
        ({"cpu.max": "250000 100000"}, 2.5),
        ({"cpu.max": "max 100000"}, 64),
        ({"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"}, 1.5),
    ],
)
def test_the_quota_of_a_container(tmp_path, monkeypatch, files, expected):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(host, "_CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    assert host.usable_cores() == expected
