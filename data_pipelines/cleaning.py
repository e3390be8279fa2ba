"""Cleans documents one by one, for `bert-jax data --clean=unicode,length,...`, and reports what it did.

A step is a pure function from a document to an `Outcome`: the cleaned document or None, and what was dropped
and why. The steps that compare documents with each other are in module `duplicates`.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib.metadata
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from bert_jax.errors import UserError, check_installed, optional_imports
from data_pipelines.readers import Document

with optional_imports("cleaning"):
    import ftfy
    import rensa
    from py3langid import langid

STEPS = ("mojibake", "unicode", "length", "language", "exact", "near")  # in the order in which they run
REPORT = "cleaning.json"  # in the directory of the records
MOST_EXAMPLES = 5
EXAMPLE_CHARACTERS = 100
PACKAGES = {"mojibake": "ftfy", "language": "py3langid", "near": "rensa"}

_MAX_REPLACEMENT_SHARE = 0.05  # of U+FFFD in a passage; with more, its words are lost
_LANGUAGE_CHARACTERS = 2000
_REPEATED_PASSAGE_CHARACTERS = 32  # good text repeats shorter ones too, such as "Yes."

_SPACES = re.compile(r"\s+")
# Zero-width and direction marks, the soft hyphen and control characters. The joiners U+200C and U+200D are
# kept, since Persian, the scripts of India and emoji need them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f"
    "\ufeff\ufff9-\ufffb]+"
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The cleaning steps that run, and their parameters.

    Attributes:
        steps: names in STEPS, in their order.
        min_document_characters, max_document_characters: the step `length` drops documents of fewer or more
            characters.
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

    def described(self) -> dict[str, Any]:
        """Returns the settings on which the steps depend, as the manifest stores them."""
        described: dict[str, Any] = {"steps": list(self.steps)}
        for name, step in FLAG_STEPS.items():
            if step in self.steps:
                described[name] = getattr(self, name)
        for step in ("mojibake", "language"):
            if step in self.steps:
                described[PACKAGES[step]] = importlib.metadata.version(PACKAGES[step])
        if "near" in self.steps:
            # The signatures depend on the version of the algorithm, not on that of the package.
            described["minhash"] = rensa.RMinHash.ALGORITHM_VERSION
        return described


# The flags of `bert-jax data` that belong to --clean, and the step of each.
FLAG_STEPS = {
    "min_document_characters": "length",
    "max_document_characters": "length",
    "min_passage_characters": "length",
    "max_passage_characters": "length",
    "max_word_characters": "length",
    "near_duplicate_threshold": "near",
    "language": "language",
}


def parse(clean: str, values: dict[str, Any]) -> Settings | None:
    """Returns the settings given by --clean and its flags, or None if --clean names no step.

    Args:
        clean: names in STEPS, separated by commas, in any order.
        values: the values of the flags in FLAG_STEPS; None for a flag that is not given.

    Raises:
        UserError: a step is unknown, a flag is given without its step, a value is invalid, or a package is
            not installed.
    """
    names = {name.strip() for name in clean.split(",")} - {""}
    unknown = sorted(names.difference(STEPS))
    if unknown:
        raise UserError(
            f"--clean={clean}: there is no step {unknown[0]!r}; expected some of {','.join(STEPS)}"
        )
    given = {name: value for name, value in values.items() if value is not None}
    for name, value in given.items():
        if FLAG_STEPS[name] not in names:
            raise UserError(
                f"--{name}={value} is for the step {FLAG_STEPS[name]!r}: name it in --clean, as "
                f"--clean={','.join(step for step in STEPS if step in names | {FLAG_STEPS[name]})}"
            )
    if not names:
        return None
    settings = Settings(tuple(step for step in STEPS if step in names), **given)
    for name in ("document", "passage"):
        low, high = (getattr(settings, f"{bound}_{name}_characters") for bound in ("min", "max"))
        if not 0 <= low <= high:
            raise UserError(
                f"--min_{name}_characters={low} and --max_{name}_characters={high}: expected 0 <= min <= max"
            )
    if settings.max_word_characters < 1:
        raise UserError(f"--max_word_characters={settings.max_word_characters}: expected at least 1")
    if not 0.3 <= settings.near_duplicate_threshold <= 1:
        raise UserError(
            f"--near_duplicate_threshold={settings.near_duplicate_threshold}: expected 0.3 to 1, such as 0.8"
        )
    for step in settings.steps:
        if step in PACKAGES:
            check_installed(PACKAGES[step], "cleaning", f"--clean={step}")
    if "language" in settings.steps and settings.language not in _identifier().labels:
        raise UserError(
            f"--language={settings.language}: --clean=language keeps one language; expected the "
            "ISO 639-1 code of one that py3langid knows, such as en, de or zh"
        )
    return settings


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a step: the document, changed or not, or None; and (reason, text) of what was dropped."""

    document: Document | None
    dropped: tuple[tuple[str, str], ...] = ()


