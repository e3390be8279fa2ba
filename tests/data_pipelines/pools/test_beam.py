"""The stages on Apache Beam's DirectRunner, and on files that are not on a local path."""

import dataclasses

import pytest

from bert_jax.errors import UserError
from bert_jax.io import files
from data_pipelines import build


def contents(directory):
    return {
        name: files.read(f"{directory}/{name}")
        for name in files.names(directory)
        if not files.is_directory(f"{directory}/{name}")
    }


@pytest.fixture
def expected(options, tmp_path):
    local = dataclasses.replace(options, output=str(tmp_path / "local"), clean="exact,near")
    build.build(local)
    return local.output


def test_beam_makes_the_same_bytes(options, expected, tmp_path):
    pytest.importorskip("apache_beam")
    options = dataclasses.replace(options, clean="exact,near")
    built = build.build(options, beam_args="--runner=DirectRunner")
    assert not built.already_done
    assert contents(options.output) == contents(expected)
    assert build.build(options, beam_args="--runner=DirectRunner").already_done
    assert not list(tmp_path.glob("*-beam*"))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_output_that_is_a_url(options, expected, tmp_path, workers):
    """file:// goes the way of gs://, through fsspec."""
    url = f"file://{tmp_path}/remote"
    remote = dataclasses.replace(options, output=url, clean="exact,near")
    build.build(remote, workers=workers)
    assert contents(url) == contents(expected)
    assert build.build(remote).already_done
    with pytest.raises(UserError, match="holds other records"):
        build.build(dataclasses.replace(remote, seed=99))
