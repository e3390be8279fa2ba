import gzip
import json

import pyarrow
import pytest
from pyarrow import parquet

from bert_jax.errors import UserError
from bert_jax.tasks.tagging import read_sentences

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
    assert read_sentences(path, word="1", tag="-2").tags == [["I-NP", "I-VP"], ["I-NP"]]
    assert read_sentences(path, tagged=False).tags == []


def test_json(tmp_path):
    rows = [
        {"words": ["a", ""], "tags": ["O", "B-X"], "document": 1, "key": 7},
        {"words": ["b"], "tags": ["O"], "document": 1},
        {"words": ["c"], "tags": ["O"], "document": 2},
    ]
    path = written(tmp_path, "\n".join(map(json.dumps, rows)), "f.jsonl")
    found = read_sentences(path, id="key")
    assert (found.words, found.tags) == ([["a", ""], ["b"], ["c"]], [["O", "B-X"], ["O"], ["O"]])
    assert (found.documents, found.ids) == ([0, 0, 1], ["7", "1", "2"])
    assert read_sentences(path, tag="words").tags == found.words
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "f.parquet")
    assert read_sentences(str(tmp_path / "f.parquet")).words == found.words


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("f.conll", "a\tO\nb\tO\tO\n\n", ":2: 3 columns, expected 2"),
        ("f.conll", "a sentence here\nand another one here\n", ":2: 4 columns"),
        ("f.jsonl", '{"words": ["a"], "tags": []}', ":1: 1 word and 0 tags"),
        ("f.jsonl", '{"words": ["a"], "tags": [1]}', ":1: 'tags': expected a list of strings"),
        ("f.csv", "a,O", ", format=auto: expected a name ending in"),
    ],
)
def test_mistakes_name_the_file_and_the_line(tmp_path, name, content, message):
    with pytest.raises(UserError, match=f"{name}{message}|{name}: {message}"):
        read_sentences(written(tmp_path, content, name))