def _passages(
    document: Document, clean: Callable[[str], tuple[str, str]], all_gone: str = "nothing is left"
) -> Outcome:
    """Applies `clean` to each passage.

    Args:
        document: the document.
        clean: returns the cleaned text, and the reason to drop the passage or "".
        all_gone: the reason to drop the document if all its passages became empty.
    """
    kept, dropped = [], []
    for passage in document.passages:
        text, reason = clean(passage)
        if reason:
            dropped.append((reason, passage))
        elif text:
            kept.append(text)
    if not kept:
        return Outcome(None, ((dropped[0][0] if dropped else all_gone, "\n".join(document.passages)),))
    return Outcome(_with_passages(document, kept), tuple(dropped))


def _with_passages(document: Document, passages: Sequence[str]) -> Document:
    passages = tuple(passages)
    return document if passages == document.passages else dataclasses.replace(document, passages=passages)


def clean_mojibake(document: Document, settings: Settings) -> Outcome:
    """Repairs text that was decoded with the wrong encoding, such as "schÃ¶n" for "schön", with ftfy.

    Only text that ftfy itself rates as bad is repaired, which is three times as fast as repairing all of it.
    """

    def repair(passage: str) -> tuple[str, str]:
        if passage.isascii() or not ftfy.is_bad(passage):
            return passage, ""
        return ftfy.fix_encoding(passage), ""

    return _passages(document, repair)


def clean_unicode(document: Document, settings: Settings) -> Outcome:
    """Normalizes the characters of a document, and drops garbled passages.

    Text is normalized to NFC, any whitespace becomes one space, and invisible characters are removed.
    """
    return _passages(document, _clean_unicode)


def _clean_unicode(passage: str) -> tuple[str, str]:
    text = passage
    if not text.isascii() or not text.isprintable():
        text = unicodedata.normalize("NFC", _INVISIBLE.sub("", text))
    text = _SPACES.sub(" ", text).strip()
    return text, "undecodable" if text.count("\ufffd") > _MAX_REPLACEMENT_SHARE * len(text) else ""


def clean_length(document: Document, settings: Settings) -> Outcome:
    """Removes overlong words, and drops passages and documents whose length is out of bounds."""
    long_word = _long_word(settings.max_word_characters)

    def bounded(passage: str) -> tuple[str, str]:
        text = passage
        if len(text) > settings.max_word_characters and long_word.search(text):
            text = _SPACES.sub(" ", long_word.sub("", text)).strip()
        if len(text) < settings.min_passage_characters:
            return "", "short passage" if text == passage else "long word"
        return text, "long passage" if len(text) > settings.max_passage_characters else ""

    outcome = _passages(document, bounded)
    if outcome.document is None:
        return outcome
    characters = sum(map(len, outcome.document.passages))
    if characters < settings.min_document_characters:
        return Outcome(None, (("short document", "\n".join(document.passages)),))
    if characters > settings.max_document_characters:
        return Outcome(None, (("long document", "\n".join(document.passages)),))
    return outcome


def _long_word(most: int) -> re.Pattern[str]:
    # Only the Latin script: in scripts without spaces between words, the length of a run means nothing.
    return re.compile(rf"[!-~\u00a1-\u024f]{{{most + 1},}}")


def clean_language(document: Document, settings: Settings) -> Outcome:
    """Drops a document whose first 2,000 characters py3langid classifies as another language."""
    language, _ = _identifier().classify(" ".join(document.passages)[:_LANGUAGE_CHARACTERS])
    if language == settings.language:
        return Outcome(document)
    return Outcome(None, ((f"language {language}", "\n".join(document.passages)),))


@functools.cache
def _identifier() -> Any:
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE)


def clean_repeated_passages(document: Document, settings: Settings) -> Outcome:
    """Drops passages of 32 characters or more that repeat an earlier one; part of `exact`."""
    seen: set[str] = set()

    def first(passage: str) -> tuple[str, str]:
        if len(passage) < _REPEATED_PASSAGE_CHARACTERS:
            return passage, ""
        folded = folded_text([passage])
        repeated = folded in seen
        seen.add(folded)
        return passage, "repeated passage" if repeated else ""

    return _passages(document, first)


def folded_text(passages: Sequence[str]) -> str:
    """Returns the text that is compared to find duplicates: case-folded, with any whitespace as one space."""
    return " ".join(" ".join(passages).casefold().split())


_FUNCTIONS: dict[str, Callable[[Document, Settings], Outcome]] = {
    "mojibake": clean_mojibake,
    "unicode": clean_unicode,
    "length": clean_length,
    "language": clean_language,
    "exact": clean_repeated_passages,
}


