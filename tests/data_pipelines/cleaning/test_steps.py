"""The cleaning of single documents, and the flags that ask for it."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines import cleaning, readers
from data_pipelines.readers import Document

SETTINGS = cleaning.Settings(cleaning.STEPS, language="en")


def document(*passages):
    return Document("a", passages, True)


TEXT = st.text(st.characters(codec="utf-8"), max_size=60) | st.text(
    "a b\u0301é\u200b\u200d\u00ad\u2003\u2028\u202e\ufeff\ufffd\x00\x85\t\u1100\u1161", max_size=30
)


@settings(deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=4))
def test_unicode_twice_is_unicode_once(passages):
    once = cleaning.clean_unicode(document(*passages), SETTINGS).document
    if once is None:
        return
    again = cleaning.clean_unicode(once, SETTINGS)
    assert again.document is once and not again.dropped
    for passage in once.passages:
        assert passage == passage.strip() and "  " not in passage
        assert unicodedata.is_normalized("NFC", passage)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("cafe\u0301", "café"),
        ("a\u00a0b\u2003\u3000c\td", "a b c d"),
        ("zero\u200bwidth and \ufeffmarks\u200e, soft\u00adhyphen", "zerowidth and marks, softhyphen"),
        ("bell\x07 and \x9fcontrol", "bell and control"),
        ("می\u200cخواهم", "می\u200cخواهم"),  # the joiner is spelling
        ("x\u2028y", "x y"),
        ("ordinary (text).", "ordinary (text)."),
        ("one \ufffd among forty characters of good text", "one \ufffd among forty characters of good text"),
    ],
    ids=["nfc", "spaces", "invisible", "controls", "joiner", "separator", "plain", "rare-fffd"],
)
def test_unicode(text, expected):
    assert cleaning.clean_unicode(document(text), SETTINGS).document.passages == (expected,)


def test_length_bounds(monkeypatch):
    monkeypatch.setattr(cleaning, "_LEAST_DOCUMENT_CHARACTERS", 10)
    settings = cleaning.Settings(("length",))

    def passages(*texts):
        found = cleaning.clean_length(document(*texts), settings).document
        return found and found.passages

    assert passages("ab", "abcd efghij") == ("abcd efghij",)
    assert passages("short") is None
    assert passages("a fine text", "text " * 30_000) == ("a fine text",)
    assert passages(f"the {'abc' * 40} word goes") == ("the word goes",)
    assert passages("東京" * 60) == ("東京" * 60,)  # no words to measure
    assert cleaning.clean_length(document("short"), settings).dropped == (("short document", "short"),)
    last = readers.Document("a#2", ("short",), True, part=2)  # the end of a long one
    assert cleaning.clean_length(last, settings).document is last


def test_language():
    pytest.importorskip("py3langid")
    german = document("Die Stadt liegt am Ufer des Flusses.", "Sie hat zwanzigtausend Einwohner.")
    english = document("The town lies on the bank of the river.", "Twenty thousand people live there.")
    assert cleaning.clean_language(english, SETTINGS).document is english
    outcome = cleaning.clean_language(german, SETTINGS)
    assert outcome.document is None and outcome.dropped[0][0] == "language de"
    # Only the first 2,000 characters count.
    mixed = document(*german.passages * 30, *english.passages * 100)
    assert sum(map(len, german.passages * 30)) > 2000
    assert cleaning.clean_language(mixed, SETTINGS).dropped[0][0] == "language de"


def test_repeated_passages_of_a_document():
    long = "All rights reserved by the people who made it."
    outcome = cleaning.clean_repeated_passages(document("Yes.", long, "Yes.", long.upper() + " "), SETTINGS)
    assert outcome.document.passages == ("Yes.", long, "Yes.")
    assert [reason for reason, _ in outcome.dropped] == ["repeated passage"]
