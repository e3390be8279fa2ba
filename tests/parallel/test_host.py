"""What the host offers: cores, memory that is kept between steps, and devices."""

import os
import subprocess
import sys

import pytest

from bert_jax.parallel import host


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
@pytest.mark.parametrize(
    "given, expected", [({}, "glibc.malloc.hugetlb=1"), ({"GLIBC_TUNABLES": "x=1"}, "x=1")]
)
def test_the_program_restarts_once_in_its_process_with_its_arguments(given, expected):
    program = (
        "import os, sys; from bert_jax.parallel import host; host.use_huge_pages(); "
        "print(os.getpid(), os.environ['GLIBC_TUNABLES'], sys.argv[1:])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    environment |= given | {"JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(
        [sys.executable, "-c", program, "a b", "--c"], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.read() == f"{process.pid} {expected} ['a b', '--c']\n"


@pytest.mark.parametrize("content, expected", [("250000 100000", 2.5), ("max 100000", 64)])
def test_the_quota_of_a_container(tmp_path, monkeypatch, content, expected):
    (tmp_path / "cpu.max").write_text(content)
    monkeypatch.setattr(host, "_CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    assert host.usable_cores() == expected
