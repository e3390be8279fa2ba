"""Whether the process that made a file is dead."""

import os

from bert_jax.io import owners


def of_process(pid, start="1"):
    return f"a.tmp-{owners.machine()}-{pid}-{start}-00"


def test_this_process_is_alive_and_an_earlier_one_of_its_id_is_not():
    assert owners.is_dead(f"a.tmp-{owners.token()}-00") is False
    if owners.process_start(os.getpid()) != "unknown":
        assert owners.is_dead(of_process(os.getpid(), "1")) is True


def test_a_hidden_process_of_another_user_is_alive(monkeypatch):
    """With hidepid, /proc does not have it, and a signal is not permitted."""

    def refuse(pid, number):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", refuse)
    assert owners.is_dead(of_process((1 << 22) + 1)) is False


def test_a_process_that_does_not_exist_is_dead():
    assert owners.is_dead(of_process((1 << 22) + 1)) is True
    assert owners.is_dead("a.tmp-0123456789ab-1-1-00") is None and owners.is_dead("a") is None
