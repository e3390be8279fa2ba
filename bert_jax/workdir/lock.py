"""The lock of a work directory, which admits one run at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
import uuid

from bert_jax.errors import UserError, file_error
from bert_jax.io import files, remote

_NAME = ".lock"


class Lock:
    """A lock on a directory, held from `acquire` to `release` through the file `directory/.lock`.

    The kernel locks a local file, also for the other hosts of a network file system, and releases it when the
    process ends for any reason. In an object store, and if the file system has no locks, the file exists
    while the lock is held, and is created only if it does not exist. The holder renews it from a thread, and
    another run takes it over after `lease` seconds without a renewal. `log` is called with one line if
    `acquire` has to wait.
    """

    def __init__(self, directory: files.PathLike, *, lease: float = 60.0, log=print):
        self._directory = os.fspath(directory)
        self._path = os.path.join(self._directory, _NAME)
        self._lease, self._interval, self._log = lease, lease / 6, log
        self._token = uuid.uuid4().hex
        self._file: int | None = None  # with the kernel's lock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None  # renews the lease
        self._lost_to: dict | None = None

    def acquire(self) -> None:
        """Acquires the lock, after waiting for the lease of a dead run to expire.

        It raises UserError if a live run holds the lock, or the directory cannot be written.
        """
        try:
            files.make_directory(self._directory)
            if not self._lock_in_kernel():
                self._take_lease()
        except OSError as error:
            message = f"--workdir={self._directory}: cannot be written ({error.strerror or error})"
            raise file_error(message, error) from error

    def check(self) -> None:
        """Raises UserError if another run took over the lock while this one was suspended."""
        if self._lost_to is not None:
            holder = _name(self._lost_to)
            raise UserError(f"{self._directory}: {holder} took it over while this run was suspended")

    def release(self) -> None:
        """Releases the lock, if it is held."""
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = None
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
            if self._lost_to is None:
                with contextlib.suppress(OSError):
                    files.remove(self._path)

    def _lock_in_kernel(self) -> bool:
        if files.is_remote(self._path):
            return False
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(file, content := self._content(), 0)
            os.ftruncate(file, len(content))
        except BlockingIOError:
            os.close(file)
            raise self._in_use(self._read()) from None
        except OSError:  # The file system has no locks.
            os.close(file)
            return False
        self._file = file
        return True

    def _take_lease(self) -> None:
        if files.exists(self._path):
            self._wait_for_end(self._read())
            files.remove(self._path, missing_ok=True)
        try:
            self._write(is_new=True)
        except FileExistsError:
            raise self._in_use(self._read()) from None
        self._stop.clear()
        self._thread = threading.Thread(target=self._renew, name="work-directory-lease", daemon=True)
        self._thread.start()

    def _wait_for_end(self, holder: dict) -> None:
        """Raises UserError if the holder is alive."""
        if not holder:
            return
        # The clock of its host may differ, so wait for at least two renewals.
        age = time.time() - holder.get("renewed", 0.0)
        wait = min(max(self._lease - age, 2.5 * self._interval), self._lease)
        self._log(f"waiting {wait:.0f} s to see whether {_name(holder)} still uses {self._directory}")
        deadline = time.monotonic() + wait
        while self._read() == holder and time.monotonic() < deadline:
            time.sleep(min(self._interval / 4, 1.0))
        if self._read() != holder:
            raise self._in_use(holder)

    def _renew(self) -> None:
        while not self._stop.wait(self._interval):
            with contextlib.suppress(OSError):  # The lease lasts for several renewals, so one may fail.
                if (holder := self._read()) and holder.get("token") != self._token:
                    self._lost_to = holder
                    return
                self._write()

    def _in_use(self, holder: dict) -> UserError:
        return UserError(f"--workdir={self._directory}: in use by another run, {_name(holder)}")

    def _read(self) -> dict:
        try:
            holder = json.loads(files.read(self._path))
        except (OSError, ValueError, RecursionError):
            return {}
        return holder if isinstance(holder, dict) else {}

    def _content(self) -> bytes:
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "token": self._token}
        return json.dumps(holder | {"renewed": time.time()}).encode()

    def _write(self, is_new: bool = False) -> None:
        if files.is_remote(self._path):
            with remote.opened(self._path) as (system, bare):
                # gcsfs and s3fs ask the store to create the object only if it does not exist.
                system.pipe_file(bare, self._content(), mode="create" if is_new else "overwrite")
        else:
            with open(self._path, "xb" if is_new else "wb") as file:
                file.write(self._content())


def _name(holder: dict) -> str:
    return f"process {holder.get('pid', '?')} on {holder.get('host', 'an unknown host')}"
