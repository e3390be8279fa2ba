"""The lock of a work directory, which admits one run at a time, from any host."""

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
from bert_jax.io import atomic, files, owners

_NAME = ".lock"


class Lock:
    """A lock on a directory, held from `acquire` to `release` through the file `directory/.lock`.

    The kernel holds a lock on the file and releases it when the process ends for any reason, so a run on the
    same host can take over from a killed run at once. For other hosts and object stores, the file contains a
    lease. The holder renews it from a thread, and other hosts wait until it expires.

    Args:
        directory: an existing directory, as a local path or a URL.
        lease: seconds without a renewal after which another host takes over the lock.
        log: called with one line if `acquire` has to wait.
    """

    def __init__(self, directory: files.PathLike, *, lease: float = 60.0, log=print):
        self._directory = os.fspath(directory)
        self._path = os.path.join(self._directory, _NAME)
        self._lease, self._interval, self._log = lease, lease / 6, log
        self._token = uuid.uuid4().hex
        self._file: int | None = None
        self._in_kernel = False  # whether this process holds the kernel's lock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lost_to: dict | None = None

    def acquire(self) -> None:
        """Acquires the lock, after waiting for the lease of a dead run on another host to expire.

        Raises:
            UserError: a live run holds the lock, or the directory cannot be written.
        """
        try:
            self._open()
            if holder := self._read():
                self._check_dead(holder)
            self._write()
        except OSError as error:
            self._close()
            message = f"{self._directory}: cannot be written ({error.strerror or error})"
            raise file_error(f"{message}; choose another --workdir", error) from error
        except BaseException:
            self._close()
            raise
        self._stop.clear()
        self._thread = threading.Thread(target=self._renew, name="work-directory-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises UserError if another run took over the lock while this one was suspended."""
        if self._lost_to is not None:
            raise UserError(
                f"{self._directory}: taken over by {_name(self._lost_to)} while this run was suspended; "
                "leave it to that run"
            )

    def release(self) -> None:
        """Releases the lock, if it is held."""
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join()
        self._thread = None
        with contextlib.suppress(OSError):
            if self._lost_to is None:
                self._write_text("")
        self._close()

    def _open(self) -> None:
        if files.is_remote(self._path):
            return
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._in_kernel = True
        except BlockingIOError:
            raise self._in_use(self._read() or {}) from None
        except OSError:
            pass  # The file system has no locks, so only the lease protects the directory.

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file, self._in_kernel = None, False

    def _check_dead(self, holder: dict) -> None:
        if self._in_kernel and holder.get("boot") == owners.boot_id():
            return  # The kernel would not have granted the lock to this process if the holder were alive.
        dead = owners.is_dead(holder.get("owner", ""))
        if dead is not None:
            if not dead:
                raise self._in_use(holder)
            return
        if holder.get("host") == socket.gethostname() and holder.get("boot") != owners.boot_id():
            return  # This host has been restarted, which ended the holder.
        # The clocks of the hosts may differ, so wait long enough to see at least two renewals of a live
        # holder.
        age = time.time() - holder.get("renewed", 0.0)
        wait = min(max(self._lease - age, 2.5 * self._interval), self._lease)
        self._log(f"waiting {wait:.0f} s to see whether {_name(holder)} still uses {self._directory}")
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline:
            time.sleep(min(self._interval / 4, 1.0))
            if self._read() != holder:
                raise self._in_use(self._read() or holder)

    def _in_use(self, holder: dict) -> UserError:
        return UserError(
            f"{self._directory}: in use by another run ({_name(holder)}); wait for it, stop it, or choose "
            "another --workdir"
        )

    def _renew(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                holder = self._read()
                if holder and holder.get("token") != self._token:
                    self._lost_to = holder
                    return
                self._write()
            except OSError:
                continue  # The lease lasts for several renewal intervals, so one may fail.

    def _read(self) -> dict | None:
        try:
            holder = json.loads(files.read(self._path))
        except (OSError, ValueError, RecursionError):
            return None
        return holder if isinstance(holder, dict) else None

    def _write(self) -> None:
        holder = {
            "host": socket.gethostname(),
            "boot": owners.boot_id(),
            "pid": os.getpid(),
            "owner": owners.token(),
            "token": self._token,
            "renewed": time.time(),
        }
        self._write_text(json.dumps(holder))

    def _write_text(self, text: str) -> None:
        if self._file is None:
            atomic.write_text(self._path, text, sync=False)
        else:
            # Written in place: replacing the file would leave the kernel's lock on the old one.
            os.pwrite(self._file, text.encode(), 0)
            os.ftruncate(self._file, len(text.encode()))


def _name(holder: dict) -> str:
    return f"process {holder.get('pid', '?')} on {holder.get('host', 'an unknown host')}"
