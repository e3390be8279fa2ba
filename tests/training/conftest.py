"""The uninterrupted run that interrupted ones are compared with."""

import pytest
from support import processes
from support.regression import Run


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """An uninterrupted run of 12 steps: (run, final state)."""
    run = Run(tmp_path_factory.mktemp("whole") / "run")
    with processes.quick_compilation():
        return run, run.fit()
