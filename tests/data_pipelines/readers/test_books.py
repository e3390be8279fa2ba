"""Books: paragraphs of prose, without Project Gutenberg's texts, headings and contents."""

import collections

import pytest
from support.builds import read_documents

BODY = """THE TITLE

By A. Writer


CONTENTS

   I. A BEGINNING             3
  II. AN END                 17


CHAPTER I

A Beginning

It was a _dark_ and stormy night, and the rain fell down in well-
kept torrents upon the roofs of the town, except at times--
when it was checked by the wind.[1]  "Who goes there?" he cried.

       *       *       *       *       *

  Tyger, tyger, burning bright
  In the forests of the night,

[Illustration: A tiger]

II

The end came.
"""
PASSAGES = (
    "It was a dark and stormy night, and the rain fell down in well-kept torrents upon the roofs of the "
    'town, except at times--when it was checked by the wind. "Who goes there?" he cried.',
    "Tyger, tyger, burning bright In the forests of the night,",
    "The end came.",
)
LICENSE = "\nThis text is for the use of anyone anywhere at no cost.\n"


def read(path, counts=None):
    return read_documents(path, "books", 100, counts)


@pytest.mark.parametrize(
    "head, tail",
    [
        ("", ""),
        (
            "The Project Gutenberg EBook of A Title\n\n"
            "*** START OF THIS PROJECT GUTENBERG EBOOK A TITLE ***\n\n"
            "Produced by A. Reader and the\nDistributed Proofreading Team\n\n",
            "\n\nEnd of the Project Gutenberg EBook of A Title, by A. Writer\n" + LICENSE,
        ),
        (
            "***START OF THE PROJECT GUTENBERG EBOOK A LONG\nTITLE***\n\nE-text prepared by A. Reader\n\n",
            "\n***END OF THE PROJECT GUTENBERG EBOOK A LONG TITLE***\n" + LICENSE,
        ),
        (
            "***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN ETEXTS**START***\nWhy is this here?\n"
            "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n\n"
            "This etext was prepared by A. Reader, of a town.\n\n",
            "\nEnd of Project Gutenberg's A Title\n" + LICENSE,
        ),
        (
            LICENSE + "*END THE SMALL PRINT! FOR PUBLIC DOMAIN EBOOKS*Ver.02/11/02*END*\n\n",
            "\n*** END OF THE PROJECT GUTENBERG EBOOK A TITLE ***\n\n*** START: FULL LICENSE ***\n" + LICENSE,
        ),
    ],
    ids=["none", "this", "tight", "small-print", "small-print-2002"],
)
def test_headers_and_footers(tmp_path, head, tail):
    path = tmp_path / "book.txt"
    path.write_bytes((head + BODY + tail).replace("\n", "\r\n").encode())
    documents = read(path)
    assert [(d.key, d.part, d.presplit) for d in documents] == [("book.txt", 0, False)]
    assert documents[0].passages == PASSAGES


def test_latin_1(tmp_path):
    counts = collections.Counter()
    (tmp_path / "book.txt").write_bytes("The café’s naïve guest, she said.\n".encode("cp1252"))
    (tmp_path / "utf.txt").write_bytes("The café’s naïve guest, she said.\n".encode())
    for name in ("book.txt", "utf.txt"):
        assert read(tmp_path / name, counts)[0].passages == ("The café’s naïve guest, she said.",)
    assert counts["latin_1_books"] == 1


def test_real_books_keep_their_text_and_lose_their_headings(shared_data, tmp_path):
    import tarfile

    with tarfile.open(shared_data / "books.tar.xz") as archive:
        member = next(m for m in archive if m.isfile() and m.name.endswith(".txt") and m.size > 100_000)
        data = archive.extractfile(member).read()
    (tmp_path / "book.txt").write_bytes(data)
    counts = collections.Counter()
    documents = read(tmp_path / "book.txt", counts)
    words = sum(len(p.split()) for d in documents for p in d.passages)
    assert 0.9 < words / len(data.split()) <= 1.0 and not counts["latin_1_books"]
