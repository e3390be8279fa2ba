"""Addresses that flags give, and what is done with those that nobody knows."""

import socket

import pytest
from absl import flags as absl_flags

from bert_jax.commands import shared
from bert_jax.errors import ClusterError, UserError
from bert_jax.parallel import addresses, rendezvous
from bert_jax.settings.flags import Define

BAD = {
    "8476": "expected HOST:PORT",
    ":8476": "expected HOST:PORT",
    "": "expected HOST:PORT",
    "0.0.0.0": "expected HOST:PORT",
    "0.0.0.0:": "expected HOST:PORT",
    "0.0.0.0:0": "expected HOST:PORT",
    "0.0.0.0:65536": "expected HOST:PORT",
    "0.0.0.0:٨٤": "expected HOST:PORT",
    "0.0.0.0:-1": "expected HOST:PORT",
    "0.0.0.0:8²": "expected HOST:PORT",
    "host..internal:8476": "expected a host whose name has 1 to 63 characters between two dots",
    f"{64 * 'a'}:8476": "expected a host whose name has 1 to 63 characters between two dots",
}


@pytest.mark.parametrize("address", BAD)
def test_addresses_that_cannot_be(address):
    flag = "coordinator_address"
    values = absl_flags.FlagValues()
    shared.add_processes(Define(values))
    given = {"coordinator_address": "10.0.0.2:8476", "num_processes": "2", "process_id": "0", flag: address}
    values(["bert-jax", *(f"--{name}={value}" for name, value in given.items())])
    with pytest.raises(UserError) as error:
        shared.start_processes(values)
    assert str(error.value).startswith(f"--{flag}={address}: {BAD[address]}"), error.value
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "address, host",
    [
        ("10.0.0.2:8476", "10.0.0.2"),
        ("[fd00::1]:8476", "fd00::1"),
        ("node-1.internal.:8476", "node-1.internal."),
        ("knoten-ü:8476", "knoten-ü"),
    ],
)
def test_addresses_have_a_host_and_a_port(address, host):
    addresses.check(address, "coordinator_address")
    assert addresses.split(address) == (host, 8476)


def test_a_name_that_another_process_cannot_resolve_is_named():
    with pytest.raises(ClusterError, match=r"--coordinator_address=nowhere.invalid:1: the name .* resolved"):
        rendezvous.meet("nowhere.invalid:1", 2, 1, "", timeout=0.5)


def test_a_name_that_is_resolved_late_is_no_obstacle(monkeypatch):
    connect, seen = socket.create_connection, []

    def resolve(address, *timeout):
        seen.append(address)
        if len(seen) == 1:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return connect(address, *timeout)

    monkeypatch.setattr(socket, "create_connection", resolve)
    with pytest.raises(ClusterError, match=r"process 0 did not answer at 127\.0\.0\.1:1 within 1 s"):
        rendezvous.meet("127.0.0.1:1", 2, 1, "", timeout=1.0)
    assert len(seen) > 1
