"""Sentence splitters side by side: speed on Wikipedia, and boundaries that were checked by hand.

    python benchmarks/sentence_splitters.py --wikipedia=DIR [--splitters=blingfire,nupunkt,...]

DIR holds the WikiExtractor files wiki_00 to wiki_99 of the English Wikipedia of 2014.
sentence_boundaries.tsv says of 120 paragraphs of them, by file and line, which of their final marks (. ! ?
before whitespace, counted from 0) end no sentence and which could be taken either way: 45 paragraphs were
drawn at random, 75 among those on which six splitters disagreed. CPU seconds of one process. Splitters that
aren't installed are left out.
"""

from __future__ import annotations

import csv
import glob
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator

from absl import app, flags

from bert_jax.errors import UserError
from data_pipelines import readers, sentences

FLAGS = flags.FLAGS
flags.DEFINE_string("wikipedia", None, "The directory of the WikiExtractor files.", required=True)
flags.DEFINE_list("splitters", None, "Which to run; all by default.")
flags.DEFINE_float("seconds", 5, "CPU time to give each for its speed.")

_MARK = re.compile(r"[.!?]['\")\]”’]*(?=\s+\S)")
_BOUNDARIES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sentence_boundaries.tsv")

Split = Callable[[str], list[str]]


def bert_jax() -> Split:
    return sentences.split_paragraph


def sentencex() -> Split:
    import sentencex

    return lambda text: list(sentencex.segment("en", text))


def blingfire() -> Split:
    import blingfire

    return lambda text: blingfire.text_to_sentences(text).split("\n")


def nupunkt() -> Split:
    import nupunkt

    return nupunkt.sent_tokenize


def nupunkt_rs() -> Split:
    import nupunkt_rs

    return nupunkt_rs.sent_tokenize


def nltk() -> Split:
    from nltk.tokenize.punkt import PunktSentenceTokenizer  # untrained: the model is a download

    return PunktSentenceTokenizer().tokenize


def segtok() -> Split:
    from segtok.segmenter import split_single

    return lambda text: list(split_single(text))


def spacy() -> Split:
    import spacy

    pipeline = spacy.blank("en")
    pipeline.add_pipe("sentencizer")
    return lambda text: [sentence.text for sentence in pipeline(text).sents]


def sentence_splitter() -> Split:
    from sentence_splitter import SentenceSplitter

    return SentenceSplitter(language="en").split


def syntok() -> Split:
    from syntok import segmenter

    def split(text: str) -> list[str]:
        found = itertools.chain.from_iterable(segmenter.process(text))
        return ["".join(token.spacing + token.value for token in sentence) for sentence in found]

    return split


def sentencesplit() -> Split:
    import sentencesplit

    return sentencesplit.Segmenter(language="en", clean=False).segment


def pysbd() -> Split:
    import pysbd

    return pysbd.Segmenter(language="en", clean=False).segment


SPLITTERS = (
    bert_jax, sentencex, blingfire, nupunkt, nupunkt_rs, nltk, segtok, spacy, sentence_splitter, syntok,
    sentencesplit, pysbd,
)  # fmt: skip


def boundaries(text: str, split: list[str]) -> set[int]:
    """Where the sentences of a text end, as offsets; the last one's end is left out."""
    found, place = set(), 0
    for sentence in filter(None, map(str.strip, split)):
        begin = text.find(sentence, place)
        if begin < 0:  # some change the whitespace within sentences
            begin = text.find(sentence[:25], place)
        if begin > 0:
            found.add(len(text[:begin].rstrip()))
        place = max(begin, place) + max(1, len(sentence) - 3)
    return found


def checked() -> Iterator[tuple[str, str, set[int], set[int]]]:
    """(how it was drawn, paragraph, the offsets of its boundaries, of the marks that are undecided)."""
    with open(_BOUNDARIES, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            with open(os.path.join(FLAGS.wikipedia, row["file"]), encoding="utf-8") as source:
                text = next(itertools.islice(source, int(row["line"]) - 1, None)).strip()
            marks = [match.end() for match in _MARK.finditer(text)]
            if len(marks) != int(row["marks"]):
                raise UserError(f"line {row['line']} of {row['file']} is not the paragraph that was checked")
            wrong, undecided = (
                {int(i) for i in row[n].split(",") if i} for n in ("not_a_boundary", "undecided")
            )
            right = {mark for i, mark in enumerate(marks) if i not in wrong | undecided}
            yield row["drawn"], text, right, {marks[i] for i in wrong | undecided if i in undecided}


def quality(split: Split) -> dict[str, tuple[int, int, float]]:
    """Wrong and missed boundaries at the marks, and F1, by how the paragraphs were drawn."""
    counts: dict[str, list[int]] = {}
    for drawn, text, right, undecided in checked():
        marks = {match.end() for match in _MARK.finditer(text)} - undecided
        found = boundaries(text, split(text)) & marks
        count = counts.setdefault(drawn, [0, 0, 0])
        for i, number in enumerate((len(found & right), len(found - right), len(right - found))):
            count[i] += number
    return {
        d: (wrong, missed, 2 * hit / (2 * hit + wrong + missed)) for d, (hit, wrong, missed) in counts.items()
    }


def speed(split: Split, paragraphs: list[str]) -> float:
    """MB of text a CPU second."""
    begun, size = time.process_time(), 0
    for paragraph in paragraphs:
        split(paragraph)
        size += len(paragraph.encode())
        if time.process_time() - begun > FLAGS.seconds:
            break
    return size / 1e6 / (time.process_time() - begun)


def main(_) -> None:
    paths = sorted(glob.glob(os.path.join(FLAGS.wikipedia, "wiki_*")))[::10]
    ranges = readers.split_ranges(paths, 1 << 40)
    documents = itertools.chain.from_iterable(readers.read_documents(r, "wikiextractor") for r in ranges)
    paragraphs = [passage for document in documents for passage in document.passages]
    print("| splitter | MB/s | at random: wrong, missed, F1 | disagreement: wrong, missed, F1 |")
    print("|---|---|---|---|")
    for make in SPLITTERS:
        if FLAGS.splitters and make.__name__ not in FLAGS.splitters:
            continue
        try:
            split = make()
        except ImportError:
            continue
        found = quality(split)
        cells = [
            ", ".join((*map(str, found[d][:2]), f"{found[d][2]:.3f}")) for d in ("at_random", "disagreement")
        ]
        print(f"| {make.__name__} | {speed(split, paragraphs):.2f} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    app.run(main)
