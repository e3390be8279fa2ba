"""Tasks on processes and on Beam: results in order and kept, a dead worker told in one line, equal bytes."""

import dataclasses
import json
import os
import signal
import time

import pytest
from support.builds import contents

from bert_jax.errors import ClusterError, UserError
from data_pipelines import build, pools


def square(number):
    return {"square": number * number, "pid": os.getpid()}


def die(number):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    return {}


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_order_and_are_kept(tmp_path, processes):
    tasks = [(str(tmp_path / str(number)), number) for number in range(6)]
    (tmp_path / "2").write_text(json.dumps({"square": "kept"}))
    (tmp_path / "3").write_text('{"square": 9')  # cut off: done again
    done = []
    with pools.LocalPool(processes) as pool:
        results = pool.run(square, tasks, lambda index, result: done.append(index))
    assert [result["square"] for result in results] == [0, 1, "kept", 9, 16, 25]
    assert sorted(done) == list(range(6)) and done[0] == 2
    assert all(
        (result.get("pid", -1) == os.getpid()) == (processes == 1) for result in results if "pid" in result
    )
    assert json.loads((tmp_path / "5").read_text())["square"] == 25
    with pools.LocalPool(1) as pool:
        assert pool.run(die, tasks) == results


def test_a_dead_worker_is_one_line_and_what_is_done_stays(tmp_path):
    tasks = [(str(tmp_path / str(number)), number) for number in range(8)]
    with (
        pytest.raises(ClusterError, match=r"a worker process died.*the same command again") as caught,
        pools.LocalPool(2) as pool,
    ):
        pool.run(die, tasks)
    assert "\n" not in str(caught.value)
    assert len(os.listdir(tmp_path)) >= 1 and "3" not in os.listdir(tmp_path)


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
    assert contents(tmp_path / "remote") == contents(expected)
    assert build.build(remote).already_done
    with pytest.raises(UserError, match="holds other records"):
        build.build(dataclasses.replace(remote, seed=99))
