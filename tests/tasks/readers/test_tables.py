import csv
import dataclasses
import functools
import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax import tasks
from bert_jax.errors import UserError
from bert_jax.tasks.readers.file_formats import PREDICT_FLAGS, TRAINING_FLAGS
from bert_jax.tasks.readers.labels import infer_labels, label_index, numbers, parse_number
from bert_jax.tasks.readers.tables import LINES, Columns, read_examples
from bert_jax.tasks.writers import write_table

PAIR = Columns("a", "b", "y", "id")


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return str(path)


def test_quotes_in_a_tsv_of_a_benchmark_are_text(tmp_path):
    path = write(
        tmp_path / "x.tsv", 'y\ta\tb\tid\n1\tHe called her " the witness\t" no\t7\n0\t"x" y\t\'z\t8\n'
    )
    examples = read_examples(path, dataclasses.replace(PAIR, quotes=False))
    assert examples.texts_a == ['He called her " the witness', '"x" y']
    assert examples.texts_b == ['" no', "'z"]
    assert (examples.labels, examples.ids, examples.lines) == (["1", "0"], ["7", "8"], [2, 3])
    assert examples.warning() == ""


def test_tsv_rows_end_at_newlines_only(tmp_path):
    # str.splitlines would also break the row at these.
    path = write(tmp_path / "x.tsv", "a\ty\r\nb\u2028c\x85d\x0ce\t1\r\n")
    examples = read_examples(path, Columns("a", label="y"))
    assert (examples.texts_a, examples.labels) == (["b\u2028c\x85d\x0ce"], ["1"])


def test_csv_fields_may_hold_commas_quotes_and_newlines(tmp_path):
    path = write(tmp_path / "x.csv", 'a,b,y,id\n"one, ""two""\nthree",b,1,p\nfour,b2,0,q\n')
    examples = read_examples(path, PAIR)
    assert examples.texts_a == ['one, "two"\nthree', "four"]
    assert examples.lines == [2, 4]


def test_csv_with_a_quote_left_open_names_the_line_where_its_row_starts(tmp_path):
    path = write(tmp_path / "x.csv", 'a,y\nfine,1\n"open,0\nnext,1\n')
    with pytest.raises(UserError, match=r"x\.csv:3: .*quote left open"):
        read_examples(path, Columns("a", label="y"))


def test_a_carriage_return_in_a_row_is_told(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b"a,b\nx\ry,z\n")
    with pytest.raises(UserError, match=r"x\.csv:2: a carriage return inside a row; is it a text file"):
        read_examples(str(path), Columns("a", "", "b", "", True, ""))


@pytest.mark.parametrize("suffix", ["tsv", "csv"])
def test_tables_are_read_as_pandas_writes_them(tmp_path, suffix):
    """A field is quoted if it has a quote, the separator or a newline, and its quotes are doubled."""
    texts = ['He said "hi"', '"', "a\tb, c", "one\ntwo", "plain"]
    with open(tmp_path / f"x.{suffix}", "w", newline="") as file:
        rows = csv.writer(file, delimiter="\t" if suffix == "tsv" else ",", lineterminator="\n")
        rows.writerows([["a", "y"], *([text, "1"] for text in texts)])
    path = str(tmp_path / f"x.{suffix}")
    assert read_examples(path, Columns("a", label="y")).texts_a == texts
    with pytest.raises(UserError, match="quoting=yes: expected auto, none or csv"):
        read_examples(path, Columns("a", label="y"), quoting="yes")


@pytest.mark.parametrize(
    "text",
    ['"left open\t1\nnext\t0\n', '"one" two\t1\n', '"one\t1\ntwo\t0\nthree"\t1\n', "one\rtwo\t1\n"],
    ids=["open", "inside", "over-rows", "carriage-return"],
)
def test_a_tsv_whose_quotes_are_text_is_an_error_that_says_how_to_read_it(tmp_path, text):
    """The third one would be a single row, by CSV's rules, and two rows would be lost."""
    path = write(tmp_path / "x.tsv", "a\ty\n" + text)
    with pytest.raises(UserError, match=r"x\.tsv:2: .*--config\.data\.quoting=none"):
        read_examples(path, Columns("a", label="y"))
    found = read_examples(path, Columns("a", label="y"), quoting="none")
    assert "".join(f"{a}\t{y}\n" for a, y in zip(found.texts_a, found.labels, strict=True)) == text


