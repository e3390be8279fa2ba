"""Whether the processes of a run see the same work directory; test_late_files.py has real processes."""

import functools
import os
import socket

import pytest
from support import together

from bert_jax.errors import UserError
from bert_jax.workdir import run_directory


def check(monkeypatch, *directories):
    """What each process got that has one of these directories: None, or its error."""
    calls = [functools.partial(run_directory._check_shared, str(path), patience=0.3) for path in directories]
    return together.run(monkeypatch, *calls)


@pytest.fixture
def hosts(tmp_path):
    """Directories of the same name on the disks of three hosts."""
    made = [tmp_path / host / "run" for host in ("a", "b", "c")]
    made[0].mkdir(parents=True)
    made[1].mkdir(parents=True)
    return made


def test_all_see_a_shared_directory_and_nothing_is_left_in_it(monkeypatch, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    assert check(monkeypatch, tmp_path, tmp_path, tmp_path / "link") == [None] * 3
    assert os.listdir(tmp_path) == ["link"]


def test_those_that_see_another_directory_are_named_in_all(monkeypatch, hosts):
    errors = check(monkeypatch, hosts[0], hosts[0], hosts[1], hosts[2])
    host = socket.gethostname()
    for error, directory in zip(errors, (hosts[0], hosts[0], hosts[1], hosts[2]), strict=True):
        assert isinstance(error, UserError) and "\n" not in str(error)
        assert f"{directory} of process 0 on {host} is not visible to" in str(error)
        assert f"to process 2 on {host}, process 3 on {host}" in str(error)
    assert not os.listdir(hosts[0]) and not os.listdir(hosts[1]) and not hosts[2].exists()
