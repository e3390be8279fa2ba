"""What a server computes: vectors of texts, words for masks, and the predictions of a fine-tuned model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from bert_jax.errors import UserError
from bert_jax.inference.embedding import Embedder, Features
from bert_jax.inference.fill_mask import MaskFiller
from bert_jax.inference.predictor import Predictor
from bert_jax.tasks.table import Malformed, encodable

OnProgram = Callable[[int, int], None]


class Service(Protocol):
    """A computation of a model.

    Attributes:
        name: the name, which is the path of its requests.
        field: the field of a request with the list of items.
    """

    name: str
    field: str

    def parse(self, item: Any) -> Any:
        """Returns an item of a request as `compute` takes it, at once. Raises Malformed."""
        ...

    def compute(self, items: list[Any]) -> Sequence[Any]:
        """Returns the result of each item. Raises UserError if an item has none."""
        ...

    def warm_up(self, most: int, on_program: OnProgram) -> int:
        """Compiles what batches of at most `most` items need, and returns the number of programs.

        Args:
            most: the maximum number of items.
            on_program: called with (programs done, all programs) at the start and after each program.
        """
        ...


def text_of(item: Any) -> str:
    """Returns a text of a request. Raises Malformed for anything else."""
    if not isinstance(item, str):
        raise Malformed(f"expected a text, found {type(item).__name__}")
    return encodable(item)


class Embedding:
    """Vectors of texts; items are texts with their prompts."""

    name, field = "embed", "texts"

    def __init__(self, embedder: Embedder):
        self.embedder = embedder

    def prompt(self, name: Any) -> str:
        """Returns the text of a prompt of the model. Raises Malformed if it has none of that name."""
        try:
            return self.embedder.sentence.prompt("" if name is None else text_of(name))
        except (UserError, Malformed) as error:
            raise Malformed(f"prompt {name!r:.60}: {error}") from None

    def parse(self, item: Any) -> str:
        """Returns a text."""
        return text_of(item)

    def compute(self, items: list[str]) -> list[Features]:
        """Returns the tokens and the vector of each text."""
        return list(self.embedder.stream(items))

    def warm_up(self, most: int, on_program: OnProgram) -> int:
        """Compiles the model for all shapes."""
        return self.embedder.engine.warm_up(most, lambda rows, size: {}, on_program)


class FillMask:
    """Words for the masks of texts; items are texts with a mask."""

    name, field = "fill-mask", "texts"
    most = 50  # words for each mask

    def __init__(self, filler: MaskFiller):
        self.filler = filler

    def parse(self, item: Any) -> str:
        """Returns a text."""
        return text_of(item)

    def compute(self, items: list[str]) -> list[Any]:
        """Returns the words for each mask of each text; UserError if a text has no mask, or is too long."""
        return self.filler(items, self.most)

    def warm_up(self, most: int, on_program: OnProgram) -> int:
        """Compiles the model for all shapes, with one mask in each text."""
        return self.filler.warm_up(most, on_program)


class Prediction:
    """Predictions of a fine-tuned model; items are the rows of `bert-jax predict --input=-`, or texts."""

    name, field = "predict", "rows"

    def __init__(self, predictor: Predictor):
        self.predictor = predictor
        predictor.reader  # noqa: B018 (it raises, or warns, before the first request)

    def parse(self, item: Any) -> dict[str, Any]:
        """Returns the values of a row."""
        return self.predictor.row_of(item if isinstance(item, dict) else text_of(item))

    def compute(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the prediction of each row as a JSON object."""
        return self.predictor.records_of(items)

    def warm_up(self, most: int, on_program: OnProgram) -> int:
        """Compiles the model for all shapes; the largest batch is that of the predictor."""
        return self.predictor.warm_up(on_program)


def as_list(vector: np.ndarray) -> list[float]:
    """Returns the numbers of a float32 vector, with the 9 digits that distinguish any two of them."""
    exact = vector.astype(np.float64)
    # With the formatting of each number, an answer takes twice as long. The quotient of two whole numbers is
    # the float nearest to 9 digits, so that JSON has no more; numbers below 1e-14 may have more.
    units = 10.0 ** (8 - np.floor(np.log10(np.abs(exact), where=exact != 0, out=np.zeros_like(exact))))
    return (np.rint(exact * units) / units).tolist()