def test_jsonl(tmp_path):
    rows = [{"a": "x\u2029y", "b": "z", "y": 1, "id": 5}, {"a": "", "b": "w", "y": True, "id": "s"}]
    path = write(tmp_path / "x.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    examples = read_examples(path, PAIR)
    assert (examples.texts_a, examples.labels, examples.ids) == (["x\u2029y", ""], ["1", "true"], ["5", "s"])


def test_jsonl_replaces_lone_surrogates(tmp_path):
    path = write(tmp_path / "x.jsonl", '{"a": "x\\ud800y \u00e9"}\n{"a": "\\ud83d\\ude00"}\n')
    assert read_examples(path, Columns("a")).texts_a == ["x?y \u00e9", "\U0001f600"]


def test_ids_with_lone_surrogates_stay_distinct(tmp_path):
    path = write(tmp_path / "x.jsonl", '{"a": "x", "id": "\\ud800"}\n{"a": "y", "id": "\\ud801 \u00e9"}\n')
    assert read_examples(path, Columns("a", id="id")).ids == [r"\ud800", "\\ud801 \u00e9"]


def test_byte_order_mark_gzip_and_no_header(tmp_path):
    path = tmp_path / "x.tsv.gz"
    path.write_bytes(gzip.compress("\ufeffgj04\t1\t\tA sentence.\ngj04\t0\t*\tSentence a.\n".encode()))
    examples = read_examples(str(path), Columns("3", label="1", header=False))
    assert (examples.texts_a, examples.labels, examples.ids) == (
        ["A sentence.", "Sentence a."],
        ["1", "0"],
        ["0", "1"],
    )
    assert examples.path.endswith("x.tsv.gz") and examples.lines[1] == 2


def test_columns_by_number_with_a_header(tmp_path):
    path = write(tmp_path / "x.tsv", "s\ts\ty\none\ttwo\t1\n")
    assert read_examples(path, Columns("1", label="y")).texts_a == ["two"]
    with pytest.raises(UserError, match="2 columns are called 's'"):
        read_examples(path, Columns("s"))


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "the file is empty"),
        (b"a\ty\n", "no rows after the header"),
        (b"text\ty\nx\t1\n", r":1: no column 'a' for data.text_a; the header has 'text', 'y'"),
        (
            b"text\tz\nx\t1\n",
            "no columns 'a' for data.text_a, 'y' for data.label; the header has 'text', 'z'$",
        ),
        (b"a,y\nx,1\n", r"is it CSV"),
        (b"a;y\nx;1\n", r"separated by semicolons\? write it with commas or tabs"),
        (b"\xff\xfea\x00", "UTF-16"),
        (b"a\ty\nx\t1\textra\n", r":2: 3 columns, 2 in the header \(1 of 1 row is malformed, more than 5%"),
        (b"a\ty\nx\t\n", r":2: an empty label in column 'y'"),
        (b"a\ty\n\xe9\t1\n", ":2: not UTF-8"),
    ],
)
def test_refused_files(tmp_path, content, message):
    path = write(tmp_path / "x.tsv", content)
    with pytest.raises(UserError, match=message) as caught:
        read_examples(path, Columns("a", label="y"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"a": "x", "y": 1', "not JSON"),
        ("[1]", "a JSON value that is not an object"),
        ('{"b": "x", "y": 1}', r"no 'a' in the object; it has 'b', 'y'"),
        ('{"a": null, "y": 1}', r"'a' is null"),
        ('{"a": ["x"], "y": 1}', "'a' is list, expected a string"),
        ("[" * 100_000, "not JSON"),
        ('{"a": "x", "y": NaN}', "'y' is nan, expected a label; NaN is what a missing one"),
        ('{"a": "x", "y": -1e999}', "'y' is -inf, expected a label"),
        ('{"a": "x", "y": ["b", NaN]}', "'y' is nan, expected a label"),
    ],
)
def test_refused_json(tmp_path, line, message):
    path = write(tmp_path / "x.jsonl", '{"a": "fine", "y": 0}\n' + line + "\n")
    with pytest.raises(UserError, match=rf"x\.jsonl:2: .*{message}"):
        read_examples(path, Columns("a", label="y"))


