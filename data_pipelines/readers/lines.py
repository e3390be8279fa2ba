"""Reads the lines of a byte range of a file."""

import collections
import contextlib
import dataclasses
from collections.abc import Iterator
from typing import BinaryIO

from bert_jax.errors import UserError
from bert_jax.io.compression import opened
from data_pipelines.readers.documents import MAX_LINE_BYTES, Range

MAGIC = {
    b"\x1f\x8b": ".gz",
    b"BZh": ".bz2",
    b"\xfd7zXZ\x00": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"PK\x03\x04": ".zip",
}
HEAD_BYTES = 512  # of a file that `check_head` needs
BOM = b"\xef\xbb\xbf"
_TAR = slice(257, 262), b"ustar"  # where the header of an archive has its magic (POSIX.1)
# What files of other formats begin with, and what to do with them.
_OTHERS = {
    b"%PDF-": ("a PDF document", "plain text: extract it, for example with pdftotext"),
    b"PAR1\x15": ("a Parquet file, which its name does not show", "plain text, or .parquet at its end"),
    b"ARROW1\0\0": ("an Arrow file, which its name does not show", "plain text, or .arrow at its end"),
}
WHITESPACE_BYTES = bytes({byte for c in range(0x3001) if chr(c).isspace() for byte in chr(c).encode()})


def check_head(head: bytes, path: str) -> None:
    """Raises UserError if the beginning of a file shows that it is not plain text in UTF-8.

    Args:
        head: the first HEAD_BYTES of the file, after decompression; fewer of a shorter file.
        path: the name of the file.
    """
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError(f"{path} is UTF-16; expected UTF-8: convert it with `iconv -f UTF-16 -t UTF-8`")
    for magic, kind in MAGIC.items():
        if head.startswith(magic):
            raise UserError(
                f"{path} is compressed ({kind}) text or an archive, which its name does not show; "
                "expected plain text, or .gz, .bz2, .xz or .zst at the end of the name"
            )
    for magic, (found, expected) in _OTHERS.items():
        if head.startswith(magic):
            raise UserError(f"{path} is {found}; expected {expected}")
    place, magic = _TAR
    if head[place] == magic:
        raise UserError(
            f"{path} is a tar archive, which its name does not show; expected plain text: unpack it with "
            "`tar -xf`"
        )


@contextlib.contextmanager
def open_lines(
    range_: Range, counts: collections.Counter[str], longest: int = MAX_LINE_BYTES
) -> Iterator["Lines"]:
    """Opens the lines of a range; on exit, adds the number of bytes read to `counts`."""
    with opened(range_.path) as file:
        lines = Lines(file, range_, counts, longest)
        yield lines
        counts["bytes"] += lines.offset - lines.first


@dataclasses.dataclass(slots=True)
class Line:
    """A line, or a piece of a line that is too long.

    Attributes:
        offset: its offset in the file, in bytes.
        data: its bytes.
        begins: whether it is the beginning of a line.
        ends: whether it is the end of a line.
    """

    offset: int
    data: bytes
    begins: bool
    ends: bool


class Lines:
    """Iterates over the lines that begin at or after the start of a range, until the end of the file."""

    def __init__(
        self,
        file: BinaryIO,
        range_: Range,
        counts: collections.Counter[str],
        longest: int = MAX_LINE_BYTES,
    ):
        self._file, self._counts, self._longest = file, counts, longest
        head = file.read(HEAD_BYTES)
        check_head(head, range_.path)
        self.data_start = len(BOM) if head.startswith(BOM) else 0
        self.first = self.offset = self._seek_line(max(range_.start, self.data_start), head)
        self._carry = b""

    def _seek_line(self, offset: int, head: bytes) -> int:
        """Moves to the first line that begins at or after an offset, and returns its offset."""
        if offset == self.data_start:
            self._file.seek(offset)
            return offset
        self._file.seek(offset - 1)
        offset -= 1
        while piece := self._file.readline(MAX_LINE_BYTES):
            offset += len(piece)
            if piece.endswith(b"\n"):
                break
        return offset

    def previous_is_blank(self) -> bool:
        """Returns whether the line before the first one is blank or missing.

        It must be called before the first line is read.
        """
        here, end = self.offset, self.offset - 1
        blank, tail, step = True, b"", 256
        while blank and end > self.data_start and b"\n" not in tail and len(tail) <= MAX_LINE_BYTES:
            begin, step = max(self.data_start, end - step), 2 * step
            self._file.seek(begin)
            tail = self._file.read(end - begin) + tail
            # A byte that is not part of whitespace ends the search, which in most files happens right away.
            blank = not tail.rpartition(b"\n")[2].translate(None, WHITESPACE_BYTES)
            end = begin
        self._file.seek(here)
        line = tail.rpartition(b"\n")[2]
        return blank and len(line) < MAX_LINE_BYTES and not line.decode("utf-8", "replace").strip()

    def __iter__(self) -> Iterator[Line]:
        begins = True
        while data := self._carry + self._file.readline(self._longest - len(self._carry)):
            self._carry = b""
            ends = data.endswith(b"\n") or len(data) < self._longest
            if not ends:
                data, self._carry = cut_bytes(data)
                self._counts["long_lines"] += begins
            offset = self.offset
            self.offset += len(data)
            yield Line(offset, data, begins, ends)
            begins = ends


def cut_bytes(data: bytes) -> tuple[bytes, bytes]:
    """Splits a piece of a line near its end: after a space if there is one, and never inside a character."""
    place = data.rfind(b" ", len(data) - 4096) + 1
    if not place:
        place = len(data)
        while place > len(data) - 4 and data[place - 1] & 0xC0 == 0x80:
            place -= 1
        if place > len(data) - 4 and data[place - 1] & 0xC0 == 0xC0:
            place -= 1
    return data[:place], data[place:]
