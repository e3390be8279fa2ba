"""Files that lie elsewhere, and data sets that tensorflow-datasets prepared."""

import collections
import dataclasses
import gzip
import os

import fsspec
import pytest

from bert_jax.errors import UserError
from bert_jax.io import compression
from data_pipelines import build, readers

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


def digest(path):
    return readers.file_digest((path, "text", readers.Fields("text")))


def read(paths, target):
    return [d for r in readers.split_ranges(paths, target) for d in readers.read_documents(r, "text")]


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
    assert read(paths, target) == read(local, target) and len(read(paths, target)) == 9
    assert [*map(digest, paths)] == [*map(digest, local)]


def test_records_of_remote_files_are_those_of_local_ones(options, corpus, tmp_path):
    system = fsspec.filesystem("memory")
    for file in corpus.iterdir():
        system.pipe(f"/corpus/{file.name}", file.read_bytes())
    there = dataclasses.replace(options, input=("memory://corpus/*.txt",), output=str(tmp_path / "there"))
    assert build.build(there).manifest == build.build(options).manifest


@pytest.fixture(scope="module")
def prepared_folder(tmp_path_factory):
    tfds = pytest.importorskip("tensorflow_datasets")
    folder = tmp_path_factory.mktemp("tfds")

    class TinyCorpus(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.2.0")
        code_path = None  # it has no files beside it: this module is in no package

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

    TinyCorpus(data_dir=str(folder), file_format="array_record").download_and_prepare()
    return folder


def test_prepared_data_set(prepared_folder, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(prepared_folder))
    paths = readers.list_inputs("tfds:tiny_corpus")
    assert readers.short_names(paths) == ["tiny_corpus/1.2.0"]
    assert digest(paths[0])["bytes"] == readers.file_size(paths[0])
    fields = readers.Fields("text", "title")

    def read(target):
        ranges = readers.split_ranges(paths, target)
        return [d for r in ranges for d in readers.read_documents(r, "text", fields=fields)]

    whole = read(1 << 30)
    assert read(100) == whole and len(readers.split_ranges(paths, 100)) > 5
    assert sorted(d.key for d in whole) == sorted(f"title {n}" for n in range(30))
    assert all(d.passages == (f"First of {d.key[6:]}.", "Second é.") for d in whole)
    with pytest.raises(UserError, match=r"--text_field=body: .*label, latin, parts, text, title"):
        list(
            readers.read_documents(readers.split_ranges(paths, 100)[0], "text", fields=readers.Fields("body"))
        )


def test_a_data_set_whose_fields_are_no_text_or_no_ids(prepared_folder, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(prepared_folder))
    (whole,) = readers.split_ranges(readers.list_inputs("tfds:tiny_corpus"), 1 << 30)
    for field, found in (("label", r"int\w*"), ("parts", "list|ndarray")):
        message = rf"--text_field={field}: in tiny_corpus/1\.2\.0 it holds values of type ({found}); expected"
        with pytest.raises(UserError, match=message):
            list(readers.read_documents(whole, "text", fields=readers.Fields(field)))
    counts = collections.Counter()
    documents = list(readers.read_documents(whole, "text", counts, readers.Fields("latin", "url")))
    assert documents[0].passages == ("Second \ufffd or \ufffd.",) and counts["undecodable"] == 60
    assert "u" in {document.key for document in documents} and len({one.key for one in documents}) == 30


def test_urls_with_a_host_or_a_root_are_kept(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_bytes(TEXT)
    expected = [f"file://{tmp_path}/deep/a.txt"]
    for pattern in ("deep", "deep/", "deep/*", "**/a.txt", "deep/a.txt"):
        assert readers.list_inputs(f"file://{tmp_path}/{pattern}") == expected
    assert len(read(expected, 1 << 20)) == 3

    class Hosted(fsspec.get_filesystem_class("memory")):
        """Leaves the host out of its paths, as hdfs and sftp do."""

        protocol = "hosted"

        @classmethod
        def _strip_protocol(cls, path):
            return "/" + path.removeprefix("hosted://host").strip("/")

    fsspec.register_implementation("hosted", Hosted, clobber=True)
    fsspec.filesystem("hosted").pipe("/folder/a.txt", TEXT)
    for pattern in ("folder", "folder/*.txt", "folder/a.txt"):
        assert readers.list_inputs(f"hosted://host/{pattern}") == ["hosted://host/folder/a.txt"]


@pytest.mark.parametrize("pattern", ["*/*.txt", "**/*.txt", "**", "*"])
def test_a_folder_that_cannot_be_read(tmp_path, monkeypatch, pattern):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_bytes(TEXT)
    scandir = os.scandir

    def denied(path):
        if str(path).rstrip("/").endswith("/b"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(UserError, match=r"--input=.*Permission denied"):
        readers.list_inputs(f"{tmp_path}/{pattern}")


def test_results_beside_a_data_set_are_not_read(tmp_path):
    for name in ("cache-0123.arrow", "train/cache-0123.arrow", "train/data-00000-of-00001.arrow"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert readers.list_inputs(str(tmp_path)) == [f"{tmp_path}/train/data-00000-of-00001.arrow"]
    (tmp_path / "train/data-00000-of-00001.arrow").unlink()
    assert len(readers.list_inputs(str(tmp_path))) == 2


def test_links_to_folders_are_followed(tmp_path):
    elsewhere, corpus = tmp_path / "elsewhere", tmp_path / "corpus"
    for folder in (elsewhere / "deep", corpus / "plain"):
        folder.mkdir(parents=True)
        (folder / "a.txt").write_text("one")
    (corpus / "linked").symlink_to(elsewhere)
    (corpus / "again").symlink_to(corpus / "plain")  # does not change the name of a file
    (elsewhere / "loop").symlink_to(corpus)
    assert readers.list_inputs(str(corpus)) == [f"{corpus}/linked/deep/a.txt", f"{corpus}/plain/a.txt"]


def test_a_file_by_several_spellings_is_read_once(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("two")
    monkeypatch.chdir(tmp_path)
    assert readers.list_inputs(["a.txt", "./a.txt", f"{tmp_path}/*"]) == [f"{tmp_path}/b.txt", "a.txt"]


@pytest.mark.parametrize("folder", ["my [v1] data", "a*b", "what?"])
def test_a_folder_whose_name_is_a_pattern(tmp_path, folder):
    """It is a folder where it exists; the rest of the path is a pattern."""
    (tmp_path / folder / "in").mkdir(parents=True)
    expected = tmp_path / folder / "in" / "a.txt"
    expected.write_bytes(TEXT)
    for pattern in ("*/*.txt", "**/*.txt", "in/[a].txt", ""):
        given = f"{tmp_path}/{folder}/{pattern}"
        assert readers.list_inputs(given) == [str(expected)]
