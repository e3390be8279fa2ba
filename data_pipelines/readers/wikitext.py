"""Converts MediaWiki markup to paragraphs of continuous text, in time linear in its length."""

import re
from collections.abc import Set

from data_pipelines.readers.documents import unescape

HIDDEN_NAMESPACES = frozenset({"file", "image", "media", "category"})

_DROPPED_ELEMENTS = frozenset(
    "ref references math chem ce gallery timeline syntaxhighlight source score imagemap hiero mapframe "
    "maplink graph templatedata inputbox categorytree pre poem table ul ol dl script style includeonly "
    "section".split()
)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)  # an unclosed one extends to the end, as in MediaWiki
_TAG_NAME = re.compile(r"<([A-Za-z]+)")
_NOWIKI = re.compile(r"<(/?)nowiki\s*>", re.IGNORECASE)
_MARKS = {ord(mark): f"&#{ord(mark)};" for mark in "[]{}<>|'=*#:;_&"}
_BRACKETS = re.compile(r"\{\{|\}\}|^[ \t:]*\{\||^[ \t]*\|\}(?!\})|\[\[|\]\]", re.MULTILINE)
_CLOSES = {"}}": "{{", "|}": "{|", "]]": "[["}
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]+)*")
_HEADING = re.compile(r"=.*=$")
_NO_TEXT = ("*", "#", ":", ";", "|", "!", "----")
_LINE_BREAK = re.compile(r"<(?:br|p|hr)\b[^<>]{0,200}>", re.IGNORECASE)
# The targets of links, the ends of links, bold and italic marks, tags, magic words, stray template brackets.
_MARKUP = re.compile(
    r"\[\[:?(?:[^\[\]|]{0,300}\|)?|\]\]|'{2,}?(?='s\b)|'{2,}|</?[A-Za-z!][^<>]*>|__[A-Z]{3,30}__|\{\{|\}\}|\{\||\|\}"
)
_URL_LINK = re.compile(r"\[(?:[a-z]{3,8}:)?//[^\s\[\]]{0,2000}\s*([^\[\]\n]{0,500})\]")
_EMPTY_BRACKETS = re.compile(r" ?[(\[][\s,;:/–—-]*[)\]]")
_OPENED = re.compile(r"\(\s*[,;]\s*")
_SPACE_BEFORE = re.compile(r"\s+([,.;:!?)](?:\s|$))")


def paragraphs(text: str, hidden: Set[str] = HIDDEN_NAMESPACES) -> list[str]:
    """Returns the paragraphs of a page as plain text.

    Headings, lists, tables, references, templates, files and formulas are dropped.

    Args:
        text: wikitext, well-formed or not.
        hidden: the namespaces, in lower case, whose links show nothing or an image.
    """
    text = _COMMENT.sub("", _with_nowiki_escaped(text))
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
                    while spans and spans[-1][0] >= begin:  # inside this one
                        spans.pop()
                    spans.append((begin, match.end()))
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


def _is_hidden(text: str, begin: int, hidden: Set[str]) -> bool:
    prefix, colon, rest = text[begin : begin + 100].partition(":")
    if not colon or "]]" in prefix or "|" in prefix:
        return False
    if prefix.strip().lower().replace("_", " ") in hidden:
        return True
    # A link to the same article in another language has no label; other links with such a prefix have one.
    return bool(_LANGUAGE.fullmatch(prefix)) and "|" not in rest.partition("]]")[0]


def _plain(text: str) -> str:
    text = _MARKUP.sub("", _URL_LINK.sub(r"\1", _LINE_BREAK.sub(" ", text)))
    text = _EMPTY_BRACKETS.sub("", unescape(text))
    text = _OPENED.sub("(", " ".join(text.split()))
    return _SPACE_BEFORE.sub(r"\1", text)
