import gzip
import json
import re

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.tagging.predictions import TagPredictions
from bert_jax.tasks.tagging.word_files import read_sentences

CONLL = """-DOCSTART- -X- -X- O

EU NNP I-NP I-ORG
rejects VBZ I-VP O

-DOCSTART- -X- -X- O

Peter NNP I-NP I-PER
"""


def written(tmp_path, text, name="f.conll"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", newline="")
    return str(path)


@pytest.mark.parametrize("name", ["eng.train", "a.conll", "a.txt", "a", "a.tsv.gz"])
@pytest.mark.parametrize("separator", [" ", "  ", "\t"], ids=["space", "spaces", "tab"])
@pytest.mark.parametrize("end", ["\n", " \r\n"], ids=["lf", "crlf"])
def test_columns(tmp_path, name, separator, end):
    text = CONLL.replace(" ", separator).replace("\n", end)
    path = written(tmp_path, text, name)
    if name.endswith(".gz"):
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
    found = read_sentences(path)
    assert found.words == [["EU", "rejects"], ["Peter"]]
    assert found.tags == [["I-ORG", "O"], ["I-PER"]]
    assert (found.documents, found.has_documents, found.ids) == ([0, 1], True, ["0", "1"])
    assert found.lines == [[3, 4], [8]] and found.warning() == ""
    assert read_sentences(path, word="1", tag="-2").tags == [["I-NP", "I-VP"], ["I-NP"]]
    assert read_sentences(path, tagged=False).tags == []


def test_only_spaces_and_tabs_separate(tmp_path):
    found = read_sentences(written(tmp_path, "New York\tB-LOC\n\u00a0\tO\nx\u2028y\tO\n"))
    assert found.words == [["New York", "\u00a0", "x\u2028y"]] and not found.has_documents
    assert read_sentences(written(tmp_path, "a\u00a0b O\n")).words == [["a\u00a0b"]]


def test_words_alone(tmp_path):
    assert read_sentences(written(tmp_path, "a\nb\n\n\n\nc"), tagged=False).words == [["a", "b"], ["c"]]


def test_running_text_is_no_file_of_words(tmp_path):
    with pytest.raises(UserError, match="a line has up to 4 columns; expected one word"):
        read_sentences(written(tmp_path, "Call flush at once\n"), tagged=False)
    for text, columns in (("Peter went home\nMary works here\n", 2), ("Ann was late again now\n" * 2, 4)):
        path = written(tmp_path, text)
        message = f"f.conll:1: {len(text.split()) // 2} columns, {columns} in the training file; .* --input=-"
        with pytest.raises(UserError, match=message):
            read_sentences(path, tagged=False, columns=columns)
        assert len(read_sentences(path, tagged=False, columns=None).words[0]) == 2
    for text, columns in (("Call flush at once\n", 0), ("Peter went home\nMary works here\n", 2)):
        with pytest.raises(UserError, match="and --text_a=1 reads that one of any number of columns"):
            read_sentences(written(tmp_path, text), word="1", tagged=False, columns=columns)
    assert read_sentences(written(tmp_path, CONLL), tagged=False, columns=4).words[1] == ["Peter"]
    with pytest.raises(UserError, match=r"2 columns, 3 in the first line; .* --input=- < FILE"):
        read_sentences(written(tmp_path, "Peter went home\nMary works\n"), tagged=False)
    one_word = "SOCCER NN B-NP O\n\nJapan NNP B-NP O\nwins VBZ B-VP O\n"
    assert read_sentences(written(tmp_path, one_word), tagged=False).words == [["SOCCER"], ["Japan", "wins"]]


@pytest.mark.parametrize(
    "comment, line, found",
    [
        ("# sent_id = 1", 2, "3 columns, 4 in the first line"),
        ("#\thttp://de.wikipedia.org/wiki/Manfred_Korfmann\t[2009-10-17]\tx", 2, "3 columns, 4"),
        ("#", 1, "1 column, expected a word and its tag"),
    ],
)
def test_comments_are_named_where_they_have_other_columns(tmp_path, comment, line, found):
    hint = re.escape(
        "if the lines that begin with # are comments, as in CoNLL-U, remove them: grep -v '^#' FILE"
    )
    path = written(tmp_path, f"{comment}\n1 Peter B-PER\n2 # O\n\n" * 2)
    with pytest.raises(UserError, match=f":{line}: {found}.*; {hint}"):
        read_sentences(path, word="1")
    path = written(tmp_path, "1 Peter B-PER\n2 # O\n\n# sent_id = 2\n1 Ann B-PER\n")
    with pytest.raises(UserError, match=f":4: 4 columns, 3 in the first line.*; {hint}"):
        read_sentences(path, word="1")
    with pytest.raises(UserError, match=f"columns, 2 in the training file.*; {hint}"):
        read_sentences(written(tmp_path, "# sent_id = 1\nPeter O\n"), tagged=False, columns=2)


def test_json(tmp_path):
    rows = [
        {"words": ["a", ""], "tags": ["O", "B-X"], "document": 1, "key": 7},
        {"words": ["b"], "tags": ["O"], "document": 1},
        {"words": ["c"], "tags": ["O"], "document": 2},
    ]
    path = written(tmp_path, "\n".join(map(json.dumps, rows)), "f.jsonl")
    found = read_sentences(path, id="key")
    assert (found.words, found.tags) == ([["a", ""], ["b"], ["c"]], [["O", "B-X"], ["O"], ["O"]])
    assert (found.documents, found.ids, found.lines[0]) == ([0, 0, 1], ["7", "1", "2"], [1, 1])
    assert read_sentences(path, tag="words").tags == found.words


GOOD = "".join(f"w{i} O\n\n" for i in range(40))


@pytest.mark.parametrize(
    "bad, message",
    [
        ("a b O\nb O\n", ":81: 3 columns, 2 in the first line"),
        ("a O\nb\n", ":82: 1 column, expected a word and its tag"),
        ("a\tO\n\tO\n", ":82: an empty word in column 0"),
        ("a\t\tO\nb O\n", ":81: 3 columns"),
    ],
)
def test_a_few_malformed_sentences_are_left_out(tmp_path, bad, message):
    path = written(tmp_path, GOOD + bad + "\nlast O\n")
    found = read_sentences(path)
    assert found.words[-2:] == [["w39"], ["last"]] and (found.rows, found.ids[-1]) == (42, "41")
    assert f"1 of 42 sentences is malformed and was left out (first: {path}{message}" in found.warning()
    with pytest.raises(UserError, match="malformed, more than 5%"):
        read_sentences(written(tmp_path, GOOD[: GOOD.index("w9")] + bad))


def test_bytes_that_are_not_utf8(tmp_path):
    (tmp_path / "f.conll").write_bytes(GOOD.encode() + b"\xff O\n")
    assert ":81: not UTF-8" in read_sentences(str(tmp_path / "f.conll")).warning()


@pytest.mark.parametrize(
    "name, text, options, message",
    [
        ("f", "", {}, "f: no sentences"),
        ("f", "a O\n", {"word": "word"}, "data.text_a=word: .* columns, which are numbers"),
        ("f", "a O\n", {"tag": "2"}, "no column 2 for data.label: the line has 2"),
        ("f", "a\nb\n", {}, "f:1: 1 column, expected a word and its tag"),
        (
            "f",
            "A dog sleeps .\nA cat .\n",
            {},
            "f:2: 3 columns, 4 in .*; expected one word per line, and an empty",
        ),
        ("f.csv", "a,O\n", {}, "f.csv: the name ends in none of .jsonl"),
        ("f.parquet", "PAR1", {}, "f.parquet: only tasks .*; expected conll or jsonl; "),
        ("f.arrow", "a", {"tagged": False}, "f.arrow: only tasks on tables of texts"),
        ("f", "a O\n", {"format": "tsv"}, "data.format=tsv: expected"),
        ("f.jsonl", "{}", {}, "f.jsonl:1: no 'words' in the object"),
        ("f.jsonl", '{"words": ["a"]}', {}, "no 'tags' in the object; it has 'words'"),
        ("f.jsonl", '{"words": ["a"], "tags": []}', {}, "1 word and 0 tags"),
        ("f.jsonl", '{"words": ["a"], "tags": [3]}', {}, "'tags' holds int, expected strings"),
        ("f.jsonl", '{"words": ["a"], "tags": [3]}', {}, r"write their names, `features\['tags'\]"),
        ("f.jsonl", '{"words": "a b", "tags": "O O"}', {}, "'words' is str, expected a list"),
        ("f.jsonl", '{"words": [], "tags": []}', {}, "no words in 'words'"),
        ("f.jsonl", "[]\n", {}, "a JSON value that is not an object"),
    ],
)
def test_mistakes(tmp_path, name, text, options, message):
    with pytest.raises(UserError, match=message) as error:
        read_sentences(written(tmp_path, text, name), **options)
    assert "\n" not in str(error.value)


def test_sentences_with_unknown_tags(tmp_path):
    found = read_sentences(written(tmp_path, GOOD + "a O\nb X\n"))
    found.keep(lambda tag: "" if tag == "O" else f"tag {tag!r} is not known")
    assert len(found) == len(found.tags) == len(found.lines) == 40
    assert ":82: tag 'X' is not known" in found.warning()
    with pytest.raises(UserError, match="41 of 41 sentences are malformed"):
        found.keep(lambda tag: "no O")


def test_predictions_of_tags_with_spaces_are_read_again(tmp_path):
    (tmp_path / "gold.conll").write_text("Hamlet\tB-work of art\nis\tO\n\n")
    truth = read_sentences(str(tmp_path / "gold.conll"))
    predictions = TagPredictions(truth, ("B-work of art", "O"), truth.tags, np.ones(2, np.float32))
    predictions.write(str(tmp_path / "out.conll"))
    again = read_sentences(str(tmp_path / "out.conll"))
    assert again.words == [["Hamlet", "is"]] and again.tags == [["B-work of art", "O"]]


def test_ids_that_are_no_unicode(tmp_path):
    rows = [{"words": ["a"], "tags": ["O"], "id": id} for id in ("\ud800", "\ud801")]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_sentences(str(tmp_path / "x.jsonl"), id="id").ids == [r"\ud800", r"\ud801"]
