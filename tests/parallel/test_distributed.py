"""The start of several processes: their ranks, and a rendezvous of threads; see also test_processes.py."""

import concurrent.futures
import os
import socket

import pytest
from support import processes

from bert_jax.errors import ClusterError, UserError
from bert_jax.parallel import distributed
from bert_jax.parallel.distributed import ProcessInfo


@pytest.fixture
def slurm(monkeypatch):
    """Sets the variables that JAX reads, as if srun had started this process."""

    def start(tasks=8, task=3, local=3, **others):
        environ = {
            "SLURM_JOB_ID": "4242",
            "SLURM_STEP_NODELIST": "gpu[03-04]",
            "SLURM_NTASKS": str(tasks),
            "SLURM_PROCID": str(task),
            "SLURM_LOCALID": str(local),
        }
        for name, value in (environ | others).items():
            monkeypatch.setenv(name, value)
        return os.environ

    return start


def test_flags_come_before_the_environment(slurm):
    slurm()
    assert distributed.process_info("host:1234", 4, 2) == ProcessInfo("host:1234", 4, 2)
    assert distributed.process_info("host:1234", 1, 0) is None
    assert distributed.process_info(detect=False) is None


@pytest.mark.parametrize(
    "environ, devices",
    [
        ({"SLURM_STEP_NUM_NODES": "2"}, (3,)),
        ({"SLURM_STEP_NUM_NODES": "8"}, None),  # the only process of a node gets all its GPUs
        ({"SLURM_NNODES": "8"}, None),
        ({"SLURM_STEP_NUM_NODES": "2", "CUDA_VISIBLE_DEVICES": "0"}, None),  # Slurm assigned the GPUs
        ({"SLURM_STEP_NUM_NODES": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, (3,)),
    ],
)
def test_slurm_tells(slurm, environ, devices):
    place = distributed.process_info(environ=slurm(**environ))
    host, port = place.coordinator.split(":")
    assert (host, place.processes, place.process, place.local_devices) == ("gpu03", 8, 3, devices)
    assert 61440 <= int(port) < 65536


@pytest.fixture
def port():
    return processes.free_port()


def meet(port, process, processes, timeout=20.0, log=print):
    info = ProcessInfo(f"127.0.0.1:{port}", processes, process)
    distributed.rendezvous(info, timeout, log)


def outcomes(port, numbers, processes, timeout=20.0):
    """Returns the outcome of each process: None or its error."""

    def one(number):
        try:
            return meet(port, number, processes, timeout)
        except (ClusterError, UserError) as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(len(numbers)) as pool:
        return list(pool.map(one, numbers))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
def test_all_meet_in_any_order_and_leave_the_port(port, order):
    assert outcomes(port, order, 4) == [None] * 4
    assert outcomes(port, order, 4) == [None] * 4  # immediately afterwards, on the same port


def test_everyone_learns_who_is_missing(port):
    found = outcomes(port, (0, 2), 5, timeout=1.0)
    assert [type(each) for each in found] == [ClusterError] * 2
    for error in found:
        assert "processes 1, 3, 4 of 5 did not connect within 1 s" in str(error)


def test_another_number_of_processes(port):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        host = pool.submit(meet, port, 0, 2)
        with pytest.raises(UserError, match=r"process 1 on .* has --num_processes=8, process 0 has 2"):
            meet(port, 1, 8)
        with pytest.raises(UserError, match="process 0 has 2"):
            host.result()


def test_the_port_is_taken(port, monkeypatch):
    monkeypatch.setattr(distributed, "_PORT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(UserError, match=f"cannot listen on port {port}"):
            meet(port, 0, 2)