@pytest.mark.parametrize(
    "path, columns, message",
    [
        ("missing.tsv", Columns("a"), "no such file"),
        ("x.orc", Columns("a"), "none of .tsv, .csv, .jsonl"),
        ("x.tsv", Columns(""), "which column holds the text"),
        ("x.tsv", Columns("a", header=False), "without a header, so columns are numbers"),
    ],
)
def test_refused_arguments(tmp_path, path, columns, message):
    write(tmp_path / "x.tsv", "a\nx\n")
    with pytest.raises(UserError, match=message):
        read_examples(str(tmp_path / path), columns)


@pytest.mark.parametrize("content", ['[{"a": "x"}, {"a": "y"}]', '[\n{"a": "x"},\n{"a": "y"}\n]\n'])
def test_a_json_array_is_an_error_that_says_what_is_expected(tmp_path, content):
    with pytest.raises(UserError, match=r"x\.json:1: .*one object on each line"):
        read_examples(write(tmp_path / "x.json", content), Columns("a"), parse_label=None)


@pytest.mark.parametrize("name, other, separator", [("x.csv", "tsv", "\t"), ("x.tsv", "csv", ",")])
@pytest.mark.parametrize("header", [False, True])
def test_another_separator_is_an_error_that_names_the_format(tmp_path, name, other, separator, header):
    path = write(tmp_path / name, separator.join(["a", "b", "c"]) + "\n" + separator.join("xyz") + "\n")
    column = "b" if header else "1"
    with pytest.raises(UserError, match=rf"--config\.data\.format={other}"):
        read_examples(path, Columns(column, header=header), parse_label=None)
    found = read_examples(path, Columns(column, header=header), parse_label=None, file_format=other)
    assert found.texts_a[-1] == "y"
    write(tmp_path / name, "a;b\n1;2\n")
    with pytest.raises(UserError, match="semicolons"):
        read_examples(path, Columns(column, header=header), parse_label=None)


def test_few_malformed_rows_are_counted_and_left_out(tmp_path):
    rows = [f"text {i}\t{i % 2}" for i in range(100)]
    rows[10] = "no label"
    rows[20] = "text\t2"
    path = write(tmp_path / "x.tsv", "a\ty\n" + "\n".join(rows) + "\n")
    number = functools.partial(label_index, {"0": 0, "1": 1})
    examples = read_examples(path, Columns("a", label="y"), parse_label=number)
    assert (len(examples), examples.rows, examples.malformed_count) == (98, 100, 2)
    assert examples.malformed == [
        f"{path}:12: 1 column, 2 in the header",
        f"{path}:22: label '2' is none of '0', '1'",
    ]
    assert "2 of 100 rows" in examples.warning() and f"{path}:12" in examples.warning()
    assert examples.ids[10] == "11"  # an id counts the rows that were left out
    rows[30:34] = ["", "x\t0\t", "x\t0\t", "x\t0\t"]
    write(tmp_path / "x.tsv", "a\ty\n" + "\n".join(rows) + "\n")
    loose = read_examples(path, Columns("a", label="y"), parse_label=number, max_malformed=0.06)
    assert loose.malformed_count == 5
    rows[40] = "x"
    write(tmp_path / "x.tsv", "a\ty\n" + "\n".join(rows) + "\n")
    with pytest.raises(UserError, match=r"6 of 99 rows are malformed, more than 5%"):
        read_examples(path, Columns("a", label="y"), parse_label=number)


def test_unlabeled_files(tmp_path):
    path = write(tmp_path / "x.tsv", "id\ta\n0\tx\n1\ty\n")
    with pytest.raises(UserError, match=r"no column 'y' for data.label"):
        read_examples(path, Columns("a", label="y"))
    assert read_examples(path, Columns("a", label="y"), parse_label=None).labels == []


