"""Where caches are kept."""

import os
import stat

import pytest

from bert_jax.errors import UserError
from bert_jax.io import caches


def test_caches_without_a_home_directory_are_in_a_folder_of_the_user(tmp_path, monkeypatch, without_home):
    own = f"{tmp_path}/bert_jax-of-{os.getuid()}"
    assert caches.directory("xla") == caches.directory("xla") == f"{own}/bert_jax/xla"
    assert stat.S_IMODE(os.stat(own).st_mode) == 0o700
    for variable, folder in (("HOME", f"{tmp_path}/.cache"), ("XDG_CACHE_HOME", f"{tmp_path}")):
        monkeypatch.setenv(variable, str(tmp_path))
        assert caches.directory("xla") == f"{folder}/bert_jax/xla"


def test_caches_are_not_shared_with_another_user(tmp_path, foreign_caches):
    with pytest.raises(
        UserError,
        match=rf"^{tmp_path}/bert_jax-of-{os.getuid()}: belongs to another user; set XDG_CACHE_HOME",
    ):
        caches.directory("xla")
