"""`bert_jax.finetune` and `bert_jax.pretrain`: rows from memory, fields by keyword, resume."""

import functools
import json

import pyarrow as pa
import pytest
from pyarrow import parquet
from support import hub_server

import bert_jax
from bert_jax import cli, hub, library
from bert_jax.errors import UserError

ROWS = [{"review": f"the {word} is big", "animal": word} for word in ("cat", "dog") * 8]
FIELDS = dict(
    text_a="review", label="animal", max_seq_length=16, batch_size=16, epochs=2,
    **{"model.hidden_dropout_prob": 0.0, "model.attention_probs_dropout_prob": 0.0},
)  # fmt: skip


@pytest.mark.long
def test_rows_from_memory_train_as_those_of_a_file(tmp_path, pretrained):
    given = {
        "rows": ROWS, "table": pa.Table.from_pylist(ROWS), "file": tmp_path / "rows.jsonl",
    }  # fmt: skip
    given["file"].write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    histories = {}
    for name, rows in given.items():
        workdir, lines = tmp_path / name, []
        run = bert_jax.finetune(
            "finetune/classification", workdir, init_from=str(pretrained), train=rows, eval=rows,
            log=lines.append, **FIELDS,
        )  # fmt: skip
        histories[name] = [row["loss"] for row in run.history if row["kind"] == "train"]
        assert run.scores["accuracy"] >= 0.5 and len(run.predictor().predict_rows(["the cat"])) == 1
    assert len(set(map(tuple, histories.values()))) == 1
    again = bert_jax.finetune(
        "finetune/classification", tmp_path / "rows", init_from=str(pretrained), train=ROWS, eval=ROWS,
        log=lines.append, **FIELDS,
    )  # fmt: skip
    assert again.scores == run.scores and len(again.history) == len(run.history)


def test_rows_may_lack_a_column_that_later_ones_have(tmp_path):
    path = library._file_of([{"a": "x"}, {"a": "y", "b": 1}], str(tmp_path / "rows.parquet"))
    assert parquet.read_table(path).to_pylist() == [{"a": "x", "b": None}, {"a": "y", "b": 1}]


@pytest.mark.parametrize("fields", [{"learning_rat": 1.0}, {"every": 1}, {"batch_size": "many"}])
def test_a_wrong_field_is_named(tmp_path, fields):
    with pytest.raises(UserError, match=next(iter(fields))):
        bert_jax.finetune("finetune/classification", tmp_path / "run", train=ROWS, **fields)


def test_the_work_directory_is_needed():
    with pytest.raises(UserError, match="workdir"):
        bert_jax.finetune("finetune/classification", train=ROWS)


@pytest.mark.long
def test_a_model_and_a_data_set_by_their_names(tmp_path, pretrained, monkeypatch):
    """A model and Parquet files with class names, from a local server that speaks the hub's API."""
    model, data = tmp_path / "hub" / "org" / "tiny", tmp_path / "hub" / "datasets" / "org" / "animals"
    (data / "data").mkdir(parents=True)
    assert cli.main(["convert", f"--input={pretrained}", f"--output={model}", "--to=huggingface"]) == 0
    names = ("cat", "dog")
    features = {"animal": {"names": list(names), "_type": "ClassLabel"}}
    rows = [row | {"animal": names.index(row["animal"])} for row in ROWS]
    table = pa.Table.from_pylist(rows)
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    for split in ("train", "validation"):
        parquet.write_table(table, data / "data" / f"{split}-00000-of-00001.parquet")
    with hub_server.serving(tmp_path / "hub") as server:
        download = hub.huggingface_hub.snapshot_download
        options = {"endpoint": server.url, "cache_dir": tmp_path / "cache"}
        monkeypatch.setattr(hub.huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(hub.huggingface_hub, "snapshot_download", functools.partial(download, **options))
        name = "hf:org/animals"
        run = bert_jax.finetune(
            "finetune/classification", tmp_path / "run", init_from="org/tiny", train=name, eval=name, **FIELDS
        )
    assert list(run.predictor().task.labels) == list(names) and set(run.scores) == {"accuracy", "f1_macro"}
