"""MediaWiki dumps give only the continuous text of articles, independent of how a dump is split."""

import bz2
import collections
import itertools
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builds import read_documents

from data_pipelines.readers import wikitext

HEADER = """<mediawiki version="0.11" xml:lang="de"><siteinfo><namespaces>
<namespace key="0" case="first-letter" /><namespace key="6" case="first-letter">Datei</namespace>
</namespaces></siteinfo>
"""
ARTICLE = """{{Short description|A {{nested|{{deeply}}}} thing}}
{{Infobox river
| name = {{lang|de|Elbe}}
| image = [[File:Elbe.jpg|thumb]]
}}
[[File:Map.png|thumb|250px|A caption with a [[link|label]], and
a second line.]]
[[Datei:Karte.png|mini|Eine Karte]]
The '''Elbe''' ({{IPA|ɛlbə}}; [[Czech language|Czech]]: ''Labe'') is a [[river]] of
[[Central Europe]].<ref name="a">{{cite book
| title = Rivers
}}</ref> It rises in the [[Giant Mountains]]<ref name=b /> &amp; flows&nbsp;north.<!-- a comment
of [[two lines]] -->

== Course ==
* A [[list]] item
# Numbered
: Indented
; Term
It passes <span class="x">Dresden</span> and H<sub>2</sub>O, see [https://example.org/a?b=c its page].

{| class="wikitable"
|-
| a || [[b]]
|
{| class="inner"
| nested
|}
|}
<math>x^{2}_{{a}}</math>

A formula <math>y</math> leaves a hole. And <nowiki>[[this]] ''is''</nowiki> kept.

<gallery>
File:A.jpg|A picture
</gallery>
[[Category:Rivers|Elbe]]
[[fr:Elbe]]
Broken [[link and '''bold text.

__NOTOC__
"""
PASSAGES = (
    "The Elbe (ɛlbə; Czech: Labe) is a river of Central Europe. It rises in the Giant Mountains & "
    "flows north.",
    "It passes Dresden and H2O, see its page.",
    "And [[this]] ''is'' kept.",
    "Broken link and bold text.",
)


def page(number, text, title="A", namespace=0, extra=""):
    return (
        f"  <page>\n    <title>{title}</title>\n    <ns>{namespace}</ns>\n    <id>{number}</id>\n{extra}"
        f'    <revision><id>9</id><text bytes="1" xml:space="preserve">{escape(text)}</text></revision>\n'
        "  </page>\n"
    )


def read(path, target=1 << 30, counts=None):
    return read_documents(path, "wikipedia_xml", target, counts)


DUMP = HEADER + "".join(
    [
        page(12, ARTICLE, "Elbe"),
        page(13, "#REDIRECT [[Elbe]]", extra='    <redirect title="Elbe" />\n'),
        page(14, "'''A''' may be:\n* [[B]]\n{{Disambiguation}}"),
        page(15, "Talk of it.", "Talk:Elbe", 1),
        page(16, "A sentence.{{disambiguation needed|date=May}}\n\nAnother."),
        "<page>broken</page>",
        page(17, "Last & least."),
    ]
)


def test_a_dump(tmp_path):
    path = tmp_path / "dump.xml"
    path.write_text(DUMP)
    counts = collections.Counter()
    documents = read(path, counts=counts)
    assert [d.key for d in documents] == ["12", "16", "17"]
    assert documents[0].passages == PASSAGES
    assert documents[1].passages == ("A sentence.", "Another.")
    assert documents[2].passages == ("Last & least.",)
    assert (counts["redirects"], counts["disambiguations"], counts["other_namespaces"]) == (1, 1, 1)
    assert counts["broken_pages"] == 1 and counts["documents"] == 3


PIECES = st.lists(
    st.sampled_from(
        [
            page(1, "One."),
            page(2, "Two. " * 30),
            page(3, "é"),
            *"<page> </page> <pa ge> x\n </text>".split(" "),
        ]
    ),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(pieces=PIECES, target=st.integers(1, 400), cuts=st.sets(st.integers(0, 3000), max_size=5))
def test_any_cut_gives_the_same_documents(tmp_path_factory, pieces, target, cuts):
    folder = tmp_path_factory.mktemp("cut")
    data = (HEADER + "".join(pieces)).encode()
    plain, packed = folder / "dump.xml", folder / "dump.xml.bz2"
    plain.write_bytes(data)
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    packed.write_bytes(b"".join(bz2.compress(data[a:b]) for a, b in itertools.pairwise(edges) if b > a))
    whole, cut, streams = collections.Counter(), collections.Counter(), collections.Counter()
    documents = read(plain, counts=whole)
    assert read(plain, target, cut) == documents and cut == whole
    assert read(packed, target, streams) == documents and streams == whole


@pytest.mark.parametrize(
    "markup, expected",
    [
        ("It is {{convert|5|-|6|km|mi}} long.", "It is 5–6 km long."),
        ("He is {{cvt|6|ft|4|in|cm}} tall, at {{convert|7|C}}.", "He is 6 ft 4 in tall, at 7 °C."),
        ("From {{lang-fr|chien}} and {{transl|ar|DIN|kalima}}.", "From chien and kalima."),
        ("It is {{nowrap|1 {{abbr|kg|kilogram}}}} or {{val|1.5|e=3|u=g}}.", "It is 1 kg or 1.5×10^3 g."),
        (
            "{{IPAc-en|lang|ˈ|æ|n}} is said.{{cn}} {{as of|2010|4}} too.",
            "/ˈæn/ is said. As of April 2010 too.",
        ),
        ("It cost {{inflation|US|5|1950}} now. And {{chem|H|2|O}} {{cn|date=May}}.", "And H2O."),
        ("Of {{nowrap|[[a|b {{unknown|1}}]]}} it is. So {{unknown}} it is. Yes.", "Yes."),
        ("So<ref>{{cite|1}}</ref>{{sfn|A|p=5}} it is. {{unknown-note}}", "So it is."),
    ],
)
def test_inline_templates_show_their_text_and_leave_no_holes(markup, expected):
    counts = collections.Counter()
    assert " ".join(wikitext.paragraphs(markup, counts=counts)) == expected
    assert (counts["sentences_with_holes"] > 0) == ("inflation" in markup or "unknown" in markup)


UNITS = [
    "{{",
    "{{lang|a|",
    "}}",
    "[[",
    "]]",
    "{|\n",
    "\n|}",
    "<ref>",
    "</ref>",
    "<!--",
    "''",
    "[http://a ",
    "<b>",
    "|",
    "\n\n",
    "é ",
]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(UNITS), st.text(max_size=8)), max_size=40).map("".join))
def test_any_markup_gives_clean_paragraphs(text):
    for paragraph in wikitext.paragraphs(text):
        assert paragraph == paragraph.strip() and "{{" not in paragraph
