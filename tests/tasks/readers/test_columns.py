"""Which columns of a file a task reads, and how: the same when training, evaluating and predicting."""

import pytest
from support import fine_tuned

from bert_jax import tasks
from bert_jax.errors import UserError
from bert_jax.tasks import fields

# Quoted, the tab belongs to the text; as plain TSV the first row has one column more than the header.
QUOTED = '"a\tred cat"'
LABELS = {"classification": ["dog", "one"], "multilabel": ["dog", "one"]}


@pytest.mark.parametrize(
    "task, columns, header, row",
    [
        ("classification", dict(text_a="text"), "text\tlabel", f"{QUOTED}\tone"),
        ("classification", dict(text_a="text", text_b="b"), "text\tb\tlabel", f'{QUOTED}\t"""b"""\tone'),
        ("multilabel", dict(text_a="text"), "text\tlabel", f'{QUOTED}\t"dog,one"'),
        ("regression", dict(text_a="text"), "text\tlabel", f"{QUOTED}\t2.5"),
        (
            "multiplechoice",
            dict(text_a="text", choices="x,y"),
            "text\tx\ty\tlabel",
            f'{QUOTED}\t"1\t2"\t3\t0',
        ),
    ],
)
def test_prediction_reads_a_table_as_training_does(vocabulary, tmp_path, task, columns, header, row):
    path = tmp_path / "rows.tsv"
    path.write_text(f"{header}\n{row}\n")
    labels = ("0", "1") if task == "multiplechoice" else LABELS.get(task)
    found = fine_tuned.make_task(vocabulary, task, labels, label="label", quoting="csv", **columns)
    labeled, unlabeled = found.read(str(path)), found.read_unlabeled(str(path))
    assert unlabeled.texts_a == labeled.texts_a == ["a\tred cat"]
    assert unlabeled.texts_b == labeled.texts_b
    assert unlabeled.choices == labeled.choices


@pytest.mark.parametrize("task", ["classification", "multilabel"])
def test_every_line_of_a_txt_file_is_a_text(vocabulary, tmp_path, task):
    path = tmp_path / "texts.txt"
    path.write_text('a red cat\n\n"one\ttwo, three\r\nthe last')
    found = fine_tuned.make_task(vocabulary, task, LABELS[task], label="label", text_a="text")
    examples = found.read_unlabeled(str(path))
    assert examples.texts_a == ["a red cat", "", '"one\ttwo, three', "the last"]
    assert examples.ids == ["0", "1", "2", "3"]
    path.write_text("a red cat\n\none\ttwo, three\r\nthe last")
    with pytest.raises(UserError, match=r"texts.txt:3: 2 columns"):
        found.read_unlabeled(str(path), format="tsv", text_a="0", header=False)

    path.write_text("text\nred\n")  # the run's training file was such a table, and was called .txt too
    found = fine_tuned.make_task(vocabulary, task, LABELS[task], label="label", text_a="text", format="tsv")
    assert found.read_unlabeled(str(path)).texts_a == ["red"]


def test_hints_of_predict_name_its_own_flags(vocabulary, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("a red cat\na dog, one\n")
    options = dict(label="label", text_a="text", text_b="b")
    pairs = fine_tuned.make_task(vocabulary, "classification", ["dog", "one"], **options)
    for given, hint in (
        ({}, "give the format .* with --format"),
        ({"format": "tsv"}, "for --text_a, .* give --noheader and numbers, such as --text_a=0"),
        ({"format": "tsv", "header": False}, r"--text_a=text: .* \(or set --header=true\)"),
    ):
        with pytest.raises(UserError, match=hint) as caught:
            pairs.read_unlabeled(str(path), **given)
        assert "data." not in str(caught.value)


def test_columns_that_a_file_cannot_have_are_refused(vocabulary, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a red cat", "x": "one", "y": "two", "words": ["a"]}\n')
    task = fine_tuned.make_task(vocabulary, "classification", ["dog", "one"], text_a="text", label="l")
    with pytest.raises(UserError, match="--header is only used for tsv and csv"):
        task.read_unlabeled(str(path), header=False)
    choices = fine_tuned.make_task(vocabulary, "multiplechoice", text_a="text", choices="x,y", label="l")
    with pytest.raises(UserError, match="--header is only used for tsv and csv"):
        choices.read_unlabeled(str(path), header=True)
    tagging = fine_tuned.make_task(vocabulary, "tagging", ["O", "B-X", "I-X"])
    for name in ("header", "text_b"):
        with pytest.raises(UserError, match=f"--{name} is for tables of texts"):
            tagging.read_unlabeled(str(path), **{name: "n"})
    assert len(tagging.read_unlabeled(str(path))) == 1


def columns_of(task, **data):
    config = tasks.default_config()
    config.task = task
    config.data.update(data)
    spec = tasks.get(task)
    return spec.task.columns_of(fields.of_task(fields.of_run(config)), spec)


def test_an_id_or_the_lack_of_a_header_alone_changes_the_columns_of_a_known_task():
    assert columns_of("sst2") == tasks.get("sst2").columns
    assert columns_of("sst2", id="number") == tasks.Columns("sentence", label="label", id="number")
    assert not columns_of("sst2", header=False).header
    assert not columns_of("cola").header  # its own files have none
    assert columns_of("swag", choices="a,b").choices == "a,b"
    # Another table: nothing of the task's own is left.
    assert columns_of("swag", choices="a,b", text_a="review") == tasks.Columns("review", choices="a,b")


def test_a_known_task_without_a_header_says_what_its_columns_are_by_name(vocabulary, tmp_path):
    path = tmp_path / "rows.tsv"
    path.write_text("a red cat\t1\n")
    task = fine_tuned.make_task(vocabulary, "sst2", ["0", "1"], header=False)
    with pytest.raises(UserError, match="sentence"):
        task.read(str(path))


@pytest.mark.parametrize("name, header", [("new.txt", ""), ("new.tsv", "text\n")])
def test_empty_texts_to_predict_are_counted(vocabulary, tmp_path, name, header):
    task = fine_tuned.make_task(vocabulary, "classification", ("no", "yes"), text_a="text", label="l")
    path, line = tmp_path / name, 2 + bool(header)
    for lines, expected in (
        ("a\n\nb\n  \n", f"2 texts are empty and are predicted all the same (first: line {line})"),
        ("a\n\n", f"1 text is empty and is predicted all the same (first: line {line})"),
        ("a\nb\n", ""),
    ):
        path.write_text(header + lines)
        assert task.read_unlabeled(str(path)).warning() == (expected and f"{path}: {expected}")
