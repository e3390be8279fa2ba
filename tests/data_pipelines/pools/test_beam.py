"""The stages on Apache Beam's DirectRunner, and on files that are not on a local path."""

import dataclasses
import os

import pytest

from bert_jax.cli import main
from bert_jax.data import manifests
from bert_jax.errors import UserError
from bert_jax.io import files
from data_pipelines import build, pools


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
    assert not built.already_done and built.peak_memory > 0
    assert contents(options.output) == contents(expected)
    assert build.build(options, beam_args="").already_done
    assert not list(tmp_path.glob("*-beam*"))


def test_a_mistake_in_a_beam_worker_is_one_line(options, tmp_path, capsys):
    pytest.importorskip("apache_beam")
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfea\x00")
    flags = [f"--input={tmp_path}/bad.txt", f"--vocab={options.vocab}", f"--output={options.output}"]
    assert main(["data", *flags, "--runner=beam"]) == 2
    error = capsys.readouterr().err
    assert "is UTF-16; expected UTF-8" in error and "Traceback" not in error


def test_no_mistake_of_a_run_is_left_for_the_next(tmp_path):
    pytest.importorskip("apache_beam")
    pool = pools.BeamPool("", str(tmp_path / "scratch"))
    tasks = [(str(tmp_path / name), str(tmp_path / "mended")) for name in ("a", "b")]
    with pytest.raises(UserError, match="not mended"):
        pool.run(_fails_until_mended, tasks)
    (tmp_path / "mended").touch()
    assert [result["done"] for result in pool.run(_fails_until_mended, tasks)] == [True, True]


def _fails_until_mended(path):
    if not os.path.exists(path):
        raise UserError("not mended")
    return {"done": True}


def test_beam_goes_on_from_what_is_done(options, expected, monkeypatch):
    pytest.importorskip("apache_beam")
    options = dataclasses.replace(options, clean="exact,near")
    move = files.move

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "move", stop)  # the files are made, and not yet in their place
    with pytest.raises(KeyboardInterrupt):
        build.build(options, beam_args="")
    monkeypatch.setattr(files, "move", move)
    assert not os.path.exists(os.path.join(options.output, manifests.FILE))
    build.build(options, beam_args="")
    assert contents(options.output) == contents(expected)


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
