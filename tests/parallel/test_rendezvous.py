"""The rendezvous of processes, as threads of one; test_processes.py has real processes."""

import concurrent.futures
import json
import socket
import threading
import time

import pytest
from support import processes

from bert_jax.errors import ClusterError, Preempted, UserError
from bert_jax.parallel import rendezvous


@pytest.fixture
def port():
    return processes.free_port()


def meet(port, process, processes, timeout=20.0, log=print):
    address = f"127.0.0.1:{port}"
    rendezvous.meet(address, processes, process, address, timeout, log)


def outcomes(port, numbers, processes, timeout=20.0):
    """What each process got: None, or its error."""

    def one(number):
        try:
            return meet(port, number, processes, timeout)
        except (ClusterError, UserError, Preempted) as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(len(numbers)) as pool:
        return list(pool.map(one, numbers))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
def test_all_meet_in_any_order_and_leave_the_port(port, order):
    assert outcomes(port, order, 4) == [None] * 4
    assert outcomes(port, order, 4) == [None] * 4  # at once, on the same port


def test_process_0_may_come_last(port):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        early = pool.submit(meet, port, 1, 2)
        time.sleep(0.5)
        meet(port, 0, 2)
        early.result()


def test_everyone_learns_who_is_missing(port):
    found = outcomes(port, (0, 2), 5, timeout=1.0)
    assert [type(each) for each in found] == [ClusterError] * 2
    for error in found:
        assert "processes 1, 3, 4 of 5 did not connect within 1 s" in str(error)


def test_process_0_is_missing(port):
    began = time.monotonic()
    with pytest.raises(ClusterError, match=f"process 0 did not answer at 127.0.0.1:{port} within 0.5 s"):
        meet(port, 1, 2, timeout=0.5)
    assert time.monotonic() - began < 15


@pytest.mark.long
def test_process_0_logs_the_missing_processes_and_the_others_wait_with_it(port, monkeypatch):
    monkeypatch.setattr(rendezvous, "_LOG_EVERY", 0.3)
    lines = []
    with concurrent.futures.ThreadPoolExecutor() as pool:
        host = pool.submit(meet, port, 0, 3, 2.0, lines.append)
        for waiting in (pool.submit(meet, port, 1, 3, 0.5), host):
            with pytest.raises(ClusterError, match="process 2 of 3 did not connect within 2 s"):
                waiting.result()
    assert lines[-1] == "waiting for process 2 of 3 processes"


def test_two_with_one_number(port):
    found = outcomes(port, (0, 1, 1), 3)
    assert all("were started as process 1" in str(error) for error in found)
    assert {type(error) for error in found} == {UserError}


def test_another_number_of_processes(port):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        host = pool.submit(meet, port, 0, 2)
        with pytest.raises(UserError, match=r"process 1 on .* was started as one of 8 processes"):
            meet(port, 1, 8)
        with pytest.raises(UserError, match="process 0 as one of 2"):
            host.result()


def test_the_port_is_taken(port, monkeypatch):
    monkeypatch.setattr(rendezvous, "_PORT_TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{port}"):
            meet(port, 0, 2)


def test_a_port_that_is_given_up_in_time(port):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with socket.create_server(("127.0.0.1", port)):
            host = pool.submit(meet, port, 0, 2)
            time.sleep(0.5)
        meet(port, 1, 2)
        host.result()


def connect(port):
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 5)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 5000,
        b"[1, 2]\n",
        b'["x", 2, "host"]\n',
        b'{"process": 1}\n',
        b"[" * 4000 + b"\n",
    ],
    ids=["nothing", "http", "zeros", "list", "word", "no_host", "brackets"],
)
def test_foreign_programs_are_ignored(port, sent):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        host = pool.submit(meet, port, 0, 2)
        with connect(port) as foreign:
            if sent:
                foreign.sendall(sent)
            meet(port, 1, 2)
            host.result()


def test_one_that_left_may_come_again(port):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        host = pool.submit(meet, port, 0, 3)
        with connect(port) as first:
            first.sendall(json.dumps([1, 3, "x"]).encode() + b"\n")
        time.sleep(0.3)
        again = pool.submit(meet, port, 1, 3)
        meet(port, 2, 3)
        assert again.result() is None and host.result() is None


@pytest.mark.long
def test_one_that_is_preempted_stops_all(port):
    results = []

    def wait(number):
        try:
            meet(port, number, 4)
        except Preempted as stop:
            results.append(str(stop))

    threads = [threading.Thread(target=wait, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    with connect(port) as leaving:
        hello = json.dumps([2, 4, "x"]).encode()
        leaving.sendall(hello + b"\n")
        time.sleep(0.3)
        leaving.sendall(json.dumps(["Preempted", "it was stopped"]).encode() + b"\n")
        for thread in threads:
            thread.join(10)
    assert len(results) == 2 and all("was stopped" in line for line in results)
