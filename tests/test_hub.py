"""Models and data sets by their names on the hub."""

import os

import pytest
from support import hub_folders

from bert_jax import hub
from bert_jax.errors import UserError

NAME = "org/tiny"
FILES = {
    "config.json": b'{"model_type": "bert"}',
    "model.safetensors": b"8 bytes.",
    "pytorch_model.bin": b"pickle",
    "vocab.txt": b"[PAD]\n",
    "onnx/config.json": b"{}",
    "1_Pooling/config.json": b"{}",
}


def write(folder, contents):
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    write(tmp_path / "hub" / NAME, FILES)
    yield hub_folders.use(tmp_path / "hub", tmp_path / "cache", monkeypatch)
    hub._snapshot.cache_clear()


def test_a_model_is_downloaded_once_without_weights_of_other_frameworks(folders):
    commit = folders.commit(folders.root / NAME)
    folder = hub.local_path(NAME)
    assert os.path.basename(folder) == commit and hub.local_path(f"{NAME}@{commit}") == folder
    left_out = {"pytorch_model.bin", "onnx/config.json"}
    assert sorted(folders.downloaded) == sorted(FILES.keys() - left_out)


@pytest.mark.parametrize("name", ["org/none", "none", f"{NAME}@v9"])
def test_one_line_says_what_is_missing(folders, name):
    with pytest.raises(UserError, match=f"^{name}: "):
        hub.local_path(name)


@pytest.mark.parametrize("path", ["/a/b", "gs://bucket/model", "a/b/c", "./a", "../b", "", "a b", NAME])
def test_paths_and_existing_folders_are_no_names(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    os.makedirs(NAME)
    assert not hub.is_name(path) and hub.local_path(path) == path


# Data sets

CARD = """---
configs:
- config_name: mrpc
  data_files:
  - split: train
    path: mrpc/train-*
  - split: validation
    path: mrpc/validation-*
- config_name: cola
  data_files:
  - split: train
    path: cola/train-*
---
"""


@pytest.fixture
def data_sets(folders):
    root = folders.root / "datasets"
    tables = ("mrpc/train-0-of-2.parquet", "mrpc/train-1-of-2.parquet", "mrpc/validation-0.parquet")
    glue = {"README.md": CARD.encode(), **{name: name.encode() for name in tables}}
    write(root / "org" / "glue", glue)
    write(root / "org" / "plain", {"data/train-0.parquet": b"x", "data/test.parquet": b"y"})
    write(root / "script", {"script.py": b""})
    write(root / "many", {"many.py": b""})
    two = {"a/train/0000.parquet": b"a", "b/train/0000.parquet": b"b", "b/validation/0000.parquet": b"c"}
    write(root / "many@parquet", two)
    write(root / "script@parquet", {"script/train/0000.parquet": b"z"})
    return folders


@pytest.mark.parametrize(
    "name, split, expected",
    [
        ("hf:org/glue:mrpc", "train", ["mrpc/train-0-of-2.parquet", "mrpc/train-1-of-2.parquet"]),
        ("hf:org/glue:mrpc", "dev", ["mrpc/validation-0.parquet"]),
        ("hf:org/plain", "train", ["data/train-0.parquet"]),
        ("hf:org/plain", "test", ["data/test.parquet"]),
        ("hf:script", "train", ["script/train/0000.parquet"]),
        ("hf:many:b", "train", ["b/train/0000.parquet"]),
    ],
)
def test_the_parquet_files_of_a_split_are_downloaded(data_sets, name, split, expected):
    found = hub.data_files(name, split)
    assert [path.partition("/snapshots/")[2].partition("/")[2] for path in found] == expected
    assert set(data_sets.downloaded) - {"README.md"} == set(expected)


@pytest.mark.parametrize(
    "name, split, expected",
    [
        ("hf:org/glue", "train", "mrpc, cola"),
        ("hf:org/glue:sst", "train", "mrpc, cola"),
        ("hf:org/glue:cola", "dev", "train"),
        ("hf:org/plain", "dev", "dev"),
        ("hf:org/plain@v9", "train", "Revision"),
        ("hf:many", "train", "a/train, b/train"),
        ("hf:org/none", "train", "hf:org/none"),
        ("hf:a/b/c", "train", "ORG/NAME"),
    ],
)
def test_a_missing_split_is_one_line(data_sets, name, split, expected):
    with pytest.raises(UserError, match=expected):
        hub.data_files(name, split)
