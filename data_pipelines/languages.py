"""Divides a corpus of several languages, and determines how often the documents of each are used.

The fraction of a language in the training rows is proportional to n ** exponent, where n is its size (Devlin
et al. 2019, multilingual BERT: 0.7; Conneau et al. 2020, XLM-R: 0.3). Documents of small languages are
repeated.
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.errors import UserError
from data_pipelines import readers, sentences

_SEPARATOR = re.compile(r"[\W\d_]+")  # between the words of a name
_WORDS_AND_SEPARATORS = re.compile(r"[^\W_]+|[\W_]")  # of an input; these words have their digits


@dataclasses.dataclass(frozen=True)
class Language:
    """One --input of a corpus whose languages are sampled."""

    name: str  # the text in which the input differs from the others: `de` of `wiki/de/*`
    paths: tuple[str, ...]


def divide(inputs: Sequence[str], exclude: str = "") -> list[Language]:
    """Returns the languages of a corpus, one for each input; see `readers.list_inputs` for the arguments."""
    if len(inputs) == 1:
        raise UserError(f"--sampling_exponent needs an --input for each language; found only {inputs[0]}")
    owners: dict[str, str] = {}
    languages = []
    for name, pattern in zip(_names(inputs), inputs, strict=True):
        paths = readers.list_inputs([pattern], exclude)
        for path in paths:
            one = readers.identity(path)
            if one in owners:
                raise UserError(f"--input={pattern}: {path} is also in --input={owners[one]}")
            owners[one] = pattern
        languages.append(Language(name, tuple(paths)))
    return languages


def rules_of(name: str) -> str:
    """Returns the code of `sentences.LANGUAGES` in the name of a language; "" unless there is exactly one.

    The code is a word of the name (`de` of `20230601.de`), or begins a wiki's (`de` of `dewiki-latest`).
    """
    words = {word.removesuffix("wiki") for word in _SEPARATOR.split(name.lower())}
    known = words & set(sentences.LANGUAGES)
    return known.pop() if len(known) == 1 else ""


def _names(inputs: Sequence[str]) -> list[str]:
    """Returns the inputs without their common prefix and suffix of whole words."""
    heads = _without_shared([_WORDS_AND_SEPARATORS.findall(each) for each in inputs])
    names = ["".join(reversed(words)) for words in _without_shared([words[::-1] for words in heads])]
    return names if len(set(names)) == len(names) and all(names) else list(inputs)


def _without_shared(lists: Sequence[list[str]]) -> list[list[str]]:
    shared = len(os.path.commonprefix(lists))  # noqa: RUF071 (of lists)
    return [one[shared:] for one in lists]


def times(text: Sequence[int], exponent: float) -> list[float]:
    """Returns how often documents of each language, of `text` tokens, are used; the minimum is 1."""
    factors = [max(1, size) ** (exponent - 1) for size in text]
    return [one / min(factors) for one in factors]


def described(
    languages: Sequence[Language],
    text: Sequence[int],
    used: Sequence[float],
    rows: Mapping[str, Mapping[str, int]],
) -> dict[str, dict[str, float]]:
    """Returns the numbers of each language for the manifest, by name; `rows` are the counts of `written`."""
    total = sum(one["tokens"] for one in rows.values())
    return {
        language.name: {
            "tokens": tokens,
            "share_of_text": tokens / sum(text),
            "used": factor,
            "share": rows[language.name]["tokens"] / total,
        }
        for language, tokens, factor in zip(languages, text, used, strict=True)
    }


def written(made: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Returns the numbers of rows and their content by language, given the results of `make_rows`."""
    found: dict[str, dict[str, int]] = {}
    for result in made:
        counts = found.setdefault(result["language"], {})
        for name in ("documents", "rows", "sequences", "tokens"):
            counts[name] = counts.get(name, 0) + result[name]
    return found
