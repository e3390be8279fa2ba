"""Converts MediaWiki markup to paragraphs of running text.

mwparserfromhell parses the markup of links and formatting at 2 MB per second. On whole articles, with their
templates and references, it is fifty times slower, and on some markup it does not terminate. Therefore, what
is not text is removed first, by scans in linear time for any nesting of brackets, and only short, balanced
paragraphs with markup are parsed.
"""

import re
from collections.abc import Set

import mwparserfromhell

from data_pipelines.readers.documents import unescape

HIDDEN_NAMESPACES = frozenset({"file", "image", "media", "category"})

_DROPPED_ELEMENTS = frozenset(
    "ref references math chem ce gallery timeline syntaxhighlight source score imagemap hiero mapframe "
    "maplink graph templatedata inputbox categorytree pre poem table ul ol dl script style includeonly "
    "section".split()
)
_TAG_NAME = re.compile(r"<([A-Za-z]+)")
_NOWIKI = re.compile(r"<(/?)nowiki\s*>", re.IGNORECASE)
_MARKS = {ord(mark): f"&#{ord(mark)};" for mark in "[]{}<>|'=*#:;_&"}
_BRACKETS = re.compile(r"\{\{|\}\}|^[ \t:]*\{\||^[ \t]*\|\}(?!\})|\[\[|\]\]", re.MULTILINE)
_CLOSES = {"}}": "{{", "|}": "{|", "]]": "[["}
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]+)*")
_HEADING = re.compile(r"=.*=$")
_NO_TEXT = ("*", "#", ":", ";", "|", "!", "----")
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_LINE_BREAK = re.compile(r"<(?:br|p|hr)\b[^<>]{0,200}>", re.IGNORECASE)
_MAGIC_WORD = re.compile(r"__[A-Z]{3,30}__")
_MARKUP = re.compile(r"\[|\]|''|<|>")
_LEFT_OVER = re.compile(
    r"\[\[(?:[^\[\]|]{0,300}\|)?|\]\]|\{\{|\}\}|\{\||\|\}|'{2,}|\[(?:https?:)?//[^\s\]]*|<[A-Za-z/!][^<>]*>"
)
_EMPTY_BRACKETS = re.compile(r" ?[(\[][\s,;:/–—-]*[)\]]")
_OPENED = re.compile(r"\(\s*[,;]\s*")
_SPACE_BEFORE = re.compile(r"\s+([,.;:!?)](?:\s|$))")
_MOST_MARKUP = 400  # maximum number of marks in a parsed paragraph; one with hundreds of links is a list
_LONGEST_PARSED = 30_000


def paragraphs(text: str, hidden: Set[str] = HIDDEN_NAMESPACES) -> list[str]:
    """Returns the paragraphs of a page as plain text.

    Headings, lists, tables, references, templates, files and formulas are dropped.

    Args:
        text: wikitext, well-formed or not. Time and memory are linear in its length.
        hidden: the namespaces, in lower case, whose links show nothing or an image.
    """
    text = _without_comments(_with_nowiki_escaped(text))
    for name in sorted(_DROPPED_ELEMENTS & {name.lower() for name in _TAG_NAME.findall(text)}):
        text = _without_elements(text, name)
    text = _without_brackets(text, hidden)
    found: list[str] = []
    lines: list[str] = []
    for line in [*text.split("\n"), ""]:
        line = line.strip()
        if line and not line.startswith(_NO_TEXT) and not _HEADING.match(line):
            lines.append(line)
        elif lines:
            plain = _plain(" ".join(lines))
            if any(map(str.isalpha, plain)):
                found.append(plain)
            lines = []
    return found


def _with_nowiki_escaped(text: str) -> str:
    """Replaces <nowiki> elements by their contents, with the markup in it as character references."""
    kept: list[str] = []
    end, opening = 0, None
    for tag in _NOWIKI.finditer(text):
        if not tag[1]:
            opening = opening or tag
        elif opening:
            kept += text[end : opening.start()], text[opening.end() : tag.start()].translate(_MARKS)
            end, opening = tag.end(), None
    return "".join([*kept, text[end:]]) if kept else text


def _without_comments(text: str) -> str:
    """Removes comments; an unclosed comment extends to the end of the text, as in MediaWiki."""
    begin = text.find("<!--")
    if begin < 0:
        return text
    kept, end = [], 0
    while begin >= 0:
        kept.append(text[end:begin])
        end = text.find("-->", begin + 4) + 3
        if end < 3:
            return "".join(kept)
        begin = text.find("<!--", end)
    return "".join([*kept, text[end:]])


