"""Converts MediaWiki markup to paragraphs of continuous text, in time linear in its length."""

import re
from collections import Counter
from collections.abc import Iterable, Set

from data_pipelines import sentences
from data_pipelines.readers.documents import unescape

HIDDEN_NAMESPACES = frozenset({"file", "image", "media", "category"})

_FORMULAS = frozenset("math chem ce score hiero".split())
_DROPPED_ELEMENTS = _FORMULAS | frozenset(
    "ref references gallery timeline syntaxhighlight source imagemap mapframe "
    "maplink graph templatedata inputbox categorytree pre poem table ul ol dl script style includeonly "
    "section".split()
)
# Replaces a formula or an inline template whose text is not known. It is a Unicode noncharacter.
_HOLE = "\ufdd0"
# Templates that show their first or their last argument; that show nothing; and that show one text.
_FIRST = frozenset(
    "nowrap nobr nobold small smaller big em strong uc abbr tooltip angbr quote blockquote ill sic mvar "
    "var math sup sub smallcaps sc linktext vanchor chem2 nihongo".split()
)
_LAST = frozenset("lang transl transliteration".split())
_SILENT = re.compile(
    r"(?:"
    r"cite|citation|cn|fact|sfn|sfnp|sfnm|harv|efn|refn|ref|r|rp|note|full|clarify|who|when|which|"
    r"where|by whom|according to whom|dubious|disputed|dead link|better|page needed|failed|verify|"
    r"verification|original research|anchor|flagicon|flag icon|audio|listen|pron|update|"
    r"self-published|unreliable|specify|vague|why|use|short|toc|clear|main|see|further|portal|commons|"
    r"wikt|wiktionary|refbegin|refend|reflist|pp|lead|not|contradict|medical|primary|copy|expand|#tag|"
    r"shy|zwj|wbr"
    r")(?:[ _-].*)?",
    re.IGNORECASE,
)
_FIXED = {
    "'s": "'s", "'": "'", "-": "", "ndash": "–", "mdash": "—", "snd": " – ", "spnd": " – ", "spaces": " ",
    "spaced ndash": " – ", "nbsp": " ", "okina": "ʻ", "!": "|", "=": "=", "dot": " · ",
}  # fmt: skip
_BETWEEN = {  # words between two values of {{convert}}
    "-": "–", "–": "–", "to": " to ", "and": " and ", "or": " or ", "x": " × ", "by": " by ", "+/-": " ± ",
    "to(-)": "–", "×": " × ", "±": " ± ",
}  # fmt: skip
_UNITS = {
    "C": "°C",
    "F": "°F",
    "sqmi": "sq mi",
    "sqft": "sq ft",
    "cuft": "cu ft",
    "cumi": "cu mi",
    "foot": "ft",
}
_MONTHS = "January February March April May June July August September October November December".split()
_MONTH_NUMBERS = [*map(str, range(1, 13)), *(f"0{month}" for month in range(1, 10))]
_SPEAKERS = ("lang", "pron", "us", "uk", "also", "audio", "local", "icon", "us also", "uk also", "")
_BEFORE_TEXT = (" ", "(", "[", "“", '"', "–", "—", "/", "\xa0")
_LONGEST_INLINE = 1000  # characters of an inline template
_BETWEEN_ARGUMENTS = re.compile(r"\|(?![^\[\]]*\]\])")
_NAMED = re.compile(r"\s*([\w -]{1,40}?)\s*=(.*)", re.DOTALL)
_NUMBER = re.compile(r"[-+−]?[\d,. /⁄+]+(?:e[-+]?\d+)?")
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


def paragraphs(
    text: str, hidden: Set[str] = HIDDEN_NAMESPACES, counts: Counter[str] | None = None
) -> list[str]:
    """Returns the paragraphs of a page as plain text.

    Headings, lists, tables, references, files and templates are dropped. The common inline templates of the
    English Wikipedia are replaced by the text that they show. A sentence with another inline template, or
    with a formula, is dropped, because it would have a hole; `counts["sentences_with_holes"]` counts them.
    `hidden` are the namespaces, in lower case, whose links show nothing or an image.
    """
    text = _COMMENT.sub("", _with_nowiki_escaped(text.replace(_HOLE, "")))
    for name in sorted(_DROPPED_ELEMENTS & {name.lower() for name in _TAG_NAME.findall(text)}):
        text = _without_elements(text, name, _HOLE if name in _FORMULAS else "")
    text = _without_brackets(text, hidden)
    found: list[str] = []
    lines: list[str] = []
    for line in [*text.split("\n"), ""]:
        line = line.strip()
        if line.strip(_HOLE + " ") and not line.startswith(_NO_TEXT) and not _HEADING.match(line):
            lines.append(line)
        elif lines:
            plain = _plain(" ".join(lines))
            if _HOLE in plain:
                split = sentences.split_paragraph(plain)
                whole = [sentence for sentence in split if _HOLE not in sentence]
                if counts is not None:
                    counts["sentences_with_holes"] += len(split) - len(whole)
                plain = " ".join(whole)
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