@pytest.mark.parametrize("flags", [TRAINING_FLAGS, PREDICT_FLAGS])
@pytest.mark.parametrize("field", ["choices", "negatives"])
def test_missing_columns_of_lists_are_named_by_their_setting(tmp_path, field, flags):
    path = write(tmp_path / "x.tsv", "a\tb\nx\ty\n")
    columns = Columns("a", **{field: "b,none"})
    with pytest.raises(UserError, match=f"no column 'none' for data.{field}; the header has"):
        read_examples(path, columns, parse_label=None, flags=flags)
    numbered = Columns("0", header=False, **{field: "1,2"})
    with pytest.raises(UserError, match=f"no column 2 for data.{field}: the row has 2"):
        read_examples(path, numbered, parse_label=None, flags=flags)


def test_a_column_of_lists(tmp_path):
    rows = [["a", '["b, c", "d"]'], ["e", '["f", "[g]"]']]
    path = write(tmp_path / "x.tsv", "a\tn\n" + "\n".join("\t".join(row) for row in rows) + "\n")
    found = read_examples(path, Columns("a", negatives="n"), parse_label=None)
    assert found.negatives == [["b, c", "d"], ["f", "[g]"]]
    path = write(tmp_path / "y.tsv", "a\tn\na\t[not JSON]\n")
    assert read_examples(path, Columns("a", negatives="n"), parse_label=None).negatives == [["[not JSON]"]]


def test_blank_lines_of_one_column_have_predictions(tmp_path):
    for name in ("x.tsv", "x.csv"):
        path = write(tmp_path / name, "a\nx\n\ny\n")
        found = read_examples(path, Columns("a"), parse_label=None, flags="--")
        assert (found.texts_a, found.ids) == (["x", "", "y"], ["0", "1", "2"])
        assert read_examples(path, Columns("a"), parse_label=None).texts_a == ["x", "y"]


@pytest.mark.parametrize("name", ["x.tsv", "x.csv"])
def test_blank_lines_before_the_first_row_have_predictions_without_a_header(tmp_path, name):
    column = Columns("0", header=False)
    path = write(tmp_path / name, "\n\nx\n\ny\n")
    found = read_examples(path, column, parse_label=None, flags="--")
    assert (found.texts_a, found.lines) == (["", "", "x", "", "y"], [1, 2, 3, 4, 5])
    assert read_examples(path, column, parse_label=None).texts_a == ["x", "y"]
    path = write(tmp_path / name, "\na\n\nx\n")  # a line before a header is no row
    assert read_examples(path, Columns("a"), parse_label=None, flags="--").texts_a == ["", "x"]
    path = write(tmp_path / name, "\nx,z\n\ny,z\n".replace(",", "\t" if name == "x.tsv" else ","))
    assert read_examples(path, column, parse_label=None, flags="--").texts_a == ["x", "y"]


