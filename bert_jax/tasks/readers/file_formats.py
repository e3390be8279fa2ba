"""The formats of a task's files, which the suffix of a name implies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from bert_jax.errors import UserError
from bert_jax.io import columnar, compression, files
from bert_jax.io.wording import alternatives

TRAINING_FLAGS = "--config.data."  # prefix of the training flags that describe a file
PREDICT_FLAGS = "--"  # prefix of the flags of `bert-jax predict`
COLUMNAR = "columnar"  # the format of Parquet and Arrow files


@dataclasses.dataclass(frozen=True)
class FileFormats:
    """The formats that a task reads.

    Attributes:
        suffixes: the format of each suffix; "" for a suffix of files that the task does not read.
        default: the format of files with any other suffix; "" if their format has to be given.
    """

    suffixes: Mapping[str, str]
    default: str = ""

    def names(self) -> list[str]:
        """Returns the names of the formats."""
        return list(dict.fromkeys(filter(None, (self.default, *self.suffixes.values()))))

    def detect(self, path: str, given: str = "auto", flags: str = TRAINING_FLAGS) -> str:
        """Returns the format of a file: `given`, or the one that the suffix implies if that is "auto".

        Args:
            path: the path of the file, or of a directory of Parquet or Arrow files. The suffix of a
                compression is ignored.
            given: one of `names`, or "auto".
            flags: the prefix of flags in messages; "" if no flag chooses the format.

        Raises:
            UserError: the format is unknown, the suffix does not determine it, or the file is a Parquet or an
                Arrow file and the task reads none.
        """
        names = self.names()
        if given in names:
            return given
        if given != "auto":
            name = "data.format" if flags == TRAINING_FLAGS else f"{flags}format"
            raise UserError(f"{name}={given}: expected auto, {', '.join(names)}")
        name = compression.strip_suffix(str(path)).lower()
        if files.is_directory(path) and (parts := columnar.files_in(str(path))):
            name = parts[0].lower()
        if columnar.is_columnar(name) and COLUMNAR not in names:
            raise UserError(
                f"{path}: only tasks on tables of texts read Parquet and Arrow files; expected "
                f"{alternatives(names)}; `to_json` of Hugging Face's datasets writes JSON lines, "
                "in which tags have to be names, not numbers"
            )
        found = next(
            (self.suffixes[suffix] for suffix in self.suffixes if name.endswith(suffix)), self.default
        )
        if not found:
            known = ", ".join(suffix for suffix, format in self.suffixes.items() if format)
            remedy = f"; give the format ({', '.join(names)}) with {flags}format" if flags else ""
            raise UserError(f"{path}: the name ends in none of {known}{remedy}")
        return found
