"""Lines on which a pattern that backtracks, or a library, would take time quadratic in their length.

Each test reads 1 MB that is made of one unit, in a second or two. Quadratic time would be hours, which end in
the timeout: nothing depends on how fast the machine is.
"""

import collections
import json

import pytest
from support import growth
from support.builds import read_documents

from bert_jax.tasks.question_answering.question_files import read_questions
from data_pipelines import cleaning, readers, sentences, vocabulary
from data_pipelines.cleaning import duplicates
from data_pipelines.readers import documents as plain
from data_pipelines.readers import wikitext

SIZE = 1 << 20
pytestmark = pytest.mark.timeout(300)


def line(unit, before="", after=""):
    return before + unit * (SIZE // len(unit)) + after


def dump(text):
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return f"<page><ns>0</ns><id>1</id><text>{text}</text></page>"


LINES = {
    "books": [
        (" ", "a", "b 1"), (".", "a", "b 1"), ("1 ", "a", "x"), ("1, ", "", "x"), (".", "contents", "x"),
        ("=a", "", ""), ("[Illustration", "", ""), ("[page ", "", ""), ("chapter ", "", "x"), ("{a", "", ""),
    ],
    "wikipedia_xml": [
        ("<nowiki></nowiki ", "", ""), ("<nowiki>", "", "</nowiki"), ("</nowiki ", "<nowiki>", ""),
        ("<ref", "", ""), ("<ref>", "", "</ref"), ("{{ ", "", ""), (" ", "{{", "~"), ("[[", "", ""),
        ("[//", "", ""), ("(,", "", ""), (" ", "a", ",x"), ("'", "", ""), ("&#1", "", ""), ("1", "&#", ";"),
        ("<!--", "", ""), ("{|\n", "", ""), ("_", "", ""), ("\t", "", "{|"), ("=", "=", "x"),
    ],
    "wikiextractor": [
        ("a", "<doc ", ">\nx\n</doc>"), ('title="', "<doc ", ">\nx\n</doc>"),
        ('a="', "<doc ", ">\nx\n</doc>"),
        ('" ', '<doc title="', ">\nx\n</doc>"), ("<b", '<doc id="1">\n', "\n</doc>"),
        ("1", '<doc id="1">\n&#', ";\n</doc>"), ("1", '<doc id="&#', ';">\nx\n</doc>'),
    ],
    "text": [(" ", "a", "b"), ("\u3000", "a", "b"), ("\x00", "a", "b"), ("<doc ", "", "")],
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("format", LINES)
def test_readers(tmp_path, format):
    for unit, before, after in LINES[format]:
        text = line(unit, before, after)
        (tmp_path / "x").write_text(dump(text) if format == "wikipedia_xml" else text)
        read_documents(tmp_path / "x", format)


def test_long_paragraphs_are_split_as_short_ones_are():
    # Real paragraphs are shorter than the window; a long one is to have the same sentences.
    one = [
        "It was late.",
        'He said: "Go home!"',
        "Dr. Smith (who had come early) stayed.",
        "Nobody knew why.",
    ]
    assert sentences.split_paragraph(" ".join(one * 1000)) == one * 1000


@pytest.mark.parametrize("unit", ["a", "a "])
def test_squad(tmp_path, unit):
    context = line(unit, "word ", " end")
    answers = [{"text": "end", "answer_start": len(context) - 4}]
    questions = [{"id": str(i), "question": "Which?", "answers": answers} for i in range(2000)]
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": questions}]}]}))
    assert len(read_questions(str(path))) == 2000


def cleaned(*names):
    settings = cleaning.Settings(steps=names, language="en")
    return lambda text: cleaning.Cleaner(settings)(readers.Document("key", (text,), False))


OF_ANY_TEXT = {
    "sentences": sentences.split_paragraph,
    "sentences, Japanese": lambda text: sentences.split_paragraph(text, "ja"),
    "unicode, length": cleaned("unicode", "length"),
    "language": cleaned("language"),
    "exact": cleaned("exact"),
    "near": lambda text: duplicates.signature(cleaning.folded_text([text])),
    "wikitext": wikitext.paragraphs,
    "unescape": plain.unescape,
    "plain": lambda text: list(plain.text_document("", text, collections.Counter(), False)),
    "short parts": lambda text: list(plain.split_long(text, 1000)),
    "long words": lambda text: vocabulary._LONG_BPE_WORD.sub("", vocabulary._LONG_WORD.sub("", text)),
}


@pytest.mark.long
@pytest.mark.parametrize("name", OF_ANY_TEXT)
def test_any_text(name):
    assert not growth.superlinear(OF_ANY_TEXT[name], growth.texts(80_000).values())
