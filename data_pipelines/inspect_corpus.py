"""Reports problems of a corpus before records are made from it: `bert-jax inspect` for text.

Memory is bounded: once there are over a million distinct lines or documents, only the hashes of a random
sample are kept, and the reported fractions are estimates. Of a corpus of over MOST_BYTES, evenly spaced
ranges are read.
"""

from __future__ import annotations

import collections
import os
import re
from collections.abc import Sequence

from bert_jax import tokenization
from bert_jax.data.inspection import DistinctSample, Report
from bert_jax.io import files, progress
from bert_jax.io.wording import counted
from data_pipelines import cleaning, readers
from data_pipelines.readers import documents

MOST_BYTES = 1 << 30  # of a larger corpus, only ranges with this total size are read
_RANGE_BYTES = 8 << 20
_MOST_LINES = 1 << 20  # that are counted; the rarest are forgotten then
_MOST_ENCODED_CHARACTERS = 32 << 20
_LONG_LINE = 10_000  # characters; sentences and paragraphs are shorter
_LONG_SENTENCE = 400  # characters on average
_LARGEST_VOCABULARY = 64 << 20  # bytes; a larger file is taken for text without reading it
_SHOWN = 5
_SHOWN_CHARACTERS = 80
_MARKUP = re.compile(r"</?[a-zA-Z][^<>]{0,200}>|&(?:[a-z]{2,8}|#\d{2,6});|\{\{|\}\}|\[\[|\]\]")

_HIGH_FRACTIONS = {
    "duplicate_text": (0.05, "lines repeat earlier ones: are there headers, footers or menus?"),
    "duplicate_documents": (0.01, "bert-jax data --clean=exact,near drops them"),
    "markup_lines": (
        0.01,
        "--input_format=wikipedia_xml and wikiextractor drop the markup of such files (docs/corpora.md)",
    ),
}
_HIGH_UNKNOWN_FRACTION = 0.01
_FEW_LINES = 100  # a corpus with fewer lines is not judged


