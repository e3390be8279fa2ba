"""What every file format of models can do."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bert_jax import checkpoint
from bert_jax.checkpoint.leaves import check_shapes, flatten, nest
from bert_jax.convert.model import Model
from bert_jax.io import files
from bert_jax.models.config import EncoderConfig
from bert_jax.tokenization import Tokenizer


class Format(abc.ABC):
    """A way in which models lie in files.

    Attributes:
        name: as `--to` takes it.
        title: what `bert-jax inspect` calls such a path, such as "TF1 checkpoint".
        example: the same where a message lists what could be given, such as "a Hugging Face folder".
        write_options: names of further arguments that `write` takes.
    """

    name: str
    title: str
    example: str
    write_options: tuple[str, ...] = ()

    @abc.abstractmethod
    def detect(self, path: files.PathLike) -> bool:
        """Returns whether a path is of this format, from its small files alone."""

    @abc.abstractmethod
    def read_config(self, path: files.PathLike) -> tuple[EncoderConfig, Tokenizer | None]:
        """Returns the architecture and the vocabulary, from the small files alone.

        Raises:
            UserError: a file is missing or damaged, or of a model that cannot be read.
        """

    @abc.abstractmethod
    def read(self, path: files.PathLike, *, ignore: str = "", log: Callable[[str], None] = print) -> Model:
        """Returns the whole model.

        Args:
            path: that `detect` accepts.
            ignore: a regular expression; tensors that no such model has stay behind where it matches the
                whole of their names.
            log: called with one line when there is something to say.

        Raises:
            UserError: damaged, of another family, or not whole.
        """

    @abc.abstractmethod
    def write(self, model: Model, folder: files.PathLike, **options: Any) -> None:
        """Writes a model into a local directory that exists and is empty.

        Args:
            model: to write.
            folder: of the output.
            options: those of `write_options`.

        Raises:
            UserError: the format cannot hold this model.
        """

    def check_installed(self) -> None:
        """Raises UserError where a package is missing without which nothing can be read or written."""
        return  # most formats need no package of their own

    def may_be_replaced(self, path: files.PathLike) -> bool:
        """Returns whether a conversion may overwrite what is at a path that `detect` accepts."""
        return True

    def load_params(
        self, path: files.PathLike, abstract_params: Any, *, ignore: str, log: Callable[[str], None]
    ) -> tuple[dict, checkpoint.Report]:
        """Returns the parameters that a checkpoint and `abstract_params` have in common, and the report.

        Args:
            path: that `detect` accepts.
            abstract_params: nested dict of jax.ShapeDtypeStruct; each array goes onto its sharding.
            ignore: see `read`.
            log: see `read`.

        Raises:
            UserError: as `read`; also a parameter of another shape.
        """
        model = self.read(path, ignore=ignore, log=log)
        wanted = flatten(abstract_params)
        check_shapes(model.source, model.params, wanted)
        loaded = {name: _place(model.params[name], wanted[name]) for name in wanted if name in model.params}
        report = checkpoint.Report(
            model.source,
            tuple(loaded),
            tuple(name for name in wanted if name not in loaded),
            tuple(name for name in model.params if name not in wanted),
        )
        return nest(loaded), report


def _place(array: np.ndarray, like: jax.ShapeDtypeStruct) -> jax.Array:
    array = np.asarray(array, like.dtype)
    if like.sharding is None:
        return jax.numpy.asarray(array)
    return jax.make_array_from_callback(array.shape, like.sharding, lambda index: array[index])
