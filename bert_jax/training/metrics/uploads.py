"""Uploads the files of metrics of a run whose work directory is a URL."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable

from bert_jax.io import atomic, files

LARGEST = 1 << 20  # bytes of a file, after which another one is begun: object stores cannot append


class Uploads:
    """Copies the files of a local directory to a remote one, in a thread, whenever they have grown.

    An upload that fails is logged. Later uploads include what it lacks, because the local files are kept.

    Args:
        source: the local directory, whose files are only appended to.
        target: the URL of the remote directory.
        log: called with one line, in the thread, for an upload that fails.
    """

    def __init__(self, source: str, target: str, log: Callable[[str], None]):
        self._source, self._target, self._log = source, target, log
        self._sizes: dict[str, int] = {}  # of the files that are uploaded
        self._error = ""  # the last one that was logged
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="metrics-upload")
        self._last: concurrent.futures.Future[None] | None = None

    def start(self) -> None:
        """Starts to upload all new content, and does not wait for it."""
        if self._last is None or self._last.running() or self._last.done():  # else it has not begun
            self._last = self._thread.submit(self._try)

    def close(self) -> None:
        """Uploads all new content, and waits for it.

        Raises:
            OSError: the upload fails.
        """
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._upload()

    def _try(self) -> None:
        try:
            self._upload()
            self._error = ""
        except Exception as error:  # The thread of the run must not depend on the network.
            if str(error) != self._error:
                self._error = str(error)
                self._log(f"warning: {self._target}: uploading the metrics failed ({error}); it is repeated")

    def _upload(self) -> None:
        for name in files.walk(self._source):
            path, target = os.path.join(self._source, name), os.path.join(self._target, name)
            if files.size(path) != self._sizes.get(name):
                content = files.read(path)  # at once, since the file may grow
                files.make_directory(files.parent(target))
                atomic.write_file(target, content)
                self._sizes[name] = len(content)