def test_a_line_of_texts_that_is_not_utf_8_is_malformed(tmp_path):
    path = write(tmp_path / "x.txt", "gut\nsch\xf6n\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"x.txt:2: not UTF-8 \(1 of 2 rows is malformed"):
        read_examples(path, Columns("0"), file_format=LINES, parse_label=None, flags=PREDICT_FLAGS)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(*[st.text(st.characters(blacklist_characters="\t\r\n", blacklist_categories=["Cs"]))] * 2),
        min_size=1,
        max_size=20,
    )
)
def test_any_text_survives_a_tsv(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("tsv") / "x.tsv"
    write(path, "a\tb\tz\n" + "".join(f"{a}\t{b}\tz\n" for a, b in rows))
    examples = read_examples(str(path), Columns("a", "b", quotes=False))
    assert list(zip(examples.texts_a, examples.texts_b, strict=True)) == rows
    write_table(str(path), ("a", "b"), ([a, b] for a, b in rows))
    examples = read_examples(str(path), Columns("a", "b"))
    spaces = [tuple(" ".join(text.split()) for text in row) for row in rows]
    assert list(zip(examples.texts_a, examples.texts_b, strict=True)) == spaces


def test_labels_are_inferred_in_a_stable_order():
    assert infer_labels(["b", "a ", "b"], "f") == ("a", "b")
    assert infer_labels(["10", "9", "-1"], "f") == ("-1", "9", "10")
    assert infer_labels(["x", "2", "10"], "f") == ("2", "10", "x")
    assert label_index(numbers(("a", "b", "a")), " b ") == 1 and numbers(("a", "b", "a"))["a"] == 0
    with pytest.raises(ValueError, match="label 'c' is none of 'a', 'b'"):
        label_index(numbers(("a", "b")), "c")
    with pytest.raises(UserError, match="every one of the 3 rows has the label 'x'"):
        infer_labels(["x"] * 3, "f")
    with pytest.raises(UserError, match="30 different labels in 30 rows"):
        infer_labels([str(i / 3) for i in range(30)], "f")


@pytest.mark.parametrize("text", ["", "nan", "inf", "four", "1,5", "1_000"])
def test_numbers(text):
    assert parse_number(" 3.5 ") == 3.5
    with pytest.raises(ValueError):
        parse_number(text)


@pytest.mark.parametrize(
    "name, split, count, first, targets",
    [
        ("cola", "train", 8551, "Our friends won't buy", {"0": 2528, "1": 6023}),
        ("cola", "dev", 1043, "The sailors rode", {"0": 322, "1": 721}),
        ("SST-2", "dev", 872, "it 's a charming", {"0": 428, "1": 444}),
        ("mrpc", "train", 3668, "Amrozi accused his brother", {"0": 1194, "1": 2474}),
        ("mrpc", "dev", 408, "He said the foodservice", {"0": 129, "1": 279}),
        ("rte", "dev", 277, "Dana Reeve", {"entailment": 146, "not_entailment": 131}),
        ("stsb", "dev", 1500, "A man with a hard hat", None),
    ],
)
def test_glue_files(shared_data, name, split, count, first, targets):
    spec = tasks.get(name)
    examples = read_examples(spec.file(str(shared_data / "glue"), split), spec.columns)
    assert (len(examples), examples.malformed_count) == (count, 0)
    assert examples.texts_a[0].startswith(first)
    if targets:
        assert {label: examples.labels.count(label) for label in set(examples.labels)} == targets
    else:
        assert min(map(float, examples.labels)) >= 0 and max(map(float, examples.labels)) == 5
    pairs = name in ("mrpc", "rte", "stsb")
    assert bool(examples.texts_b) == pairs


def test_glue_test_files_have_their_own_layout(tmp_path):
    path = write(
        tmp_path / "test.tsv", "\ufeffindex\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tone\ttwo\n"
    )
    examples = read_examples(path, tasks.get("mrpc").test_columns)
    assert (examples.ids, examples.texts_a, examples.texts_b, examples.labels) == (
        ["0"],
        ["one"],
        ["two"],
        [],
    )


def test_files_of_multiple_choice_by_the_folder_that_has_them(tmp_path):
    for name in ("codah/train.tsv", "codah/dev.tsv", "swag/train.csv", "swag/val.csv", "swag/test.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    for task, dev in (("codah", "dev.tsv"), ("swag", "val.csv")):
        for folder in (tmp_path, tmp_path / task):
            assert tasks.get(task).file(str(folder), "dev") == str(tmp_path / task / dev)
    assert tasks.get("swag").file(str(tmp_path), "test").endswith("swag/test.csv")
    (tmp_path / "swag" / "val.csv").rename(tmp_path / "swag" / "val.jsonl")
    assert tasks.get("swag").file(str(tmp_path), "dev").endswith("swag/val.jsonl")
    with pytest.raises(UserError, match=r"data_dir is the folder that holds codah/test.tsv"):
        tasks.get("codah").file(str(tmp_path), "test")


def test_unknown_tasks_and_folders(tmp_path):
    with pytest.raises(UserError, match="task=mnlii: there is no such task; did you mean mnli"):
        tasks.get("mnlii")
    with pytest.raises(UserError, match=r"data_dir is the folder that holds MRPC/train.tsv"):
        tasks.get("mrpc").file(str(tmp_path), "train")
