"""Divides a corpus of several languages, and determines how often the documents of each are used.

The share of a language in what is learned is proportional to n ** exponent, where n is its size (Devlin et
al. 2019, multilingual BERT: 0.7; Conneau et al. 2020, XLM-R: 0.3). The largest language is used once, and the
documents of the others are repeated, so nothing is left out.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.errors import UserError
from data_pipelines import readers, sorted_runs


@dataclasses.dataclass(frozen=True)
class Language:
    """One --input of a corpus whose languages are sampled.

    Attributes:
        name: the part of the input that differs from the other inputs: `de` of `wiki/de/*`.
        paths: its files.
    """

    name: str
    paths: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Repeats:
    """How often the training documents of a language are used.

    Attributes:
        tokens: the number of tokens in them.
        drawn: the number of tokens with all repetitions.
        copies: the number of times that each document is used.
        more_below: documents with smaller keys are used once more.
    """

    tokens: int
    drawn: int
    copies: int
    more_below: int


ONCE = Repeats(0, 0, 1, 0)  # without sampling


def check_exponent(exponent: float | None) -> None:
    """Raises UserError for an exponent that is out of range; None is for no sampling."""
    if exponent is not None and not 0 < exponent <= 1:
        raise UserError(f"--sampling_exponent={exponent}: expected over 0, and at most 1")


def divide(inputs: Sequence[str], tfds_data_dir: str = "") -> list[Language]:
    """Returns the languages of a corpus, one for each input.

    Raises:
        UserError: there is one input only, an input has no text, or a file is in two of them.
    """
    if len(inputs) == 1:
        raise UserError(
            f"--sampling_exponent divides a corpus by language, and there is only --input={inputs[0]}; give "
            "an --input for each language"
        )
    owners: dict[str, str] = {}
    languages = []
    for name, given in zip(_names(inputs), inputs, strict=True):
        paths = readers.list_inputs([given], tfds_data_dir)
        for path in paths:
            if path in owners:
                raise UserError(f"{path} is in --input={owners[path]} and in --input={given}; give it once")
            owners[path] = given
        languages.append(Language(name, tuple(paths)))
    return languages


def _names(inputs: Sequence[str]) -> list[str]:
    """Returns the inputs without the folders and the suffixes that all of them have."""
    parts = [given.split("/") for given in inputs]
    shared = os.path.commonprefix(parts)  # noqa: RUF071 (of lists)
    ending = os.path.commonprefix([part[len(shared) :][::-1] for part in parts])  # noqa: RUF071
    names = ["/".join(part[len(shared) : len(part) - len(ending)]) for part in parts]
    if len({name.partition(".")[2] for name in names}) == 1:
        names = [name.partition(".")[0] for name in names]
    return names if len(set(names)) == len(names) and all(names) else list(inputs)


def factors(sizes: Sequence[float], exponent: float) -> list[float]:
    """Returns how often the text of each language is used to make shares proportional to size ** exponent.

    It is 1 for the largest language.
    """
    return [(max(sizes) / size) ** (1 - exponent) for size in sizes]


class Training(NamedTuple):
    """The documents of a language that are not held out, by bin of their keys.

    Attributes:
        first: the number of the first bin.
        documents: the number of documents in each bin, from the first one on.
        tokens: the number of tokens in them.
    """

    first: int
    documents: np.ndarray
    tokens: np.ndarray


def training(histogram: np.ndarray, low: int) -> Training:
    """Returns the documents of a histogram with keys from `low` on; a bin that begins before is left out."""
    first = -(-low // (1 << sorted_runs.BIN_SHIFT))
    return Training(first, histogram[first:, 0], histogram[first:, 1])


def repeats(languages: Sequence[Training], exponent: float) -> list[Repeats]:
    """Returns how often the documents of each language are used.

    The documents that are used once more are those with the smallest keys, up to the edge of a bin of the
    histogram that is nearest to the wanted number of tokens. In a corpus of up to some ten thousand
    documents, a bin is a document.

    Args:
        languages: the training documents of each.
        exponent: see `factors`.
    """
    sizes = [int(one.tokens.sum()) for one in languages]
    found = []
    for one, size, factor in zip(languages, sizes, factors(sizes, exponent), strict=True):
        copies = int(factor)
        sums = np.concatenate(([0], np.cumsum(one.tokens)))
        end = int(np.argmin(np.abs(sums - (factor - copies) * size)))
        more_below = (one.first + end) << sorted_runs.BIN_SHIFT if end else 0
        found.append(Repeats(size, copies * size + int(sums[end]), copies, more_below))
    return found


def described(languages: Sequence[Language], found: Sequence[Repeats]) -> dict[str, dict[str, float]]:
    """Returns the numbers of each language for the manifest, by name."""
    tokens, drawn = (sum(getattr(one, name) for one in found) for name in ("tokens", "drawn"))
    return {
        language.name: {
            "tokens": one.tokens,
            "drawn": one.drawn,
            "share_of_text": one.tokens / tokens,
            "share": one.drawn / drawn,
        }
        for language, one in zip(languages, found, strict=True)
    }


def written(made: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Returns the numbers of rows and their content by language, given the results of `make_rows`."""
    names = ("documents", "rows", "sequences", "tokens")
    found: dict[str, dict[str, int]] = {}
    for result in made:
        counts = found.setdefault(result["language"], dict.fromkeys(names, 0))
        for name in names:
            counts[name] += result[name]
    return found


def grouped(languages: Sequence[Language], ranges: Sequence[readers.Range]) -> list[list[readers.Range]]:
    """Returns the ranges of each language, in their order."""
    owners = {path: number for number, one in enumerate(languages) for path in one.paths}
    groups: list[list[readers.Range]] = [[] for _ in languages]
    for range_ in ranges:
        groups[owners[range_.path]].append(range_)
    return groups
