"""Commands in processes that are cheap to start, to be killed at chosen moments.

As a program it is a server that has imported what the commands need, and forks a process for each that it
is asked for: the seconds of importing JAX are spent once. The moments in which a command starts, which this
leaves out, are tested with processes of their own.
"""

import contextlib
import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from support import xla_flags

import bert_jax
from bert_jax import cli
from bert_jax.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "GLIBC_TUNABLES": "",  # a process that was forked must not start its program again
    "JAX_PLATFORMS": "cpu",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "XLA_FLAGS": xla_flags.with_devices(1),
    "PYTHONWARNINGS": "ignore::RuntimeWarning",
}


class Server:
    """Starts `bert-jax` by forking; one process at a time."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "support.kills"],
            cwd=ROOT,
            env=os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests")))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._pid: int | None = None
        self._read()  # it is ready

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        with contextlib.suppress(ProcessLookupError):
            if self._pid:
                os.kill(self._pid, signal.SIGKILL)
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def start(self, arguments, output):
        """Starts a command; what it prints goes to the file `output`."""
        self._process.stdin.write(json.dumps([list(map(str, arguments)), str(output)]) + "\n")
        self._process.stdin.flush()
        self._pid = self._read()

    def kill(self, number=signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def is_running(self):
        try:
            return Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def wait(self):
        """The exit code, as of subprocess: the signal's number, negative, of one that was killed."""
        self._process.stdin.write("null\n")
        self._process.stdin.flush()
        return self._read()

    def run(self, arguments, output):
        self.start(arguments, output)
        return self.wait()

    def _read(self):
        line = self._process.stdout.readline()
        assert line, "the server has ended"
        return json.loads(line)


def _serve():
    # All that commands import as they run. A fork of it is not disturbed when the files change.
    for module in pkgutil.walk_packages(bert_jax.__path__, "bert_jax."):
        if not module.name.startswith(("bert_jax.__main__", "bert_jax.configs")):
            with contextlib.suppress(ImportError, UserError):  # of an extra
                importlib.import_module(module.name)
    others = "data_pipelines.build data_pipelines.vocabulary rich.progress tensorboardX.event_file_writer"
    for name in others.split():
        importlib.import_module(name)

    print(0, flush=True)
    pid = 0
    for line in sys.stdin:
        request = json.loads(line)
        if request is None:
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
            continue
        arguments, output = request
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = ["bert-jax", *arguments]
        sys.exit(cli.main())


def wait_until(condition, running, seconds=300):
    """Whether the condition came true before the process ended."""
    deadline = time.monotonic() + seconds
    while not condition():
        if not running():
            return False
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.002)
    return True


if __name__ == "__main__":
    _serve()
