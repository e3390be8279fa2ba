import gzip
import io
import json
import sys

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from safetensors.numpy import load_file
from support.embeddings import TEXTS, tiny_model

from bert_jax import cli
from bert_jax.convert.formats import work_directory
from bert_jax.convert.sentences import SentenceVectors
from bert_jax.inference import embedding, engine
from bert_jax.inference.embedding import Embedder
from bert_jax.inference.text_files import read_texts

USED = TEXTS[:6]
LINES = "\n".join(USED) + "\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def checkpoint(model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoint")
    work_directory.FORMAT.write(model, directory)
    return directory


@pytest.fixture
def embed(checkpoint, tmp_path, capsys):
    def call(*flags, content=LINES, name="texts.txt", output="x.npy", code=0):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        given = [f"--model={checkpoint}", f"--input={tmp_path / name}", f"--output={tmp_path / output}"]
        capsys.readouterr()
        assert cli.main(["embed", *given, *flags]) == code
        return tmp_path / output, capsys.readouterr()

    return call


def read_vectors(path):
    if path.suffix == ".npy":
        return np.load(path, mmap_mode="r")
    if path.suffix == ".safetensors":
        return load_file(path)["embeddings"]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["index"] for row in rows] == list(range(len(rows)))
    assert [row["text"] for row in rows] == USED
    return np.array([row["embedding"] for row in rows], np.float32)


@pytest.mark.long
def test_prompts_of_a_model_of_sentences(model, tmp_path, capsys):
    sentence = SentenceVectors("cls", True, 8, {"query": "the cat "})
    own = model.replace(sentence=sentence)
    work_directory.FORMAT.write(own, tmp_path / "run")
    (tmp_path / "texts.txt").write_text(LINES)
    command = ["embed", f"--model={tmp_path / 'run'}", f"--input={tmp_path / 'texts.txt'}"]
    assert cli.main([*command, f"--output={tmp_path / 'a.npy'}", "--prompt=query"]) == 0
    assert cli.main([*command, f"--output={tmp_path / 'b.npy'}", "--prefix=the cat "]) == 0
    expected = Embedder(model, pooling="cls", normalize=True, max_seq_length=8).embed(USED, "the cat ")
    for name in "ab":
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy"), expected)
    capsys.readouterr()
    assert cli.main([*command, f"--output={tmp_path / 'c.npy'}", "--prompt=document"]) == 2
    assert "the prompts of" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".jsonl"])
def test_vectors_of_every_format(embed, model, suffix):
    path, said = embed("--layers=-2,-1", output=f"x{suffix}")
    vectors = read_vectors(path)
    assert vectors.dtype == np.float32 and vectors.shape == (6, 32)
    expected = Embedder(model, layers=[-2, -1]).embed(USED)
    np.testing.assert_allclose(vectors, expected, atol=1e-6 if suffix == ".jsonl" else 0)
    assert f"wrote {path}: 6 texts, 46 tokens, 32 numbers per text" in said.out
    assert "1 are blank" in said.err


def test_the_texts_of_a_table(embed, model):
    content = "stars,opinion\n" + "".join(f'{i},"{text}"\n' for i, text in enumerate(USED))
    path, _ = embed("--text=opinion", name="reviews.csv", content=content)
    np.testing.assert_array_equal(np.load(path), Embedder(model).embed(USED))
    _, said = embed(name="reviews.csv", content=content, output="y.npy", code=2)
    assert "no field 'text'; the fields are 'stars', 'opinion'" in said.err


def test_states_as_json_lines(embed, model):
    path, _ = embed("--pooling=none", "--layers=-1,0", output="x.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    expected = Embedder(model, layers=[-1, 0], pooling="none").embed(USED)
    assert [(row["index"], row["text"]) for row in rows] == list(enumerate(USED))
    assert [f["token"] for f in rows[4]["features"]] == "[CLS] the dog ##s is small . [SEP]".split()
    for row, states in zip(rows, expected, strict=True):
        assert len(row["features"]) == len(states)
        for feature, state in zip(row["features"], states, strict=True):
            assert [layer["index"] for layer in feature["layers"]] == [-1, 0]
            found = [layer["values"] for layer in feature["layers"]]
            np.testing.assert_allclose(found, state, atol=1e-6)


def test_states_as_safetensors(embed, model):
    path, _ = embed("--pooling=none", "--layers=-1,0", output="x.safetensors")
    found = load_file(path)
    expected = list(Embedder(model, layers=[-1, 0], pooling="none").stream(USED))
    lengths = [len(features.token_ids) for features in expected]
    assert found["offsets"].tolist() == np.cumsum([0, *lengths]).tolist()
    np.testing.assert_array_equal(found["states"], np.concatenate([f.values for f in expected]))
    np.testing.assert_array_equal(found["token_ids"], np.concatenate([f.token_ids for f in expected]))


def test_every_kind_of_input_is_the_same_texts(tmp_path, monkeypatch):
    texts = ["the cat", "", "a\u2028dog \u00e9"]
    lines = "\n".join(texts).encode()
    objects = "\n".join(json.dumps({"n": 1, "sentence": text}) for text in texts).encode()
    for name, content in {
        "plain.txt": lines,
        "windows.txt": b"\xef\xbb\xbf" + lines.replace(b"\n", b"\r\n") + b"\r\n",
        "packed.txt.gz": gzip.compress(lines),
        "blank.jsonl": b"\r\n" + objects.replace(b"\n", b"\n \n") + b"\n",
        "objects.jsonl.gz": gzip.compress(objects),
        "table.csv": b'n,sentence\n1,the cat\n2,""\n3,a\xe2\x80\xa8dog \xc3\xa9\n',
        "table.tsv": b"sentence\tn\nthe cat\t1\n\t2\na\xe2\x80\xa8dog \xc3\xa9\t3\n",
    }.items():
        (tmp_path / name).write_bytes(content)
        assert list(read_texts(str(tmp_path / name))) == texts, name
    parquet.write_table(pyarrow.table({"sentence": texts}), tmp_path / "table.parquet")
    assert list(read_texts(str(tmp_path / "table.parquet"))) == texts
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    assert list(read_texts("-")) == texts


def test_a_file_appears_whole_or_not_at_all(embed, monkeypatch):
    monkeypatch.setattr(embedding, "_WINDOW_TEXTS", 2)
    monkeypatch.setattr(engine, "_ENCODE_CHUNK", 1)
    content = b"cat\ndog\nbird\nred \xff\n"
    path, said = embed(content=content, code=2)
    assert ":4: not UTF-8" in said.err
    assert [file.name for file in path.parent.iterdir()] == ["texts.txt"]
