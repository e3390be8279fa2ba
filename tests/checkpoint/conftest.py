"""A directory with three steps of a small state."""

import shutil
from pathlib import Path

import pytest
from support.states import save

from bert_jax.parallel import sharding


@pytest.fixture(scope="module")
def mesh():
    return sharding.make_mesh(data=2, fsdp=2, tensor=2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, mesh):
    """A directory with steps 2, 4 and 6; tests that change it copy it."""
    directory = tmp_path_factory.mktemp("saved") / "checkpoints"
    save(directory, (2, 4, 6), mesh)
    return directory


@pytest.fixture
def copy(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "checkpoints"))
