"""Defines the steps of `bert-jax data --clean` and their parameters."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
from typing import Any

from bert_jax.errors import UserError, check_installed, optional_imports
from bert_jax.io import comma_lists
from data_pipelines.readers import Controls

with optional_imports("cleaning"):
    import rensa
    from py3langid import langid

STEPS = ("mojibake", "unicode", "length", "language", "exact", "near")  # in the order in which they run
# Raised when a step changes; records of versions before the first change have none.
_VERSIONS = {"mojibake": 2, "unicode": 2, "length": 2}
PACKAGES = {"mojibake": "ftfy", "language": "py3langid", "near": "rensa"}

# The flags of `bert-jax data` that belong to --clean, and the step of each.
FLAG_STEPS = {
    "min_document_characters": "length",
    "max_document_characters": "length",
    "near_duplicate_threshold": "near",
    "language": "language",
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The cleaning steps that run, and their parameters.

    Attributes:
        steps: names in STEPS, in their order.
        min_document_characters, max_document_characters: the step `length` drops documents of fewer or more
            characters; of a document that is read in parts, the parts from the one that exceeds the maximum.
        min_passage_characters, max_passage_characters: the step `length` drops passages (sentences or
            paragraphs) of fewer or more characters.
        max_word_characters: the step `length` removes longer runs of letters, digits and punctuation of the
            Latin script.
        near_duplicate_threshold: the Jaccard similarity of the sets of word 5-shingles from which two
            documents are near duplicates.
        language: the ISO 639-1 code of the documents that the step `language` keeps.
    """

    steps: tuple[str, ...]
    min_document_characters: int = 200
    max_document_characters: int = 5_000_000
    min_passage_characters: int = 3
    max_passage_characters: int = 100_000
    max_word_characters: int = 100
    near_duplicate_threshold: float = 0.8
    language: str = ""

    @property
    def controls(self) -> Controls:
        """How control characters are treated while the text is read."""
        return Controls(spaces="unicode" in self.steps, keep_c1="mojibake" in self.steps)

    @property
    def finds_duplicates(self) -> bool:
        """Whether a step compares documents with each other."""
        return not {"exact", "near"}.isdisjoint(self.steps)

    def described(self) -> dict[str, Any]:
        """Returns the settings on which the steps depend, as the manifest stores them."""
        described: dict[str, Any] = {"steps": list(self.steps)}
        for field in dataclasses.fields(self)[1:]:
            if FLAG_STEPS.get(field.name, "length") in self.steps:
                described[field.name] = getattr(self, field.name)
        for step in ("mojibake", "language"):
            if step in self.steps:
                described[PACKAGES[step]] = importlib.metadata.version(PACKAGES[step])
        described |= {f"{step}_version": _VERSIONS[step] for step in self.steps if step in _VERSIONS}
        if "near" in self.steps:
            # The signatures depend on the version of the algorithm, not of the package.
            described["minhash"] = rensa.RMinHash.ALGORITHM_VERSION
        return described


def parse(clean: str, values: dict[str, Any]) -> Settings | None:
    """Returns the settings given by --clean and its flags, or None if --clean names no step.

    Args:
        clean: names in STEPS, separated by commas, in any order.
        values: the values of the flags in FLAG_STEPS; None for a flag that is not given.

    Raises:
        UserError: a step is unknown, a flag is given without its step, a value is invalid, or a package is
            not installed.
    """
    names = set(comma_lists.names(clean, "--clean"))
    if not names <= set(STEPS):
        raise UserError(f"--clean={clean}: expected some of {','.join(STEPS)}")
    flags = {name: value for name, value in values.items() if value is not None}
    for name, value in flags.items():
        if FLAG_STEPS[name] not in names:
            raise UserError(f"--{name}={value} needs the step {FLAG_STEPS[name]!r} in --clean")
    if not names:
        return None
    settings = Settings(tuple(step for step in STEPS if step in names), **flags)
    low, high = settings.min_document_characters, settings.max_document_characters
    if not 0 <= low <= high:
        raise UserError(f"--min_document_characters={low}: expected 0 to --max_document_characters={high}")
    if not 0.3 <= settings.near_duplicate_threshold <= 1:
        raise UserError(
            f"--near_duplicate_threshold={settings.near_duplicate_threshold}: expected 0.3 to 1, such as 0.8"
        )
    for step in settings.steps:
        if step in PACKAGES:
            check_installed(PACKAGES[step], "cleaning", f"--clean={step}")
    if "language" in settings.steps and settings.language not in language_identifier().labels:
        raise UserError(
            f"--language={settings.language}: expected an ISO 639-1 code that py3langid knows, such as en, de"
        )
    return settings


@functools.cache
def language_identifier() -> Any:
    """Returns py3langid's classifier of languages."""
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE)