def inspect_corpus(
    inputs: Sequence[str],
    input_format: str = readers.AUTO,
    vocab: str | None = None,
    text_field: str = readers.TEXT_FIELD,
) -> Report:
    """Reads text as `bert-jax data` does and reports what would harm a model.

    Args:
        inputs: files, folders or patterns.
        input_format: one of `readers.FORMATS`, or `readers.AUTO`.
        vocab: a vocabulary with which the fraction of unknown tokens is measured, or None.
        text_field: the field of records that has the text.

    Raises:
        UserError: there is no text, the format is unknown, `vocab` is not a vocabulary, or `text_field` has
            no effect.
    """
    paths = readers.list_inputs(inputs)
    input_format = readers.resolve_format(paths, input_format, text_field)
    tokenizer = tokenization.load(vocab, log=progress.log) if vocab else None
    ranges = readers.split_ranges(paths, _RANGE_BYTES, input_format)
    total = sum(range_.size for range_ in ranges)
    every = -(-total // MOST_BYTES)
    read: collections.Counter[str] = collections.Counter()
    line_sample, document_sample = DistinctSample(), DistinctSample()
    frequent_lines: collections.Counter[str] = collections.Counter()
    counts: collections.Counter[str] = collections.Counter()
    cut = False
    for range_ in ranges[::every]:
        most = counts["characters"] + MOST_BYTES
        for document in readers.read_documents(range_, input_format, read, text_field):
            document_sample.add(_encode(cleaning.folded_text(document.passages)))
            for line in document.passages:
                folded = cleaning.folded_text([line])
                line_sample.add(_encode(folded))
                frequent_lines[folded[:_SHOWN_CHARACTERS]] += 1
                counts["lines"] += 1
                counts["characters"] += len(line)
                counts["markup_lines"] += bool(_MARKUP.search(line))
                counts["long_lines"] += len(line) > _LONG_LINE
            if len(frequent_lines) > _MOST_LINES:
                frequent_lines = collections.Counter({one: n for one, n in frequent_lines.items() if n > 1})
            if tokenizer and counts["encoded"] < _MOST_ENCODED_CHARACTERS:
                counts["encoded"] += sum(map(len, document.passages))
                for ids in tokenizer.encode_batch(document.passages):
                    counts["tokens"] += len(ids)
                    counts["unknown"] += ids.count(tokenizer.unk_id)
            # A compressed file is one range, and the size of its text is not known in advance.
            if range_.end is None and counts["characters"] > most:
                cut = True
                break
    report = Report(inputs[0] if len(inputs) == 1 else f"{inputs[0]}, ...", "corpus")
    report.facts = {"files": len(paths), "bytes": total, "input_format": input_format}
    if every > 1:
        size = sum(range_.size for range_ in ranges[::every])
        report.facts["sampled"] = f"{size:,} bytes, evenly spaced, were read"
    if cut:
        report.facts["cut"] = f"of a compressed file, the first {MOST_BYTES:,} characters were read"
    report.facts |= {
        "documents": read["documents"],
        "lines": counts["lines"],
        "characters": counts["characters"],
        "duplicate_lines": line_sample.repeated_share(),
        "duplicate_text": line_sample.repeated_share_of_bytes(),
        "duplicate_documents": document_sample.repeated_share(),
        "markup_lines": counts["markup_lines"] / max(1, counts["lines"]),
        "long_lines": counts["long_lines"],
    }
    shown = ("undecodable", "control_characters", "bad_lines", "without_text")
    report.facts |= {name: read[name] for name in shown}
    for name, sample in (("lines", line_sample), ("documents", document_sample)):
        if estimated := sample.how_estimated():
            report.facts[f"duplicate_{name}_estimated"] = estimated
    report.facts["frequent_lines"] = {line: n for line, n in frequent_lines.most_common(_SHOWN) if n > 1}
    if tokenizer:
        report.facts["tokens"] = counts["tokens"]
        report.facts["unknown_share"] = counts["unknown"] / max(1, counts["tokens"])
    report.problems = _problems(report, read, input_format, cut or every > 1)
    return report


def _problems(report: Report, read: collections.Counter[str], input_format: str, sampled: bool) -> list[str]:
    """Returns what should be fixed in the corpus, and how."""
    facts = report.facts
    lines = facts["lines"]
    if not lines:
        return [f"no text was found: is --input_format={input_format} right?"]
    problems: list[str] = []
    sentence_lines = readers.FORMATS[input_format].sentence_lines
    if facts["documents"] == 1 and not sampled:
        more = "give more documents (in text, a blank line ends one), or --nsp=none"
        problems.append(f"the corpus is one document, and next-sentence prediction needs others: {more}")
    elif sentence_lines and lines == facts["documents"] >= _FEW_LINES:
        problems.append(
            "every document is one line, so no sentence has a next one: are there blank lines between "
            "the sentences of a document?"
        )
    if sentence_lines and facts["characters"] > _LONG_SENTENCE * lines and lines >= _FEW_LINES:
        problems.append(
            f"a line of the text has {facts['characters'] / lines:.0f} characters on average, where one "
            "sentence is expected: if the lines are paragraphs, give --input_format=paragraphs"
        )
    problems += readers.skipped(read)
    if read["long_documents"]:
        problems.append(
            f"{counted(read['long_documents'], 'document')} of over {documents.MAX_DOCUMENT_BYTES >> 20} MB: "
            "are the blank lines between documents missing?"
        )
    for name, (most, advice) in _HIGH_FRACTIONS.items():
        if facts[name] > most and lines >= _FEW_LINES:
            problems.append(f"{facts[name]:.1%} {name.replace('_', ' ')}; {advice}")
    if facts["long_lines"]:
        problems.append(f"lines of over {_LONG_LINE:,} characters: {facts['long_lines']}")
    if read["undecodable"]:
        problems.append(
            f"{counted(read['undecodable'], 'place')} of the text cannot be decoded: convert files to UTF-8 "
            "with iconv, or write JSON without halves of surrogate pairs such as \\ud83d"
        )
    if facts.get("unknown_share", 0) > _HIGH_UNKNOWN_FRACTION:
        problems.append(
            f"{facts['unknown_share']:.1%} of the tokens are [UNK]: was the vocabulary made for this "
            "language, case and script?"
        )
    return problems


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def looks_like_vocabulary(path: str) -> bool:
    """Returns True if a .txt file is a WordPiece vocabulary: if a line is a special token of BERT."""
    if os.path.basename(path).startswith("vocab"):
        return True
    if files.size(path) > _LARGEST_VOCABULARY:
        return False
    with files.open_read(path) as file:
        return any(line.strip() in (b"[UNK]", b"[CLS]", b"[SEP]", b"[MASK]") for line in file)
