"""Addresses of the form HOST:PORT."""

from __future__ import annotations

import re

from bert_jax.errors import ClusterError, UserError

_PORT = re.compile("[0-9]{1,5}")


def check(address: str, flag: str) -> None:
    """Checks the form of an address; its host may be a name, an IPv4 address or an IPv6 address in brackets.

    Args:
        address: the value of the flag.
        flag: the name of the flag, for the message.

    Raises:
        UserError: the address is not HOST:PORT, the port is not a number from 1 to 65535, or a part of the
            host's name is empty or longer than 63 characters.
    """
    host, _, port = address.rpartition(":")
    if not host or not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise UserError(f"--{flag}={address}: expected HOST:PORT, like 10.0.0.2:8476")
    try:
        host.encode("idna")  # as the resolver of names encodes it
    except UnicodeError:
        raise UserError(
            f"--{flag}={address}: expected a host whose name has 1 to 63 characters between two dots, like "
            f"node1.internal:{port}"
        ) from None


def split(address: str) -> tuple[str, int]:
    """Returns the host of an address, without brackets, and its port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def unresolved(coordinator: str, error: OSError) -> ClusterError:
    """Returns the error that the name in the coordinator's address is unknown to the resolver of names."""
    host, why = split(coordinator)[0], error.strerror or error
    return ClusterError(f"--coordinator_address={coordinator}: the name {host} cannot be resolved ({why})")
