"""Cleans documents one by one.

A step is a function from a document to an `Outcome`: the cleaned document or None, and what was dropped and
why. Only `Length` depends on what came before: on the earlier parts of the same document. The steps that
compare documents with each other are in module `duplicates`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from bert_jax.errors import optional_imports
from bert_jax.tokenization import normalization
from data_pipelines.cleaning import report
from data_pipelines.cleaning.settings import Settings, language_identifier
from data_pipelines.readers import Beginnings, Document, utf8_size

with optional_imports("cleaning"):
    import ftfy

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
class Outcome:
    """The result of a step: the document, changed or not, or None; and (reason, text) of what was dropped."""

    document: Document | None
    dropped: tuple[tuple[str, str], ...] = ()


def _passages(document: Document, clean: Callable[[str], tuple[str, str]]) -> Outcome:
    """Applies `clean` to each passage; it returns the text, and the reason to drop the passage or ""."""
    kept, dropped = [], []
    for passage in document.passages:
        text, reason = clean(passage)
        if reason:
            dropped.append((reason, passage))
        elif text:
            kept.append(text)
    if not kept:
        reason = dropped[0][0] if dropped else "nothing is left"
        return Outcome(None, ((reason, "\n".join(document.passages)),))
    return Outcome(_with_passages(document, kept), tuple(dropped))


def _with_passages(document: Document, passages: Sequence[str]) -> Document:
    passages = tuple(passages)
    return document if passages == document.passages else dataclasses.replace(document, passages=passages)


def clean_mojibake(document: Document, settings: Settings) -> Outcome:
    """Repairs text that was decoded with the wrong encoding, such as "schÃ¶n" for "schön", with ftfy.

    Only text that ftfy itself rates as bad is repaired, which is three times as fast as repairing all of it.
    The control characters that the readers keep for the repair are dropped, or replaced, after it.
    """
    controls = dataclasses.replace(settings.controls, keep_c1=False)

    def repair(passage: str) -> tuple[str, str]:
        if passage.isascii():
            return passage, ""
        repaired = ftfy.fix_encoding(passage) if ftfy.is_bad(passage) else passage
        return controls.apply(repaired)[0].strip(), ""

    return _passages(document, repair)


def clean_unicode(document: Document, settings: Settings) -> Outcome:
    """Normalizes the characters of a document, and drops garbled passages.

    Text is normalized to NFC, any whitespace becomes one space, and invisible characters are removed.
    """
    return _passages(document, _clean_unicode)


def _clean_unicode(passage: str) -> tuple[str, str]:
    text = passage
    if not text.isascii() or not text.isprintable():
        text = normalization.normalize("NFC", _INVISIBLE.sub("", text))
    text = _SPACES.sub(" ", text).strip()
    return text, "undecodable" if text.count("\ufffd") > _MAX_REPLACEMENT_SHARE * len(text) else ""


class Length:
    """Removes overlong words, and drops passages and documents whose length is out of bounds.

    It is called with the parts of a document in their order, and compares the characters up to the end of
    each part with the bounds. The parts before the one that exceeds a bound stay.
    """

    def __init__(self) -> None:
        self._documents = Beginnings()
        self._characters = 0

    def __call__(self, document: Document, settings: Settings) -> Outcome:
        """Cleans a document, or one part of it."""
        if self._documents.begins(document):
            self._characters = 0
        outcome = _passages(document, functools.partial(_clean_length, settings=settings))
        if outcome.document is None:
            return outcome
        self._characters += sum(map(len, outcome.document.passages))
        if self._characters < settings.min_document_characters:
            return Outcome(None, (("short document", "\n".join(document.passages)),))
        if self._characters > settings.max_document_characters:
            return Outcome(None, (("long document", "\n".join(document.passages)),))
        return outcome


def _clean_length(passage: str, settings: Settings) -> tuple[str, str]:
    text = passage
    if len(text) > settings.max_word_characters:
        long_word = _long_word(settings.max_word_characters)
        if long_word.search(text):
            text = _SPACES.sub(" ", long_word.sub("", text)).strip()
    if len(text) < settings.min_passage_characters:
        return "", "short passage" if text == passage else "long word"
    return text, "long passage" if len(text) > settings.max_passage_characters else ""


def _long_word(most: int) -> re.Pattern[str]:
    # Only the Latin script: in scripts without spaces between words, the length of a run means nothing.
    return re.compile(rf"[!-~\u00a1-\u024f]{{{most + 1},}}")


def clean_language(document: Document, settings: Settings) -> Outcome:
    """Drops a document whose first 2,000 characters py3langid classifies as another language."""
    language, _ = language_identifier().classify(" ".join(document.passages)[:_LANGUAGE_CHARACTERS])
    if language == settings.language:
        return Outcome(document)
    return Outcome(None, ((f"language {language}", "\n".join(document.passages)),))


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


_Step = Callable[[Document, Settings], Outcome]
_FUNCTIONS: dict[str, _Step] = {
    "mojibake": clean_mojibake,
    "unicode": clean_unicode,
    "language": clean_language,
    "exact": clean_repeated_passages,
}


class Cleaner:
    """Cleans documents, in the order of the corpus, and counts what was changed and dropped.

    Attributes:
        counts: the numbers of `documents` and `bytes` that were read, and `steps`, the counts of each step.
            Each part of a long document counts as a document.
    """

    def __init__(self, settings: Settings):
        self._settings = settings
        functions: dict[str, _Step] = {**_FUNCTIONS, "length": Length()}
        self._steps = {step: functions[step] for step in settings.steps if step in functions}
        self.counts: dict[str, Any] = {
            "documents": 0,
            "bytes": 0,
            "steps": {step: report.new_counts() for step in settings.steps},
        }

    def __call__(self, document: Document) -> Document | None:
        """Returns the cleaned document, or None if it is dropped."""
        self.counts["documents"] += 1
        self.counts["bytes"] += document.size
        for step, clean in self._steps.items():
            outcome = clean(document, self._settings)
            counts = self.counts["steps"][step]
            whole = outcome.document is None
            for reason, text in outcome.dropped:
                counts["documents_dropped" if whole else "passages_dropped"] += 1
                counts["bytes_dropped"] += document.size if whole else utf8_size(text)
                counts["reasons"][reason] = counts["reasons"].get(reason, 0) + 1
                if len(counts["examples"]) < report.MOST_EXAMPLES:
                    counts["examples"].append(report.example(document.key, reason, text))
            if outcome.document is None:
                return None
            counts["documents_changed"] += outcome.document is not document
            document = outcome.document
        return document
