"""Rows of files: what is read from each format, what is malformed, and what ends in one line."""

import csv
import functools
import gzip
import json

import pyarrow
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from support import fine_tuned

from bert_jax import tasks
from bert_jax.errors import UserError
from bert_jax.tasks.predictions import write_table
from bert_jax.tasks.table import Columns, infer_labels, label_index, read_examples

PAIR = Columns("a", "b", "y", "id")


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return str(path)


@pytest.mark.parametrize("suffix", ["tsv", "csv"])
def test_tables_are_read_as_pandas_writes_them(tmp_path, suffix):
    """A field is quoted if it has a quote, the separator or a newline, and its quotes are doubled."""
    texts = ['He said "hi"', '"', "a\tb, c", 'one, ""\n two', "plain"]
    with open(tmp_path / f"x.{suffix}", "w", newline="") as file:
        rows = csv.writer(file, delimiter="\t" if suffix == "tsv" else ",", lineterminator="\n")
        rows.writerows([["a", "y"], *([text, "1"] for text in texts)])
    assert read_examples(str(tmp_path / f"x.{suffix}"), Columns("a", label="y")).texts_a == texts


@pytest.mark.parametrize("columns, quoting", [(Columns("a"), "none"), (Columns("a", header=False), "auto")])
def test_settings_of_csv_are_errors_with_json_lines(tmp_path, columns, quoting):
    with pytest.raises(UserError, match=r"data\.header and data\.quoting"):
        read_examples(write(tmp_path / "x.jsonl", '{"a": "text"}\n'), columns, quoting=quoting)


@pytest.mark.parametrize(
    "text",
    ['"left open\t1\nnext\t0\n', '"one" two\t1\n', '"one\t1\ntwo\t0\nthree"\t1\n', "one\rtwo\t1\n"],
    ids=["open", "inside", "over-rows", "carriage-return"],
)
def test_a_tsv_whose_quotes_are_text_is_an_error_that_says_how_to_read_it(tmp_path, text):
    """The third one would be a single row, by CSV's rules, and two rows would be lost."""
    path = write(tmp_path / "x.tsv", "a\ty\n" + text)
    with pytest.raises(UserError, match=r"x\.tsv:2: .*data\.quoting=none"):
        read_examples(path, Columns("a", label="y"))
    found = read_examples(path, Columns("a", label="y"), quoting="none")
    assert "".join(f"{a}\t{y}\n" for a, y in zip(found.texts_a, found.labels, strict=True)) == text


def test_jsonl(tmp_path):
    rows = [
        {"a": "x\u2029y", "b": "z", "y": 1, "id": 5},
        {"a": "", "b": "w", "y": True, "id": "s"},
        {"a": "x\ud800y \u00e9", "b": "\U0001f600", "y": ["l", "m"], "id": "\ud800"},
    ]
    path = write(tmp_path / "x.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    examples = read_examples(path, PAIR)
    assert (examples.texts_a, examples.texts_b[2]) == (["x\u2029y", "", "x?y \u00e9"], "\U0001f600")
    assert (examples.labels, examples.ids) == (["1", "true", "l,m"], ["5", "s", "?"])


def test_byte_order_mark_gzip_and_no_header(tmp_path):
    path = tmp_path / "x.tsv.gz"
    path.write_bytes(gzip.compress("\ufeffgj04\t1\t\tA sentence.\ngj04\t0\t*\tSentence a.\n".encode()))
    examples = read_examples(str(path), Columns("3", label="1", header=False))
    assert (examples.texts_a, examples.labels) == (["A sentence.", "Sentence a."], ["1", "0"])
    assert examples.ids == ["0", "1"]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("x.tsv", b"", "no rows"),
        ("x.tsv", b"text\ty\nx\t1\n", "text_a=a matches none of the columns 'text', 'y'"),
        ("x.tsv", b"a\ta\ty\n1\t2\t3\n", "text_a=a matches 2 of the columns"),
        ("x.tsv", b"a\ty\nx\t1\textra\n", r":2: 3 columns, expected 2 \(1 of 1 row malformed, more than 5%"),
        ("x.tsv", b"a\ty\nx\t\n", ":2: the label is empty"),
        ("x.tsv", b"a\ty\n\xe9\t1\n", ":2: not UTF-8"),
        ("x.csv", b'a,y\nfine,1\n"open,0\nnext,1\n', ":3: .*in the row that starts here"),
        ("x.json", b'[\n{"a": "x", "y": 1}]', ":1: .*one object on each line"),
        ("x.jsonl", b'{"a": ["x"], "y": 1}', "'a' is list, expected a string"),
        ("x.jsonl", b"[" * 100_000, "not JSON"),
        ("x.jsonl", b'{"a": "x", "y": NaN}', "'y' is float, expected a label"),
    ],
)
def test_mistakes_name_the_file_and_the_line(tmp_path, name, content, message):
    path = write(tmp_path / name, content)
    with pytest.raises(UserError, match=rf"{name}.*{message}") as caught:
        read_examples(path, Columns("a", label="y"))
    assert "\n" not in str(caught.value)


