"""Inputs at remote paths, and data sets that tensorflow-datasets prepared."""

import gzip

import fsspec
import pytest
from support.builds import read_documents

from bert_jax.errors import UserError
from bert_jax.io import compression
from data_pipelines import readers

TEXT = b"One sentence.\nAnother one.\n\nA second document.\n\nThird.\n"


@pytest.fixture
def bucket():
    system = fsspec.filesystem("memory")
    system.store.clear()
    for name, data in {
        "a.txt": TEXT,
        "deep/b.txt.gz": gzip.compress(TEXT),
        "deep/c.txt.zst": compression.zstd.compress(TEXT),
    }.items():
        system.pipe(f"/bucket/{name}", data)
    yield "memory://bucket"
    system.store.clear()


@pytest.mark.parametrize("target", [5, 1 << 20])
def test_remote_files_are_read_as_local_ones(bucket, tmp_path, target):
    paths = readers.list_inputs(f"{bucket}/**/*.txt*")
    assert (
        readers.list_inputs(bucket)
        == paths
        == [f"{bucket}/{name}" for name in ("a.txt", "deep/b.txt.gz", "deep/c.txt.zst")]
    )
    for path in paths:
        local = tmp_path / path.removeprefix(bucket + "/")
        local.parent.mkdir(exist_ok=True)
        local.write_bytes(fsspec.filesystem("memory").cat(path))
    local = readers.list_inputs(str(tmp_path))
    found = read_documents(paths, target=target)
    assert found == read_documents(local, target=target) and len(found) == 9
    assert [*map(readers.file_digest, paths)] == [*map(readers.file_digest, local)]


@pytest.fixture(scope="module")
def tfds_folder(tmp_path_factory):
    tfds = pytest.importorskip("tensorflow_datasets")
    folder = tmp_path_factory.mktemp("tfds")

    class TinyCorpus(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.2.0")
        code_path = None  # there are no source files to find: this module is not in a package

        def _info(self):
            features = tfds.features.FeaturesDict(
                {name: tfds.features.Text() for name in ("latin", "text", "title", "url")}
                | {"label": tfds.features.ClassLabel(num_classes=2)}
                | {"parts": tfds.features.Sequence(tfds.features.Text())}
            )
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for number in range(30):
                text = f"First of {number}.\n\nSecond é."
                others = {"label": number % 2, "parts": text.split("\n"), "latin": b"Second \xe9 or \xef."}
                url = "u" if number == 7 else ""
                yield number, others | {"text": text, "title": f"title {number}", "url": url}

    return folder


def test_data_set_of_tensorflow_datasets(tfds_folder, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tfds_folder))
    with pytest.raises(UserError, match=r"tfds:tiny_corpus/9\.0\.0 .*9\.0\.0"):
        readers.list_inputs("tfds:tiny_corpus/9.0.0")
    paths = readers.list_inputs("tfds:tiny_corpus")  # prepares it
    monkeypatch.setattr("tensorflow_datasets.builder", None)
    assert readers.list_inputs(["tfds:tiny_corpus/1.2.0", f"tfds:{tfds_folder}/tiny_corpus"]) == paths
    assert readers.short_names(paths) == ["tiny_corpus/1.2.0"]
    assert readers.file_digest(paths[0])["bytes"] == readers.file_size(paths[0])

    whole = read_documents(paths)
    assert read_documents(paths, target=100) == whole and len(readers.split_ranges(paths, 100)) > 5
    assert [d.key for d in whole] == [f"tiny_corpus/1.2.0:{n}" for n in range(30)]
    assert {d.passages for d in whole} == {(f"First of {n}.", "Second é.") for n in range(30)}
    with pytest.raises(UserError, match=r"--text_field=body: .*label, latin, parts, text, title"):
        read_documents(paths, text_field="body")


def test_a_file_by_several_spellings_is_read_once(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("two")
    monkeypatch.chdir(tmp_path)
    assert readers.list_inputs(["a.txt", "./a.txt", f"{tmp_path}/*"]) == [f"{tmp_path}/b.txt", "a.txt"]
