"""Cleans documents one by one for `bert-jax data --clean=unicode,length,...`, and reports the effects.

The steps that compare documents with each other are in module `duplicates`.
"""

import collections
import dataclasses
import functools
import importlib.metadata
import re
from collections.abc import Callable, Sequence
from typing import Any

from bert_jax.errors import check_flag, optional_imports
from bert_jax.io import comma_lists, wording
from bert_jax.io.wording import counted
from bert_jax.tokenization import normalization
from data_pipelines.readers import Document
from data_pipelines.readers.documents import utf8_size

with optional_imports("cleaning"):
    import rensa
    from py3langid import langid

STEPS = ("unicode", "length", "language", "exact", "near")  # in the order in which they run
MOST_EXAMPLES = 5
EXAMPLE_CHARACTERS = 100
# Increased when a step changes; records of versions before the first change have no version.
_VERSIONS = {"unicode": 2, "length": 3}
# The flags of `bert-jax data` that belong to --clean, and the step of each.
FLAG_STEPS = {"near_duplicate_threshold": "near", "language": "language"}
_SUMS = ("documents_changed", "documents_dropped", "passages_dropped", "bytes_dropped")

_LEAST_DOCUMENT_CHARACTERS = 200
_PASSAGE_CHARACTERS = (3, 100_000)  # the bounds
_LONG_WORD_CHARACTERS = 100  # longer words are removed
_MAX_REPLACEMENT_SHARE = 0.05  # of U+FFFD in a passage; with more, its words are lost
_LANGUAGE_CHARACTERS = 2000
_REPEATED_PASSAGE_CHARACTERS = 32  # good text repeats shorter ones too, such as "Yes."

_SPACES = re.compile(r"\s+")
# Zero-width and direction marks, the soft hyphen and control characters. The joiners U+200C and U+200D are
# kept, because Persian, the scripts of India and emoji need them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f"
    "\ufeff\ufff9-\ufffb]+"
)
# Only the Latin script: in scripts without spaces between words, long runs are normal.
_LONG_WORD = re.compile(rf"[!-~\u00a1-\u024f]{{{_LONG_WORD_CHARACTERS + 1},}}")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The cleaning steps that run, and their parameters."""

    steps: tuple[str, ...]  # names in STEPS, in their order
    near_duplicate_threshold: float = 0.8  # least Jaccard similarity of the sets of word 5-shingles
    language: str = ""  # the ISO 639-1 code of the documents that the step `language` keeps

    @property
    def finds_duplicates(self) -> bool:
        """Whether a step compares documents with each other."""
        return not {"exact", "near"}.isdisjoint(self.steps)

    def described(self) -> dict[str, Any]:
        """Returns the settings on which the steps depend, as the manifest stores them."""
        described: dict[str, Any] = {"steps": list(self.steps)}
        described |= {name: getattr(self, name) for name, step in FLAG_STEPS.items() if step in self.steps}
        if "language" in self.steps:
            described["py3langid"] = importlib.metadata.version("py3langid")
        described |= {f"{step}_version": _VERSIONS[step] for step in self.steps if step in _VERSIONS}
        if "near" in self.steps:
            # The signatures depend on the version of the algorithm, not of the package.
            described["minhash"] = rensa.RMinHash.ALGORITHM_VERSION
        return described


def parse(clean: str, values: dict[str, Any]) -> Settings | None:
    """Returns the settings given by --clean and `values` of FLAG_STEPS; None if --clean names no step."""
    names = set(comma_lists.names(clean))
    flags = {name: value for name, value in values.items() if value is not None}
    settings = Settings(tuple(step for step in STEPS if step in names), **flags)
    threshold, language = settings.near_duplicate_threshold, settings.language
    check_flag("clean", clean, names <= set(STEPS), f"some of {','.join(STEPS)}")
    for name, value in flags.items():
        check_flag(name, value, FLAG_STEPS[name] in names, f"--clean={FLAG_STEPS[name]} as well")
    check_flag("near_duplicate_threshold", threshold, 0.3 <= threshold <= 1, "0.3 to 1")
    if "language" in names:
        is_known = language in _language_identifier().labels
        check_flag("language", language, is_known, "an ISO 639-1 code that py3langid knows, such as en")
    return settings if names else None


@functools.cache
def _language_identifier() -> Any:
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a step: the document, changed or not, or None; and (reason, text) of dropped texts."""

    document: Document | None
    dropped: tuple[tuple[str, str], ...] = ()


def _drop(document: Document, reason: str) -> Outcome:
    return Outcome(None, ((reason, "\n".join(document.passages)),))


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
        return _drop(document, dropped[0][0] if dropped else "nothing is left")
    if tuple(kept) != document.passages:
        document = dataclasses.replace(document, passages=tuple(kept))
    return Outcome(document, tuple(dropped))