def test_few_malformed_rows_are_counted_and_skipped(tmp_path):
    rows = [f"text {i}\t{i % 2}" for i in range(100)]
    rows[10], rows[20] = "no label", "text\t2"
    path = write(tmp_path / "x.tsv", "a\ty\n" + "\n".join(rows) + "\n")
    number = functools.partial(label_index, {"0": 0, "1": 1})
    examples = read_examples(path, Columns("a", label="y"), parse_label=number)
    assert (len(examples), examples.rows, examples.malformed) == (98, 100, 2)
    lines = []
    examples.warn(lines.append)
    assert f"2 of 100 rows skipped (first: {path}:12: 1 column, expected 2)" in lines[0]
    assert examples.ids[10] == "11"  # an id counts the rows that were skipped
    rows[30:34] = ["x"] * 4
    write(tmp_path / "x.tsv", "a\ty\n" + "\n".join(rows) + "\n")
    with pytest.raises(UserError, match=r"6 of 100 rows malformed, more than 5%"):
        read_examples(path, Columns("a", label="y"), parse_label=number)
    with pytest.raises(UserError, match="more than 0%"):  # the predictions have a row for each
        examples.check(0)


def test_lists_of_choices_and_negatives(tmp_path):
    path = write(tmp_path / "x.tsv", "a\tb\tn\nt\tu\tv\n")
    assert read_examples(path, Columns("a", negatives="b,n"), parse_label=None).negatives == [["u", "v"]]
    assert read_examples(path, Columns("0", choices="b,n"), parse_label=None).choices == [["u", "v"]]
    for rows, valid in (([["x"], ["z"]], True), ([["x"], ["y", "z"]], False), ([["x", "y"], "z"], False)):
        path = write(tmp_path / "z.jsonl", "".join(json.dumps({"a": "t", "n": row}) + "\n" for row in rows))
        if valid:
            found = read_examples(path, Columns("a", negatives="n"), parse_label=None)
            assert found.negatives == rows
            continue
        with pytest.raises(UserError, match=r"z.jsonl:2: . negatives?, expected . text"):
            read_examples(path, Columns("a", negatives="n"), parse_label=None)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(*[st.text(st.characters(blacklist_characters="\t\r\n", blacklist_categories=["Cs"]))] * 2),
        min_size=1,
        max_size=20,
    )
)
@example(rows=[('"a', 'b"'), ('""', "c")])
def test_any_text_survives_a_tsv(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("tsv") / "x.tsv"
    write(path, "a\tb\tz\n" + "".join(f"{a}\t{b}\tz\n" for a, b in rows))
    examples = read_examples(str(path), Columns("a", "b", quotes=False))
    assert list(zip(examples.texts_a, examples.texts_b, strict=True)) == rows
    write_table(str(path), ("a", "b"), ([a, b] for a, b in rows))
    examples = read_examples(str(path), Columns("a", "b"))
    spaces = [tuple(" ".join(text.split()) for text in row) for row in rows]
    assert list(zip(examples.texts_a, examples.texts_b, strict=True)) == spaces


# Labels


def test_labels_are_inferred_in_a_stable_order():
    assert infer_labels(["b", "a ", "b"], "f") == ("a", "b")
    assert infer_labels(["10", "9", "-1"], "f") == ("-1", "9", "10")
    assert infer_labels(["x", "2", "10"], "f") == ("2", "10", "x")
    assert infer_labels(["1" * 5000, "10"], "f") == ("10", "1" * 5000)
    assert label_index({"a": 0, "b": 1}, " b ") == 1
    with pytest.raises(ValueError, match="label 'c' is none of 'a', 'b'"):
        label_index({"a": 0, "b": 1}, "c")
    for labels in (["x"] * 3, [str(i / 3) for i in range(30)]):
        with pytest.raises(UserError, match="expected 2 or more classes"):
            infer_labels(labels, "f")


def test_a_directory_of_parquet_files_is_one_file(tmp_path):
    rows = [{"text": f"text {i}", "label": "ab"[i % 2], "hard": ["a", "b"]} for i in range(10)]
    for part in range(2):
        table = pyarrow.Table.from_pylist(rows[5 * part :][:5])
        parquet.write_table(table, tmp_path / f"train-{part}.parquet")
    (tmp_path / "dataset_info.json").write_text("{}")
    found = read_examples(str(tmp_path), Columns("text", label="label", negatives="hard"))
    assert found.texts_a == [f"text {i}" for i in range(10)] and found.labels == ["a", "b"] * 5
    assert found.ids == [str(i) for i in range(10)] and found.negatives == [["a", "b"]] * 10
    several = ",".join(map(str, sorted(tmp_path.glob("*-*"))))
    assert read_examples(several, Columns("text", label="label")).labels == found.labels
    with pytest.raises(UserError, match=r"text_a=body matches none of the columns 'text'"):
        read_examples(str(tmp_path), Columns("body"))


# What a task reads


def test_every_line_of_a_txt_file_is_a_text(vocabulary, tmp_path):
    path = write(tmp_path / "texts.txt", 'a red cat\n\n"one\ttwo, three\r\nthe last')
    task = fine_tuned.make_task(vocabulary, "classification", ("dog", "one"), label="label", text_a="text")
    examples = task.read_unlabeled(path)
    assert examples.texts_a == ["a red cat", "", '"one\ttwo, three', "the last"]
    assert examples.ids == ["0", "1", "2", "3"]
    assert examples.notes == ["1 empty text is predicted too"]
    labeled = write(tmp_path / "texts.csv", 'text,label\na,dog\n" ",one\n')
    assert any("1 empty text" in note for note in task.read(labeled).notes)
    write(tmp_path / "texts.txt", "text\nred\n")  # a run on such a table, which was called .txt too
    options = dict(label="label", text_a="text", format="tsv")
    task = fine_tuned.make_task(vocabulary, "classification", ("dog", "one"), **options)
    assert task.read_unlabeled(path).texts_a == ["red"]


@pytest.mark.parametrize(
    "name, split, count, first, targets",
    [
        ("cola", "dev", 1043, "The sailors rode", {"0": 322, "1": 721}),
        ("SST-2", "dev", 872, "it 's a charming", {"0": 428, "1": 444}),
        ("mrpc", "train", 3668, "Amrozi accused his brother", {"0": 1194, "1": 2474}),
        ("rte", "dev", 277, "Dana Reeve", {"entailment": 146, "not_entailment": 131}),
        ("stsb", "dev", 1500, "A man with a hard hat", None),
    ],
)
def test_glue_files(shared_data, name, split, count, first, targets):
    spec = tasks.get(name)
    examples = read_examples(spec.file(str(shared_data / "glue"), split), spec.columns)
    assert (len(examples), examples.malformed) == (count, 0)
    assert examples.texts_a[0].startswith(first)
    if targets:
        assert {label: examples.labels.count(label) for label in set(examples.labels)} == targets
    assert bool(examples.texts_b) == (name in ("mrpc", "rte", "stsb"))
