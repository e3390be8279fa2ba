"""Examples of Parquet and Arrow files and of directories of them, as from Hugging Face."""

import json

import pyarrow
import pytest
from pyarrow import ipc, parquet

from bert_jax import cli
from bert_jax.errors import UserError
from bert_jax.tasks.readers.tables import Columns, read_examples

FEATURES = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["bad", "good"]}}}}


def write(folder, kind="parquet", parts=2):
    rows = {"text": [f"text {i}" for i in range(10)], "label": [i % 2 for i in range(10)]}
    metadata = {b"huggingface": json.dumps(FEATURES).encode()}
    found = pyarrow.table(rows | {"hard": [["a", "b"]] * 10}).replace_schema_metadata(metadata)
    folder.mkdir(exist_ok=True)
    for part in range(parts):
        piece = found.slice(part * 10 // parts, 10 // parts)
        if kind == "parquet":
            parquet.write_table(piece, folder / f"train-{part}.parquet")
            continue
        with ipc.new_stream(str(folder / f"data-{part}.arrow"), piece.schema) as writer:
            writer.write_table(piece)
    (folder / "dataset_info.json").write_text("{}")
    return folder


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_directory_is_one_file(tmp_path, kind):
    found = read_examples(str(write(tmp_path / "train", kind)), Columns("text", label="label"))
    assert found.texts_a == [f"text {i}" for i in range(10)]
    assert found.labels == ["bad", "good"] * 5 and found.lines == [*range(1, 11)]
    assert found.ids == [str(i) for i in range(10)]
    assert found.rows == 10 and not found.malformed


def test_a_row_whose_label_is_missing_has_no_class_of_its_own(tmp_path):
    labels = pyarrow.array([0.0, 1.0] * 20 + [float("nan"), None])
    parquet.write_table(pyarrow.table({"text": ["t"] * 42, "label": labels}), tmp_path / "x.parquet")
    found = read_examples(str(tmp_path / "x.parquet"), Columns("text", label="label"))
    assert found.labels == ["0.0", "1.0"] * 20 and found.malformed_count == 2
    assert "x.parquet:41: 'label' is nan" in found.malformed[0]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize(
    "column",
    [
        pyarrow.array([None, 1], pyarrow.duration("ns")),
        pyarrow.array([0, 2**50], pyarrow.timestamp("s")),
        pyarrow.array([0, 2**30], pyarrow.date32()),
    ],
    ids=lambda column: str(column.type),
)
def test_values_that_python_cannot_represent_are_an_error(tmp_path, kind, column):
    table, path = pyarrow.table({"text": ["a", "b"], "when": column}), tmp_path / f"x.{kind}"
    if kind == "parquet":
        parquet.write_table(table, path)
    else:
        with ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(UserError, match=r"x\.\w+: row 2, column 'when'") as error:
        read_examples(str(path), Columns("text", label="when"))
    assert "\n" not in str(error.value)
    assert read_examples(str(path), Columns("text"), parse_label=None).texts_a == ["a", "b"]


def test_what_stands_beside_the_rows_of_a_directory(tmp_path):
    folder = write(tmp_path / "train", "arrow")
    (folder / "cache-0123abc.arrow").write_bytes((folder / "data-0.arrow").read_bytes())
    assert len(read_examples(str(folder), Columns("text"), parse_label=None)) == 10
    parquet.write_table(pyarrow.table({"text": pyarrow.array([], "string")}), folder / "data-2.parquet")
    assert len(read_examples(str(folder), Columns("text"), parse_label=None)) == 10


def test_lists_are_as_long_as_in_the_first_file(tmp_path):
    for name, lists in (("a", [["x", "y"]] * 30), ("b", [["x", "y", "z"]] + [["x", "y"]] * 9)):
        table = pyarrow.table({"text": ["t"] * len(lists), "hard": lists})
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    found = read_examples(str(tmp_path), Columns("text", negatives="hard"), parse_label=None)
    assert len(found) == 39 and found.malformed == [
        f"{tmp_path}/b.parquet:1: 3 negatives, 2 in the first row"
    ]


def test_several_columns_have_no_lists(tmp_path):
    parquet.write_table(
        pyarrow.table({"text": ["t"] * 4, "hard": ["x"] * 4, "more": [["y"]] * 4}), tmp_path / "a.parquet"
    )
    with pytest.raises(UserError, match="a list, in one of 2 columns of a"):
        read_examples(str(tmp_path / "a.parquet"), Columns("text", negatives="hard,more"), parse_label=None)


def test_a_file_with_lists(tmp_path):
    path = write(tmp_path / "train", parts=1) / "train-0.parquet"
    found = read_examples(str(path), Columns("text", negatives="hard"), parse_label=None)
    assert found.negatives == [["a", "b"]] * 10 and found.ids == list(map(str, range(10)))


def test_rows_without_a_text_are_malformed(tmp_path):
    parquet.write_table(pyarrow.table({"text": ["a", None] + ["b"] * 98}), tmp_path / "x.parquet")
    found = read_examples(str(tmp_path / "x.parquet"), Columns("text"), parse_label=None)
    assert len(found) == 99 and found.malformed_count == 1 and "x.parquet:2" in found.warning()


def test_mistakes(tmp_path):
    folder = write(tmp_path / "train", parts=1)
    with pytest.raises(
        UserError, match=r"no column 'body' for data.text_a; there are 'text', 'label', 'hard'"
    ):
        read_examples(str(folder), Columns("body"))
    with pytest.raises(UserError, match=r"no columns 'body' for data.text_a, 'stars' for data.label; there"):
        read_examples(str(folder), Columns("body", label="stars"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="a directory without Parquet or Arrow files"):
        read_examples(str(tmp_path / "empty"), Columns("text"))


@pytest.mark.long
def test_a_run_on_the_folders_of_a_data_set(tmp_path, pretrained, capsys):
    for split in ("train", "validation"):
        write(tmp_path / split, "arrow")
    run = tmp_path / "run"
    command = [
        "finetune",
        "--config=finetune/classification",
        f"--workdir={run}",
        f"--config.init_from={pretrained}",
    ]
    command += [f"--config.data.train={tmp_path / 'train'}", f"--config.data.eval={tmp_path / 'validation'}"]
    command += ["--config.data.text_a=text", "--config.data.label=label", "--config.epochs=1"]
    assert cli.main([*command, "--config.max_seq_length=8", "--config.batch_size=8"]) == 0
    assert json.loads((run / "config.json").read_text())["labels"] == ["bad", "good"]
    out = tmp_path / "out.jsonl"
    assert (
        cli.main(["predict", f"--workdir={run}", f"--input={tmp_path / 'validation'}", f"--output={out}"])
        == 0
    )
    assert len(out.read_text().splitlines()) == 10
    # A row of the predictions would stand for another row of the input, if one were left out.
    (tmp_path / "new.tsv").write_text("text\n" + "a text\n" * 40 + "a\tb\n")
    given = [f"--workdir={run}", f"--input={tmp_path / 'new.tsv'}", f"--output={tmp_path / 'new-out.tsv'}"]
    assert cli.main(["predict", *given]) == 2
    assert "new.tsv:42: 2 columns" in (told := capsys.readouterr().err) and "and none may be" in told
