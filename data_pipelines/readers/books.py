"""Reads the format `books`: each file is a book of Project Gutenberg, with blank lines between paragraphs.

The short lines of a paragraph are joined. The project's own texts are dropped, and so are headings, tables of
contents and indexes, which are not sentences.
"""

import collections
import re
from collections.abc import Iterable, Iterator

from data_pipelines.readers.documents import Document, Passages, Range, clean, open_lines, without_controls

_HEAD_LINES = 1200  # the project's header, if there is one, ends in these lines
_BLOCK_LINES = 2000  # longer blocks lack their blank lines and are split
_CREDIT_BLOCKS = 12  # blocks after the header that may name the makers of the file

_START = re.compile(
    r"\*{2,3} ?START OF (?:THIS|THE) PROJECT GUTENBERG|"
    r"\*END ?\*? ?THE SMALL PRINT|"
    r"(?:<><><>)?#?END OF THE (?:LEGAL )?SMALL PRINT",
    re.IGNORECASE,
)
_END = re.compile(
    r"\*{2,3} ?END OF (?:THIS|THE) PROJECT GUTENBERG|"
    r"(?:This is the )?End of (?:The |This )?Project Gutenberg|"
    r"\*{3} ?START: FULL LICENSE",
    re.IGNORECASE,
)
_BOILERPLATE = re.compile(r"project gutenberg|gutenberg\.(?:org|net)|pglaf\.org", re.IGNORECASE)
_CREDIT = re.compile(
    r"\W{0,3}(?:(?:this )?(?:e-?text|e-?book|file|html version) (?:was |is )?"
    r"(?:first |originally |kindly )?(?:prepared|produced|created|transcribed|scanned|typed|made)\b|"
    r"(?:first )?(?:produced|transcribed|prepared|scanned|proofed|typed|digitized|html version) "
    r"(?:(?:and|&) \w+ )?(?:by|from)\b|\[?(?:transcriber|proofreader|etext editor)['’]?s?['’]? notes?\b|"
    r"(?:images|page images) of the original|character set encoding|release date:|posting date:|language: )",
    re.IGNORECASE,
)
_NOTE = re.compile(
    r"\[(?:Illustration|Transcriber|Sidenote|Frontispiece|Picture|Blank page)[^\[\]]*\]", re.IGNORECASE
)
_MARK = re.compile(
    r"\s?(?:\[(?:\d{1,4}|[A-Z*])\]|\[pg?\.? ?\d+\]|\[page \w+\]|\{\d{1,4}\w?\}|"
    r"\{[^{}]{0,80}\.jpg\})",
    re.IGNORECASE,
)
_BOLD = re.compile(r"(?<![\w=])=([^=]{1,200})=(?![\w=])")

_ROMAN = r"(?:[IVXLC]{1,7}|\d{1,3})"
_CHAPTER = re.compile(
    r"(?:the )?(?:chapter|chap\.|book|part|volume|vol\.|section|canto|act|scene|letter|stave|"
    rf"appendix|preface|introduction|contents|index|illustrations|footnotes?|notes|epilogue|prologue)\b"
    rf"(?:\W*{_ROMAN}\b.{{0,80}}|\W*)$|"
    rf"{_ROMAN}\W*$",
    re.IGNORECASE,
)
_CONTENTS = re.compile(
    r"\W*(?:table of )?(?:contents|(?:list of )?(?:illustrations|plates|maps))\W*"
    r"(?:page)?\W*$",
    re.IGNORECASE,
)
# A title and its page, an entry and its pages, or a numbered title. It backtracks, so it is applied only to
# short lines.
_ENTRY = re.compile(
    rf".{{0,200}}(?:\s{{2,}}|\.{{2,}}\s?|[.,;] ?)(?:\d{{1,4}}|[ivxlc]{{1,7}})"
    rf"(?:[-,; ]+\d{{1,4}})*(?: \(note\))?[.;,]?$|"
    rf"\W{{0,4}}(?:chapter\s+)?{_ROMAN}[.:)\s]\s{{0,9}}\S.{{0,70}}$|.{{0,60}}\bpage$",
    re.IGNORECASE,
)
_PAGE_AT_END = re.compile(r"(?:\s{3}|\.{3}\s?)\d{1,4}$")  # matches at most eight characters
_LONGEST_ENTRY = 1000  # characters; a longer line is not part of a table of contents
_ENDS_SENTENCE = re.compile(r"[.!?:;,—-][\"'’”)\]_*]*$|--$")


