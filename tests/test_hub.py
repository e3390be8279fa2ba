"""Models by their hub names, downloaded from a local server that implements the hub's API."""

import os
import subprocess
import sys

import pytest
from support import hub_server

from bert_jax import hub
from bert_jax.errors import UserError

NAME, WEIGHTS = "org/tiny", "0_Transformer/model.safetensors"
FILES = {
    "config.json": b'{"model_type": "bert"}',
    WEIGHTS: b"8 bytes.",
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
def server(tmp_path):
    write(tmp_path / "hub" / NAME, FILES)
    with hub_server.serving(tmp_path / "hub") as served:
        yield served


def resolve(server, tmp_path, name, **variables):
    """Returns the output of a process for a name; the cache is empty or has files of earlier calls."""
    code = (
        "import sys; from bert_jax import errors, hub\n"
        "try: print(hub.local_path(sys.argv[1]))\n"
        "except errors.UserError as error: sys.exit(f'{error}')"
    )
    environment = {
        **os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0",
        **variables,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code, name], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    return (done.stdout if done.returncode == 0 else done.stderr).splitlines()[-1]


def test_a_model_is_downloaded_once_without_weights_of_other_frameworks(server, tmp_path):
    folder = resolve(server, tmp_path, NAME)
    found = {os.path.relpath(os.path.join(at, x), folder) for at, _, names in os.walk(folder) for x in names}
    assert found == {"config.json", WEIGHTS, "vocab.txt", "1_Pooling/config.json"}
    commit = server.commit(server.root / NAME)
    assert os.path.basename(folder) == commit
    before = len(server.requests)
    assert resolve(server, tmp_path, f"{NAME}@{commit}") == folder
    assert not any("resolve" in path for path in server.requests[before:])
    assert resolve(server, tmp_path, NAME, HF_HUB_OFFLINE="1") == folder


def test_files_that_the_cache_has_show_no_progress_bar(capsys):
    with hub._bar()(total=1, disable=False) as bar:
        bar.update()
    assert not capsys.readouterr().err


def test_a_download_that_was_cut_off_resumes(server, tmp_path):
    server.stop_after = 30
    assert NAME in resolve(server, tmp_path, NAME)
    assert "cache" in resolve(server, tmp_path, NAME, HF_HUB_OFFLINE="1")
    server.stop_after = 0
    folder = resolve(server, tmp_path, NAME)
    assert (tmp_path / folder / WEIGHTS).read_bytes() == FILES[WEIGHTS]


@pytest.mark.parametrize("name", ["org/none", "none", f"{NAME}@v9"])
def test_one_line_says_what_is_missing(server, tmp_path, name):
    assert resolve(server, tmp_path, name).startswith(f"{name}: ")


def test_a_folder_of_the_same_name_is_preferred(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs(NAME)
    assert hub.local_path(NAME) == NAME


@pytest.mark.parametrize("path", ["/a/b", "gs://bucket/model", "a/b/c", "./a", "../b", "", "a b"])
def test_paths_are_no_names(path):
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
def data_server(tmp_path):
    tables = ("mrpc/train-0-of-2.parquet", "mrpc/train-1-of-2.parquet", "mrpc/validation-0.parquet")
    glue = {"README.md": CARD.encode(), **{name: name.encode() for name in tables}}
    write(tmp_path / "hub" / "datasets" / "org" / "glue", glue)
    write(
        tmp_path / "hub" / "datasets" / "org" / "plain",
        {"data/train-0.parquet": b"x", "data/test.parquet": b"y"},
    )
    write(tmp_path / "hub" / "datasets" / "script", {"script.py": b""})
    write(tmp_path / "hub" / "datasets" / "many", {"many.py": b""})
    two = {"a/train/0000.parquet": b"a", "b/train/0000.parquet": b"b", "b/validation/0000.parquet": b"c"}
    write(tmp_path / "hub" / "datasets" / "many@parquet", two)
    write(tmp_path / "hub" / "datasets" / "script@parquet", {"script/train/0000.parquet": b"z"})
    with hub_server.serving(tmp_path / "hub") as served:
        yield served


@pytest.fixture
def from_server(data_server, tmp_path, monkeypatch):
    hub_server.use(data_server, tmp_path / "cache", monkeypatch)
    yield data_server
    hub._snapshot_folder.cache_clear()


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
def test_the_parquet_files_of_a_split_are_downloaded(from_server, name, split, expected):
    found = hub.data_files(name, split)
    assert [path.partition("/snapshots/")[2].partition("/")[2] for path in found] == expected
    downloaded = {path.partition("/resolve/")[2].partition("/")[2] for path in from_server.requests}
    assert downloaded - {"", "README.md"} == set(expected)


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
def test_a_missing_split_is_one_line(from_server, name, split, expected):
    with pytest.raises(UserError, match=expected):
        hub.data_files(name, split)