def _without_elements(text: str, name: str, instead: str) -> str:
    """Replaces elements with their contents; if an element has no closing tag, only its tag is replaced."""
    opening = re.compile(rf"<{name}(?:[\s/][^<>]*)?>", re.IGNORECASE)
    closing = re.compile(rf"</{name}\s*>", re.IGNORECASE)
    kept: list[str] = []
    end, closed = 0, True
    for match in opening.finditer(text):
        if match.start() < end:
            continue
        kept += text[end : match.start()], instead
        end = match.end()
        if closed and not match[0].endswith("/>"):
            close = closing.search(text, end)
            closed = close is not None
            end = close.end() if close else end
    return "".join([*kept, text[end:]])


def _without_brackets(text: str, hidden: Set[str]) -> str:
    """Replaces templates by the text that they show, and removes tables and links without visible text."""
    spans: list[tuple[int, int, str]] = []  # (begin, end, text instead of it)
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
                    inside = []
                    while spans and spans[-1][0] >= begin:
                        inside.append(spans.pop())
                    shown = _shown(text, begin, match.end(), inside[::-1]) if opener == "{{" else ""
                    spans.append((begin, match.end(), shown))
                break
    for kind, begin in stack:
        if kind == "{|":  # an unclosed table is taken to end at the next heading
            heading = text.find("\n==", begin)
            spans.append((begin, heading if heading >= 0 else len(text), ""))
            spans.sort()
            break
    return _replaced(text, 0, len(text), spans)


def _replaced(text: str, begin: int, end: int, spans: Iterable[tuple[int, int, str]]) -> str:
    kept: list[str] = []
    for first, after, instead in spans:
        if first >= begin:
            kept += text[begin:first], instead
        begin = max(begin, after)
    return "".join([*kept, text[begin:end]])


def _shown(text: str, begin: int, end: int, inside: Iterable[tuple[int, int, str]]) -> str:
    """Returns the text that a template shows: "" for none, _HOLE if it is not known."""
    # A template that shows text has a space or a bracket before it, unlike most footnotes.
    unknown = _HOLE if text[max(0, begin - 1) : begin] in _BEFORE_TEXT else ""
    if end - begin > _LONGEST_INLINE:
        return unknown
    name, *rest = _BETWEEN_ARGUMENTS.split(_replaced(text, begin + 2, end - 2, inside))
    name = name.strip().lower().replace("_", " ")
    if name in _FIXED or _SILENT.fullmatch(name):
        return _FIXED.get(name, "")
    named = {match[1]: match[2].strip() for match in map(_NAMED.fullmatch, rest) if match}
    values = [each.strip() for each in rest if not _NAMED.fullmatch(each)]
    values += [named[number] for number in "123" if number in named and len(values) < int(number)]
    if not values:
        return "" if name == "sic" else unknown
    if name in _FIRST or name.startswith("lang-") or name.startswith("ipa-") or name == "ipa":
        return values[0]
    if name in _LAST:
        return values[-1]
    if name == "ipac-en":
        return f"/{''.join(each for each in values if each.lower() not in _SPEAKERS)}/"
    if name in ("convert", "cvt"):
        return _measure(values) or unknown
    if name == "as of":
        month = _MONTHS[int(values[1]) - 1] + " " if len(values) > 1 and values[1] in _MONTH_NUMBERS else ""
        return named.get("alt") or f"{'as' if 'lc' in named else 'As'} of {month}{values[0]}"
    if name in ("circa", "c."):
        return "c. " + "–".join(values)
    if name in ("frac", "sfrac", "fraction"):
        return " ".join([*values[:-2], "/".join(values[-2:])])
    if name in ("chem", "su", "respell"):
        return ("-" if name == "respell" else "").join(values)
    if name in ("val", "nts", "formatnum"):
        power = f"×10^{named['e']}" if named.get("e") else ""
        return f"{values[0]}{power} {named.get('u') or named.get('ul') or ''}".strip()
    if name in ("us$", "a$", "£", "€", "¥", "₹"):
        return name.upper() + values[0]
    return unknown


def _measure(values: list[str]) -> str:
    """Returns the text of {{convert|5|-|6|km|mi}} before its bracket, "5–6 km"; "" if it is unknown."""
    shown, number = "", 0
    while number + 1 < len(values) and _NUMBER.fullmatch(values[number]):
        shown += values[number]
        following = values[number + 1]
        if following in _BETWEEN:
            shown += _BETWEEN[following]
            number += 2
            continue
        shown += f" {_UNITS.get(following, following)}"
        further = values[number + 2 : number + 4]  # as in 5 ft 10 in
        if len(further) == 2 and _NUMBER.fullmatch(further[0]) and further[1] in ("in", "oz", "lb"):
            shown += " " + " ".join(further)
        return shown
    return ""


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