def clean_unicode(document: Document, settings: Settings) -> Outcome:
    """Applies NFC, replaces whitespace by a space, removes invisible characters, drops garbled passages."""

    def clean(passage: str) -> tuple[str, str]:
        text = passage
        if not text.isascii() or not text.isprintable():
            text = normalization.normalize("NFC", _INVISIBLE.sub("", text))
        text = _SPACES.sub(" ", text).strip()
        return text, "undecodable" if text.count("\ufffd") > _MAX_REPLACEMENT_SHARE * len(text) else ""

    return _passages(document, clean)


def clean_length(document: Document, settings: Settings) -> Outcome:
    """Removes overlong words, drops passages whose length is out of bounds, and drops short documents."""
    outcome = _passages(document, _clean_length)
    if outcome.document is None or document.part:
        return outcome
    size = sum(map(len, outcome.document.passages))
    return _drop(document, "short document") if size < _LEAST_DOCUMENT_CHARACTERS else outcome


def _clean_length(passage: str) -> tuple[str, str]:
    text, (least, most) = passage, _PASSAGE_CHARACTERS
    if len(text) > _LONG_WORD_CHARACTERS and _LONG_WORD.search(text):
        text = _SPACES.sub(" ", _LONG_WORD.sub("", text)).strip()
    if len(text) < least:
        return "", "short passage" if text == passage else "long word"
    return text, "long passage" if len(text) > most else ""


def clean_language(document: Document, settings: Settings) -> Outcome:
    """Drops a document whose first 2,000 characters py3langid classifies as another language."""
    language, _ = _language_identifier().classify(" ".join(document.passages)[:_LANGUAGE_CHARACTERS])
    return Outcome(document) if language == settings.language else _drop(document, f"language {language}")


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
    "unicode": clean_unicode,
    "length": clean_length,
    "language": clean_language,
    "exact": clean_repeated_passages,
}


class Cleaner:
    """Cleans documents, in the order of the corpus, and counts changed and dropped texts in `counts`.

    Each part of a long document counts as a document.
    """

    def __init__(self, settings: Settings):
        self._settings = settings
        self.counts: dict[str, Any] = {"documents": 0, "bytes": 0, "steps": {}}
        for step in settings.steps:
            self.counts["steps"][step] = dict.fromkeys(_SUMS, 0) | {"reasons": {}, "examples": []}

    def __call__(self, document: Document) -> Document | None:
        """Returns the cleaned document, or None if it is dropped."""
        self.counts["documents"] += 1
        self.counts["bytes"] += document.size
        for step, counts in self.counts["steps"].items():
            if step not in _FUNCTIONS:
                continue
            outcome = _FUNCTIONS[step](document, self._settings)
            whole = outcome.document is None
            for reason, text in outcome.dropped:
                counts["documents_dropped" if whole else "passages_dropped"] += 1
                counts["bytes_dropped"] += document.size if whole else utf8_size(text)
                counts["reasons"][reason] = counts["reasons"].get(reason, 0) + 1
                if len(counts["examples"]) < MOST_EXAMPLES:
                    counts["examples"].append(example(document.key, reason, text))
            if outcome.document is None:
                return None
            counts["documents_changed"] += outcome.document is not document
            document = outcome.document
        return document


def example(key: str, reason: str, text: str) -> dict[str, str]:
    """Returns the entry of the report for something that was dropped."""
    return {"document": key, "reason": reason, "text": text[:EXAMPLE_CHARACTERS]}


def merged_report(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the sums of `Cleaner.counts` of the parts of a corpus, the first examples, and fractions."""
    total: dict[str, Any] = {name: sum(part[name] for part in parts) for name in ("documents", "bytes")}
    documents, size = max(1, total["documents"]), max(1, total["bytes"])
    steps: dict[str, dict[str, Any]] = {}
    for step in parts[0]["steps"]:
        ones = [part["steps"][step] for part in parts]
        reasons: collections.Counter[str] = collections.Counter()
        for one in ones:
            reasons.update(one["reasons"])
        sums = {name: sum(one[name] for one in ones) for name in _SUMS}
        steps[step] = {
            "documents_dropped_share": round(sums["documents_dropped"] / documents, 6),
            "bytes_dropped_share": round(sums["bytes_dropped"] / size, 6),
            **sums,
            "reasons": dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
            "examples": [shown for one in ones for shown in one["examples"]][:MOST_EXAMPLES],
        }
    dropped = sum(one["documents_dropped"] for one in steps.values())
    return {**total, "documents_kept": total["documents"] - dropped, "steps": steps}


def lines(report: dict[str, Any]) -> list[str]:
    """Returns the report as a few lines for the terminal."""
    found = [f"cleaning: {report['documents_kept']:,} of {counted(report['documents'], 'document')} kept"]
    for step, one in report["steps"].items():
        line = (
            f"  {step}: {counted(one['documents_dropped'], 'document')} "
            f"({one['documents_dropped_share']:.2%}) and {counted(one['passages_dropped'], 'passage')} "
            f"dropped, {wording.size(one['bytes_dropped'])} ({one['bytes_dropped_share']:.2%}); "
            f"{counted(one['documents_changed'], 'document')} changed"
        )
        common = [f"{reason} {count:,}" for reason, count in list(one["reasons"].items())[:4]]
        found.append(line + (f" ({', '.join(common)})" if common else ""))
    return found
