"""Tasks on processes: results in order and kept, a dead worker told in one line, nothing left running."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from bert_jax.errors import ClusterError
from data_pipelines import pools

ROOT = Path(__file__).resolve().parents[3]


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
