"""The event files of TensorBoard, with scalars, texts and pictures."""

from __future__ import annotations

import contextlib
import math
import os
import struct
import time
from collections.abc import Mapping

from etils import epy

with epy.lazy_imports():  # Only the process that writes TensorBoard events needs these modules.
    from tensorboardX import event_file_writer, record_writer, summary
    from tensorboardX.proto import event_pb2, summary_pb2


class Events:
    """The TensorBoard event files of one process, beginning with a step.

    Events are written in the caller's thread. The thread of tensorboardX's SummaryWriter ends at the first
    write that fails, and adding to its queue then blocks forever.

    Args:
        directory: the local directory of the event files.
        step: the number of steps done.
        largest: bytes of a file, after which another one is begun.

    Raises:
        ImportError: tensorboardX is not installed.
    """

    def __init__(self, directory: str, step: int, largest: float = math.inf):
        self._event_type, self._summary_type = event_pb2.Event, summary_pb2.Summary
        record_writer.directory_check(directory)
        # File names contain the time in seconds. The suffix prevents a run that is restarted within a second
        # from overwriting the events of the first process.
        self._prefix, self._suffix = os.path.join(directory, "events"), f".{os.getpid()}-{step}"
        self._file = event_file_writer.EventsWriter(self._prefix, self._suffix)
        self._largest, self._size, self._files = largest, 0, 1
        # makes TensorBoard hide the later steps of an earlier process, which may not have saved any
        purge = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(step + 1, session_log=purge)

    def add_scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Adds scalars, given as {tag: value}."""
        scalars = [self._summary_type.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(step, self._summary_type(value=scalars))

    def add_text(self, step: int, tag: str, text: str) -> None:
        """Adds a text in Markdown."""
        self._add(step, summary.text(tag, text))

    def add_image(self, step: int, tag: str, png: bytes) -> None:
        """Adds a picture, given as the content of a PNG file."""
        width, height = struct.unpack(">II", png[16:24])  # of the chunk IHDR, which is the first
        image = self._summary_type.Image(width=width, height=height, encoded_image_string=png)
        self._add(step, self._summary_type(value=[self._summary_type.Value(tag=tag, image=image)]))

    def flush(self) -> None:
        """Flushes the file."""
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def discard(self) -> None:
        """Closes the file without what cannot be written, which Python 3.13 would report at its end."""
        with contextlib.suppress(OSError):
            self._file.close()  # fails in its flush, before it closes
        with contextlib.suppress(OSError):
            self._file._py_recordio_writer.close()

    def _add(self, step: int, values) -> None:
        if self._size > self._largest:
            self._file.close()
            self._file = event_file_writer.EventsWriter(self._prefix, f"{self._suffix}-{self._files:06}")
            self._size, self._files = 0, self._files + 1
        self._write(step, summary=values)

    def _write(self, step: int, **content) -> None:
        event = self._event_type(wall_time=time.time(), step=step, **content)
        self._file.write_event(event)
        self._size += event.ByteSize()
