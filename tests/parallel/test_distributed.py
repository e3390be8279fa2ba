import os

import jax
import pytest
from jax._src import clusters

from bert_jax.errors import ClusterError, UserError
from bert_jax.parallel import distributed
from bert_jax.parallel.distributed import Place
from bert_jax.training.metrics import profiling


@pytest.fixture
def slurm(monkeypatch):
    """This process as one that srun started, by what JAX reads of it."""

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


def test_a_laptop_is_alone():
    assert distributed.find_place(environ={}) is None


def test_flags_come_before_the_environment(slurm):
    slurm()
    assert distributed.find_place("host:1234", 4, 2) == Place("host:1234", 4, 2)
    assert distributed.find_place("host:1234", 1, 0) is None
    assert distributed.find_place(detect=False) is None


@pytest.mark.parametrize(
    "environ, devices",
    [
        ({"SLURM_STEP_NUM_NODES": "2"}, (3,)),
        ({"SLURM_STEP_NUM_NODES": "8"}, None),  # a process a node has all of its GPUs
        ({"SLURM_NNODES": "8"}, None),
        ({"SLURM_STEP_NUM_NODES": "2", "CUDA_VISIBLE_DEVICES": "0"}, None),  # Slurm gave each its own
        ({"SLURM_STEP_NUM_NODES": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, (3,)),
    ],
)
def test_slurm_tells(slurm, environ, devices):
    place = distributed.find_place(environ=slurm(**environ))
    host, port = place.coordinator.split(":")
    assert (host, place.processes, place.process, place.local_devices) == ("gpu03", 8, 3, devices)
    assert 61440 <= int(port) < 65536


def test_one_task_of_slurm_is_alone(slurm):
    assert distributed.find_place(environ=slurm(tasks=1, task=0, local=0)) is None


def test_open_mpi_tells(monkeypatch):
    for name, value in (
        ("OMPI_MCA_orte_hnp_uri", "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_RANK", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
    ):
        monkeypatch.setenv(name, value)
    place = distributed.find_place(environ={})
    assert place.coordinator.startswith("10.96.0.1:")
    assert (place.processes, place.process, place.local_devices) == (4, 2, (0,))


def test_a_detection_that_fails_lets_a_single_process_run_with_a_warning(monkeypatch, capfd):
    def detect(*unused):
        raise RuntimeError("no permission to list pods")

    monkeypatch.setattr(clusters.ClusterEnv, "auto_detect_unset_distributed_params", detect)
    assert distributed.find_place(environ={}) is None
    printed = capfd.readouterr().err
    assert "no permission to list pods" in printed and "--distributed=off" in printed


def test_variables_of_slurm_outside_of_srun_do_not_make_a_cluster(slurm, capfd):
    """As in the script of `sbatch`, or in a shell of `salloc`, where 8 tasks could be started."""
    environ = slurm()
    del environ["SLURM_STEP_NODELIST"]
    assert distributed.find_place(environ=environ) is None
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "given, message",
    [
        (("a:1", None, None), "--num_processes and --process_id are missing"),
        ((None, 2, 1), "--coordinator_address is missing"),
        (("a", 2, 1), "--coordinator_address=a: expected HOST:PORT"),
        (("a:0", 2, 1), "expected HOST:PORT"),
        (("a:99999", 2, 1), "expected HOST:PORT"),
        (("a:1", 2, 2), "--process_id=2 of --num_processes=2: expected a number from 0 to 1"),
        (("a:1", 2, -1), "expected a number from 0 to 1"),
        (("a:1", 0, 0), "--num_processes=0"),
    ],
)
def test_places_that_cannot_be(given, message):
    with pytest.raises(UserError, match=message):
        distributed.find_place(*given)


def addresses(monkeypatch, found):
    monkeypatch.setattr(distributed.socket, "getaddrinfo", lambda *a, **k: [(0, 0, 0, "", (found, 0))])


def test_process_0_listens_on_the_coordinators_address_alone(monkeypatch):
    assert distributed.bind_host("127.0.0.1:1") == "127.0.0.1"
    addresses(monkeypatch, "10.1.2.3")
    assert distributed.bind_host("node1:1") == "10.1.2.3"
    addresses(monkeypatch, "fd00::1")
    assert distributed.bind_host("[fd00::1]:1") == "fd00::1"


def test_a_name_that_its_own_machine_takes_for_loopback(monkeypatch):
    addresses(monkeypatch, "127.0.1.1")  # as Debian's /etc/hosts has it
    monkeypatch.setattr(distributed.socket, "socket", lambda *a: _Route("10.1.2.3"))
    assert distributed.bind_host("node1:1") == "10.1.2.3"


class _Route:
    def __init__(self, own):
        self._own = own

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        pass

    def connect(self, address):
        pass

    def getsockname(self):
        return self._own, 0


def test_a_coordinator_that_nobody_knows():
    with pytest.raises(ClusterError, match=r"nowhere.invalid cannot be resolved"):
        distributed.bind_host("nowhere.invalid:1")


def test_one_process_returns_as_ever():
    assert not distributed.is_one_of_several()
    distributed.leave(1)


def test_lines_of_other_processes_have_their_number(monkeypatch, capfd):
    said = []
    distributed.log_of_each(said.append)("alone")
    for process in (0, 3):
        monkeypatch.setattr(jax, "process_count", lambda: 4)
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        distributed.log_of_each(said.append)(f"of {process}")
    assert said == ["alone", "of 0"]
    assert capfd.readouterr() == ("", "bert-jax: process 3 of 4: of 3\n")


@pytest.mark.parametrize("text, steps", [("", None), ("3:3", (3, 3)), ("100:105", (100, 105))])
def test_steps_of_a_profile(text, steps):
    assert profiling.parse_steps(text) == steps


@pytest.mark.parametrize("text", ["3", "5:3", "0:1", "a:b", "-1:3"])
def test_steps_that_cannot_be_profiled(text):
    with pytest.raises(UserError, match=f"--profile_steps={text}: expected FIRST:LAST"):
        profiling.parse_steps(text)
