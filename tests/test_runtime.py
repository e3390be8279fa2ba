import os
import subprocess
import sys

import pytest

PROGRAM = (
    "import os, sys; from bert_jax import runtime; runtime.use_huge_pages(); "
    "print(os.getpid(), os.environ['GLIBC_TUNABLES'], sys.argv[1:])"
)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
@pytest.mark.parametrize(
    "given,expected", [(None, "glibc.malloc.hugetlb=1"), ("glibc.malloc.check=0", "glibc.malloc.check=0")]
)
def test_the_program_starts_again_once_with_its_arguments(given, expected):
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    if given is not None:
        environment["GLIBC_TUNABLES"] = given
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "a b", "--c"], env=environment, stdout=subprocess.PIPE, text=True
    )
    out, _ = process.communicate(timeout=60)
    assert out.split(maxsplit=2) == [
        str(process.pid),
        expected,
        "['a b', '--c']\n",
    ]  # the same process: signals still reach it
