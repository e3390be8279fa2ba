"""The server that starts commands to be killed."""

import pytest
from support import kills


@pytest.fixture(scope="module")
def server():
    with kills.Server() as started:
        yield started