def read(
    range_: Range, counts: collections.Counter[str], text_field: str, spaces: bool
) -> Iterator[Document]:
    """Yields the book in a file, in parts if it is long; the passages are its paragraphs."""
    passages = Passages(range_.name, False, counts)
    contents = False
    for number, lines in enumerate(_blocks(_body(_text_lines(range_, counts, spaces)))):
        text = join_lines(lines)
        if _BOILERPLATE.search(text) or (number < _CREDIT_BLOCKS and _CREDIT.match(text)):
            counts["boilerplate"] += 1
            continue
        if len(lines[0]) <= _LONGEST_ENTRY and _CONTENTS.match(lines[0].strip()):
            contents = True
            counts["headings"] += 1
            continue
        contents = contents and not (_is_prose(lines) or _is_verse(lines))
        if contents or _is_list(lines) or _is_heading(lines):
            counts["headings"] += 1
            continue
        text = clean(_plain(text), counts, spaces)
        if any(map(str.isalpha, text)):
            yield from passages.add(text, len(text))
    yield from passages.rest()


def _text_lines(range_: Range, counts: collections.Counter[str], spaces: bool) -> Iterator[str]:
    """Yields lines without their line ends; lines that are not UTF-8 are read as Windows-1252 or Latin-1."""
    latin = False
    with open_lines(range_, counts) as lines:
        for line in lines:
            try:
                text = line.data.decode()
            except UnicodeDecodeError:
                counts["latin_1_books"] += not latin
                latin = True
                text = _latin(line.data)
            # Before lines are joined: later, a whitespace control character would be a space.
            text, number = without_controls(text.rstrip(), spaces)
            counts["control_characters"] += number
            text = text.rstrip()
            # A very long line, or part of one, is a separate block, like a paragraph on one line.
            yield text
            if len(line.data) > 2000:
                yield ""


def _latin(data: bytes) -> str:
    try:
        return data.decode("cp1252")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _body(lines: Iterable[str]) -> Iterator[str]:
    """Yields the lines between the project's header and footer."""
    lines = iter(lines)
    head: list[str] = []
    begin = 0
    for line in lines:
        head.append(line)
        if _START.match(line.lstrip()):
            begin = len(head)
            # The title in this line may continue in the next lines.
            if line.count("*") >= 3 and not line.endswith("*") and "SMALL PRINT" not in line.upper():
                for line in lines:
                    head.append(line)
                    begin = len(head)
                    if not line or line.endswith("*"):
                        break
        if len(head) >= _HEAD_LINES:
            break
    for line in head[begin:]:
        if _END.match(line.lstrip()):
            return
        yield line
    for line in lines:
        if _END.match(line.lstrip()):
            return
        yield line


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    block: list[str] = []
    for line in lines:
        if line:
            block.append(line)
        if block and (not line or len(block) >= _BLOCK_LINES):
            yield block
            block = []
    if block:
        yield block


def join_lines(lines: Iterable[str]) -> str:
    """Joins lines with spaces, or without a space after a line that ends in a dash or a hyphen.

    Hyphens at the ends of lines belong to compound words: the project's texts do not hyphenate other words.
    """
    text = ""
    for line in lines:
        line = " ".join(line.split())
        tight = text.endswith(("--", "—")) or (
            text.endswith("-") and text[-2:-1].isalnum() and line[:1].isalnum()
        )
        text += line if tight or not text else " " + line
    return text


def _is_prose(lines: list[str]) -> bool:
    return (
        len(lines) > 1
        and len(lines[0]) >= 50
        and bool(_ENDS_SENTENCE.search(lines[-1]))
        and not _is_list(lines)
    )


def _is_verse(lines: list[str]) -> bool:
    """Returns True for a stanza; entries of a table of contents seldom end in a comma."""
    return (
        len(lines) > 2
        and bool(_ENDS_SENTENCE.search(lines[-1]))
        and any(line.endswith((",", ";")) for line in lines[:-1])
        and not _is_list(lines)
        and not _is_heading(lines)
    )


def _is_list(lines: list[str]) -> bool:
    """Returns True if most lines (70%) look like entries of a table of contents or an index."""
    if len(lines) < 2 and not _PAGE_AT_END.search(lines[0][-8:]):
        return False
    entries = sum(len(line) <= _LONGEST_ENTRY and bool(_ENTRY.match(line.strip())) for line in lines)
    return entries * 10 >= 7 * len(lines)


def _is_heading(lines: list[str]) -> bool:
    """Returns True if a block has no lower-case letters, is a chapter title, or is one short line."""
    text = " ".join(lines).strip()
    if len(text) > 300:
        return False
    if text.upper() == text or _CHAPTER.match(text):
        return True
    return len(lines) == 1 and len(text) < 60 and not _ENDS_SENTENCE.search(text)


def _plain(text: str) -> str:
    if "[" in text or "{" in text:
        text = _MARK.sub("", _NOTE.sub("", text))
    if "=" in text:
        text = _BOLD.sub(r"\1", text)
    return " ".join(text.replace("_", "").split())