def _without_elements(text: str, name: str) -> str:
    """Removes elements with their contents; of an element without a closing tag, only the tag is removed."""
    opening = re.compile(rf"<{name}(?:[\s/][^<>]*)?>", re.IGNORECASE)
    closing = re.compile(rf"</{name}\s*>", re.IGNORECASE)
    kept, end, closed = [], 0, True
    for match in opening.finditer(text):
        if match.start() < end:
            continue
        kept.append(text[end : match.start()])
        end = match.end()
        if closed and not match[0].endswith("/>"):
            close = closing.search(text, end)
            closed = close is not None
            end = close.end() if close else end
    return "".join([*kept, text[end:]])


def _without_brackets(text: str, hidden: Set[str]) -> str:
    """Removes templates, tables and links that show no text, with everything nested in them."""
    spans: list[tuple[int, int]] = []
    stack: list[tuple[str, int]] = []
    depths = dict.fromkeys(_CLOSES.values(), 0)
    for match in _BRACKETS.finditer(text):
        mark = match[0][-2:]
        opener = _CLOSES.get(mark)
        if opener is None:
            stack.append((mark, match.start()))
            depths[mark] += 1
            continue
        # Brackets that were opened later are discarded, so that an unclosed link does not hide the end of a
        # template.
        while depths[opener]:
            kind, begin = stack.pop()
            depths[kind] -= 1
            if kind == opener:
                if opener != "[[" or _is_hidden(text, begin + 2, hidden):
                    _add_span(spans, begin, match.end())
                break
    for kind, begin in stack:
        if kind == "{|":  # an unclosed table is taken to end at the next heading
            heading = text.find("\n==", begin)
            spans.append((begin, heading if heading >= 0 else len(text)))
            spans.sort()
            break
    kept, end = [], 0
    for begin, after in spans:
        if begin >= end:
            kept.append(text[end:begin])
        end = max(end, after)
    return "".join([*kept, text[end:]])


def _add_span(spans: list[tuple[int, int]], begin: int, end: int) -> None:
    """Adds a span that ends after all others, and removes those inside it."""
    while spans and spans[-1][0] >= begin:
        spans.pop()
    spans.append((begin, end))


def _is_hidden(text: str, begin: int, hidden: Set[str]) -> bool:
    target = text[begin : begin + 100]
    prefix, colon, rest = target.partition(":")
    if not colon or "]]" in prefix or "|" in prefix:
        return False
    if prefix.strip().lower().replace("_", " ") in hidden:
        return True
    # A link to the same article in another language has no label; other links with such a prefix have one.
    return bool(_LANGUAGE.fullmatch(prefix)) and "|" not in rest.partition("]]")[0]


def _plain(text: str) -> str:
    if "<" in text:
        text = _LINE_BREAK.sub(" ", text)
    if "__" in text:
        text = _MAGIC_WORD.sub("", text)
    marks = len(_MARKUP.findall(text))
    if marks:
        text = text.replace("[[:", "[[")
        if marks <= _MOST_MARKUP and len(text) <= _LONGEST_PARSED and _is_balanced(text):
            text = _parsed(text)
        text = _LEFT_OVER.sub("", text)
    if "{{" in text or "}}" in text:
        text = text.replace("{{", "").replace("}}", "")
    if "&" in text:
        text = unescape(text)
    text = _EMPTY_BRACKETS.sub("", text)
    text = _OPENED.sub("(", " ".join(text.split()))
    return _SPACE_BEFORE.sub(r"\1", text)


def _is_balanced(text: str) -> bool:
    """Returns whether links are closed and nested at most two deep, and tags are paired and at most 60."""
    depth = 0
    for mark in re.findall(r"\[\[|\]\]", text):
        depth += 1 if mark == "[[" else -1
        if not 0 <= depth <= 2:
            return False
    tags = _TAG.findall(text)
    opened = sum(not tag.startswith("</") and not tag.endswith("/>") for tag in tags)
    if depth or text.count("[") != text.count("]"):
        return False
    return len(tags) <= 60 and 2 * opened == len(tags) - sum(tag.endswith("/>") for tag in tags)


def _parsed(text: str) -> str:
    """Returns the visible text of a paragraph, with its character entities, which are decoded later."""
    try:
        return str(mwparserfromhell.parse(text).strip_code(normalize=False, collapse=False))
    except (mwparserfromhell.parser.ParserError, RecursionError):
        return text
