"""Tables in Markdown: cells that show texts as they are."""

import html
import re

from bert_jax.io import markdown


def test_a_table():
    assert markdown.table(["a", "b"], [["1", "`x`"]]) == "| a | b |\n| --- | --- |\n| 1 | `x` |"


def test_cells_of_any_text():
    texts = ["[MASK]", "a|b", "##ing", "<mask> & <b>", "*x* _y_ `z`", "two\nlines", "\\", "", "1. a - b + c!"]
    header, line, *rows = markdown.table_of_texts(["text", "number"], [[text, "7"] for text in texts]).split(
        "\n"
    )
    assert (header, line) == ("| text | number |", "| --- | --- |") and len(rows) == len(texts)
    for text, row in zip(texts, rows, strict=True):
        empty, cell, number, end = re.split(r"(?<!\\)\|", row.replace("\\\\", "\0"))
        assert (empty, number, end) == ("", " 7 ", "")
        assert "<" not in cell and not re.search(r"(?<!\\)[`*_\[\]#]", cell)
        shown = re.sub(r"\\(.)", r"\1", cell).replace("\0", "\\")
        assert html.unescape(shown).strip() == " ".join(text.split())