def new_counts() -> dict[str, Any]:
    """Returns the initial counts of one step, as values that JSON can represent."""
    return {
        "documents_changed": 0,
        "documents_dropped": 0,
        "passages_dropped": 0,
        "bytes_dropped": 0,
        "reasons": {},
        "examples": [],
    }


class Cleaner:
    """Cleans documents and counts what was changed and dropped.

    Attributes:
        counts: `documents` and `bytes` (of their text) that were read, and `steps`, the counts of each step
            as in `new_counts`. Each part of a long document counts as a document.
    """

    def __init__(self, settings: Settings):
        self._settings = settings
        self.counts: dict[str, Any] = {
            "documents": 0,
            "bytes": 0,
            "steps": {step: new_counts() for step in settings.steps},
        }

    def __call__(self, document: Document) -> Document | None:
        self.counts["documents"] += 1
        self.counts["bytes"] += size(document.passages)
        for step in self._settings.steps:
            if step not in _FUNCTIONS:
                continue
            outcome = _FUNCTIONS[step](document, self._settings)
            counts = self.counts["steps"][step]
            whole = outcome.document is None
            for reason, text in outcome.dropped:
                counts["documents_dropped" if whole else "passages_dropped"] += 1
                counts["bytes_dropped"] += size([text])
                counts["reasons"][reason] = counts["reasons"].get(reason, 0) + 1
                if len(counts["examples"]) < MOST_EXAMPLES:
                    counts["examples"].append(example(document.key, reason, text))
            if outcome.document is None:
                return None
            counts["documents_changed"] += outcome.document is not document
            document = outcome.document
        return document


def size(texts: Sequence[str]) -> int:
    """Returns the total size of some texts in UTF-8, in bytes."""
    return sum(len(t) if t.isascii() else len(t.encode("utf-8", "surrogatepass")) for t in texts)


def example(key: str, reason: str, text: str) -> dict[str, str]:
    """Returns the entry of the report for something that was dropped."""
    return {"document": key, "reason": reason, "text": text[:EXAMPLE_CHARACTERS]}


def merge_counts(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sums the counts of the `Cleaner`s of the parts of a corpus, in its order; keeps the first examples."""
    total: dict[str, Any] = {name: sum(part[name] for part in parts) for name in ("documents", "bytes")}
    total["steps"] = {}
    for step in parts[0]["steps"]:
        ones = [part["steps"][step] for part in parts]
        reasons: collections.Counter[str] = collections.Counter()
        for one in ones:
            reasons.update(one["reasons"])
        total["steps"][step] = {
            name: sum(one[name] for one in ones)
            for name in ("documents_changed", "documents_dropped", "passages_dropped", "bytes_dropped")
        } | {
            "reasons": dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
            "examples": [shown for one in ones for shown in one["examples"]][:MOST_EXAMPLES],
        }
    return total


def nothing_left(counts: dict[str, Any]) -> str:
    """Returns the error message for a corpus whose documents were all dropped."""
    steps = counts["steps"]
    most = max(steps, key=lambda step: steps[step]["documents_dropped"])
    return (
        f"--clean={','.join(steps)} leaves no document: {most} dropped {steps[most]['documents_dropped']} "
        f"({', '.join(steps[most]['reasons'])}): leave a step out, or change its bounds"
    )


def with_shares(counts: dict[str, Any]) -> dict[str, Any]:
    """Returns the report: the counts, and each step's share of the documents and bytes that were read."""
    documents, total = max(1, counts["documents"]), max(1, counts["bytes"])
    steps = {
        step: {
            "documents_dropped_share": round(one["documents_dropped"] / documents, 6),
            "bytes_dropped_share": round(one["bytes_dropped"] / total, 6),
        }
        | one
        for step, one in counts["steps"].items()
    }
    dropped = sum(one["documents_dropped"] for one in steps.values())
    return {**counts, "documents_kept": counts["documents"] - dropped, "steps": steps}


def without_examples(report: dict[str, Any]) -> dict[str, Any]:
    """Returns the report as the manifest stores it, without examples."""
    steps = {
        step: {name: value for name, value in one.items() if name != "examples"}
        for step, one in report["steps"].items()
    }
    return {**report, "steps": steps}


def lines(report: dict[str, Any]) -> list[str]:
    """Returns the report as a few lines for the terminal."""
    found = [f"cleaning: {report['documents_kept']:,} of {report['documents']:,} documents kept"]
    for step, one in report["steps"].items():
        line = (
            f"  {step}: {one['documents_dropped']:,} documents ({one['documents_dropped_share']:.2%}) and "
            f"{one['passages_dropped']:,} passages dropped, {one['bytes_dropped'] / 1e6:.2f} MB "
            f"({one['bytes_dropped_share']:.2%}); {one['documents_changed']:,} documents changed"
        )
        common = [f"{reason} {count:,}" for reason, count in list(one["reasons"].items())[:4]]
        found.append(line + (f" ({', '.join(common)})" if common else ""))
    return found
