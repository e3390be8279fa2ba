"""Defines the interface of all model file formats."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

from bert_jax import checkpoint
from bert_jax.convert.model import Model
from bert_jax.convert.sentences import SentenceVectors
from bert_jax.io import files
from bert_jax.models.config import EncoderConfig
from bert_jax.tokenization import Tokenizer


class Format(abc.ABC):
    """A file format of models."""

    name: str  # the value for `--to`
    title: str  # how `bert-jax inspect` describes such a path
    takes_changes: bool = True  # whether a model may be changed before it is written

    @abc.abstractmethod
    def detect(self, path: files.PathLike) -> bool:
        """True if a path has this format, judging by its small files only."""

    @abc.abstractmethod
    def read_config(self, path: files.PathLike) -> tuple[EncoderConfig, Tokenizer | None]:
        """Returns the architecture and the tokenizer, reading only small files."""

    @abc.abstractmethod
    def read(self, path: files.PathLike, *, ignore: str = "", log: Callable[[str], None] = print) -> Model:
        """Reads the complete model from a path that `detect` accepts; see `loading.load`."""

    def read_sentence(
        self, path: files.PathLike, config: EncoderConfig, tokenizer: Tokenizer | None
    ) -> SentenceVectors | None:
        """Returns the settings of sentence vectors in a checkpoint's small files; None if there are none."""
        return None

    def warning(self, model: Model) -> str:
        """Returns one line about differences of the written model in other programs, or ""."""
        return ""

    @abc.abstractmethod
    def write(self, model: Model, folder: files.PathLike, card: str = "") -> None:
        """Writes a model into an empty local directory; only Hugging Face folders have a card (README.md)."""

    def may_be_replaced(self, path: files.PathLike) -> bool:
        """True if a conversion may overwrite the checkpoint at a path that `detect` accepts."""
        return True

    def load_params(
        self, path: files.PathLike, abstract_params: Any, *, ignore: str, log: Callable[[str], None]
    ) -> tuple[dict, checkpoint.Report]:
        """Loads the parameters that a checkpoint and a model share; see `loading.load_params`."""
        model = self.read(path, ignore=ignore, log=log)
        return checkpoint.select_params(model.source, model.stored, abstract_params)
