"""Reads texts from a file and writes their features to another one, one text at a time."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.inference import text_lines
from bert_jax.inference.embedding import Embedder, Features
from bert_jax.inference.engine import Text
from bert_jax.io import atomic, checks, compression, files

FORMATS = (".npy", ".safetensors", ".jsonl")
JSONL_FORMATS = ("bert_jax", "google")
_MOST_BYTES_TO_COUNT = 2 << 30  # counting the lines of a file of this size takes a second or two


class Texts:
    """Iterates over the texts of a file, including blank ones, so that results correspond to lines.

    Blank lines of a file of JSON objects are no texts.

    Args:
        path: the path of a file with one text per line, or with one JSON object per line if the name ends in
            .jsonl; "-" for lines from standard input. Files with the suffix .gz, .bz2, .xz or .zst are
            decompressed.
        pairs: whether each line has two texts, separated by a tab.
        text_a: the field of the text in .jsonl files.
        text_b: the field of the second text of a pair in .jsonl files; "" for single texts.

    Attributes:
        blank: the number of texts so far that are empty or only whitespace.

    Raises:
        UserError: on construction, the file does not exist or has an unsupported format; during iteration, a
            line is malformed. The message gives its number.
    """

    def __init__(self, path: str, pairs: bool = False, text_a: str = "text", text_b: str = ""):
        self.path, self.pairs, self.blank = path, pairs, 0
        self._fields = [text_a, text_b] if text_b else [text_a]
        name = compression.strip_suffix(path).lower()
        self._json = text_lines.has_objects(path)
        if pairs and self._json:
            raise UserError(f"--pairs is for lines with a tab; for pairs in {path}, give --text_b=FIELD")
        if text_b and not self._json:
            raise UserError(f"--text_b is for .jsonl; for pairs in {path}, use a tab and give --pairs")
        if name.endswith(".csv") or (name.endswith(".tsv") and not pairs):
            raise UserError(
                f"--input={path}: expected one text per line, .jsonl, or with --pairs two texts per line, "
                "separated by a tab"
            )
        text_lines.check(path, "--input")

    def __iter__(self) -> Iterator[Text]:
        for place, line in text_lines.read(self.path):
            text = self._text(line, place)
            self.blank += not (text if isinstance(text, str) else "".join(text)).strip()
            yield text

    def count(self) -> int | None:
        """Returns the largest number of texts that the file can have; None as `count_lines`."""
        return count_lines(self.path)

    def _text(self, line: str, place: str) -> Text:
        if self._json:
            row = text_lines.parse(line, place)
            given = zip(self._fields, ("--text_a", "--text_b"), strict=False)
            found = [text_lines.text_of(row, field, flag, place) for field, flag in given]
            return found[0] if len(found) == 1 else (found[0], found[1])
        if not self.pairs:
            return line
        parts = line.split("\t")
        if len(parts) != 2:
            raise UserError(f"{place}: expected two texts with one tab between them, found {len(parts) - 1}")
        return parts[0], parts[1]


def count_lines(path: str) -> int | None:
    """Returns the number of lines of a file; None if counting them would take long, or use up a pipe."""
    if path == "-" or not os.path.isfile(path) or compression.strip_suffix(path) != path:
        return None
    if os.path.getsize(path) > _MOST_BYTES_TO_COUNT:
        return None
    lines, last = 0, b"\n"
    with files.open_read(path) as file:
        while block := file.read(1 << 20):
            lines, last = lines + block.count(b"\n"), block[-1:]
    return lines + (last != b"\n")


def check_output(path: str, pooling: str, jsonl_format: str, overwrite: bool) -> None:
    """Raises UserError for an output that cannot be written, before any work; see `io.checks`."""
    if jsonl_format != JSONL_FORMATS[0] and files.suffix(path) != ".jsonl":
        raise UserError(f"--jsonl_format={jsonl_format} is for .jsonl, and --output is {path}")
    if files.suffix(path) == ".npy" and pooling == "none":
        raise UserError(
            f"--output={path}: with --pooling=none texts differ in their number of states, and .npy has "
            "rows of one size; expected .jsonl or .safetensors"
        )
    checks.check_output_file(path, FORMATS, overwrite=overwrite)


@contextlib.contextmanager
def writer(path: str, embedder: Embedder, jsonl_format: str = JSONL_FORMATS[0]) -> Iterator[Writer]:
    """Returns a context manager with a writer of features, which creates the file when the block ends.

    A local file is written atomically, and is not created if the block raises an exception. The suffix of
    `path` determines the format:

    *   .npy: float32 [N, width].
    *   .safetensors: `embeddings`, float32 [N, width]. With pooling "none": `states`, float32
        [T, layers, H], for the T tokens of all texts; `token_ids`, int32 [T]; and `offsets`, int64 [N + 1],
        where the tokens of text i are those from offsets[i] to offsets[i + 1].
    *   .jsonl: one object per text with `index`, its number from 0; `text`, or `text_a` and `text_b` for a
        pair; and `embedding`, or with pooling "none" `features`, which has each token and the values of its
        layers. Values have six decimal places.

    Args:
        path: the path of the file.
        embedder: computes the features.
        jsonl_format: "google" for the objects of extract_features.py in google-research/bert, which have
            `linex_index` (so spelled there) instead of `index`, and no text.
    """
    of_json = _GoogleJsonLines if jsonl_format == "google" else _JsonLines
    kind = {".npy": _Npy, ".safetensors": _Safetensors, ".jsonl": of_json}[files.suffix(path)]
    with atomic.replace_file(path) as file:
        out = kind(file, embedder)
        yield out
        out.finish()


class Writer:
    """Base class of the writers of a format.

    Attributes:
        texts: the number of texts that were written.
    """

    def __init__(self, file: IO[bytes], embedder: Embedder):
        self.file, self.embedder, self.texts = file, embedder, 0
        self.begin()

    def write(self, text: Text, features: Features) -> None:
        """Writes the features of the next text."""
        self.put(text, features)
        self.texts += 1

    def begin(self) -> None:
        """Writes what precedes the first text."""

    def put(self, text: Text, features: Features) -> None:
        """Writes the values of one text."""
        self.file.write(features.values.astype("<f4", copy=False).tobytes())

    def finish(self) -> None:
        """Completes the file after the last text."""


class _Npy(Writer):
    def begin(self):
        # numpy pads the header so that `finish` can overwrite it with a larger first dimension.
        header = dict(descr="<f4", fortran_order=False, shape=(self.texts, self.embedder.width))
        np.lib.format.write_array_header_1_0(self.file, header)

    def finish(self):
        self.file.seek(0)
        self.begin()


_HEADER = 512  # bytes reserved for the JSON header of a .safetensors file, which is padded with spaces


class _Safetensors(Writer):
    def begin(self):
        self.token_ids: list[np.ndarray] = []
        self.file.write(bytes(8 + _HEADER))

    def put(self, text, features):
        super().put(text, features)
        if self.embedder.pooling == "none":
            self.token_ids.append(features.token_ids)

    def finish(self):
        width = self.embedder.width
        if self.embedder.pooling != "none":
            tensors = {"embeddings": ("F32", [self.texts, width], 4 * self.texts * width)}
        else:
            lengths, layers = [len(token_ids) for token_ids in self.token_ids], len(self.embedder.layers)
            tokens = sum(lengths)
            offsets = np.concatenate([[0], np.cumsum(lengths, dtype="<i8")]).astype("<i8")
            self.file.write(offsets.tobytes())
            for token_ids in self.token_ids:
                self.file.write(token_ids.astype("<i4", copy=False).tobytes())
            tensors = {
                "states": ("F32", [tokens, layers, width // layers], 4 * tokens * width),
                "offsets": ("I64", [len(offsets)], offsets.nbytes),
                "token_ids": ("I32", [tokens], 4 * tokens),
            }
        header, place = {}, 0
        for name, (dtype, shape, size) in tensors.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [place, place + size]}
            place += size
        self.file.seek(0)
        self.file.write(struct.pack("<Q", _HEADER) + json.dumps(header).encode().ljust(_HEADER))


class _JsonLines(Writer):
    def _head(self, text: Text) -> dict[str, Any]:
        """Returns the fields of an object that identify its text."""
        names = {"text": text} if isinstance(text, str) else {"text_a": text[0], "text_b": text[1]}
        return {"index": self.texts} | names

    def put(self, text, features):
        # Values are rounded in float64, because a rounded float32 would be written with more than six digits.
        values = np.round(features.values.astype(np.float64), 6).tolist()
        row = self._head(text)
        if self.embedder.pooling != "none":
            row["embedding"] = values
        else:
            tokens = self.embedder.tokenizer.tokens
            row["features"] = [
                {
                    "token": tokens[i],
                    "layers": [
                        {"index": layer, "values": state}
                        for layer, state in zip(self.embedder.layers, states, strict=True)
                    ],
                }
                for i, states in zip(features.token_ids.tolist(), values, strict=True)
            ]
        self.file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


class _GoogleJsonLines(_JsonLines):
    def _head(self, text):
        return {"linex_index": self.texts}
