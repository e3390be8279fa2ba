"""What numba compiled is kept where it can be, and where it cannot, only time is lost."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
from bert_jax.data.google.numba_jit import compiled

@compiled("int64(int64)")
def twice(number):
    return 2 * number

assert twice(21) == 42
print(*(len(hits) for hits in (twice.compile().stats.cache_hits, twice.compile().stats.cache_misses)))
"""


@pytest.fixture
def run(tmp_path):
    def run_program(**environment):
        (tmp_path / "program.py").write_text(PROGRAM)
        path = os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
        return subprocess.run(
            [sys.executable, str(tmp_path / "program.py")],
            env=os.environ | {"PYTHONPATH": path} | environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()

    return run_program


@pytest.mark.long
def test_the_second_process_loads_what_the_first_compiled(run, tmp_path):
    cache = str(tmp_path / "cache")
    assert run(NUMBA_CACHE_DIR=cache) == ["0", "1"]
    assert run(NUMBA_CACHE_DIR=cache) == ["1", "0"]


@pytest.mark.long
def test_what_was_kept_and_is_torn_is_compiled_again(run, tmp_path):
    assert run(NUMBA_CACHE_DIR=str(tmp_path / "cache")) == ["0", "1"]
    kept = [*tmp_path.glob("cache/**/*.nbc"), *tmp_path.glob("cache/**/*.nbi")]
    for path in kept:
        path.write_bytes(path.read_bytes()[:99])
    assert len(kept) == 2 and run(NUMBA_CACHE_DIR=str(tmp_path / "cache")) == ["0", "1"]


@pytest.mark.long
def test_without_a_place_to_keep_it(run, tmp_path):
    (tmp_path / "__pycache__").touch()  # in place of a folder
    nowhere = os.path.join(os.devnull, "cache")
    for _ in range(2):
        assert run(NUMBA_CACHE_DIR=nowhere, XDG_CACHE_HOME=nowhere, HOME=nowhere) == ["0", "1"]
