"""Files that lie elsewhere, and data sets that tensorflow-datasets prepared."""

import collections
import dataclasses
import errno
import glob
import gzip
import os

import fsspec
import pyarrow
import pytest

from bert_jax.errors import UserError
from bert_jax.io import atomic, compression, files
from data_pipelines import build, readers
from data_pipelines.readers import listing

TEXT = b"One sentence.\nAnother one.\n\nA second document.\n\nThird.\n"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Returns a folder with hidden files and links, which is the current one."""
    for name in ("a.txt", "b/c.txt", "b/d/e.txt", "b/d/[e].txt", "b/.hidden/f.txt", "g/h.json", ".i.txt"):
        path = tmp_path / "corpus" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("Some text.")
    (tmp_path / "corpus/g/b").symlink_to("../b")
    (tmp_path / "corpus/broken.txt").symlink_to("none")
    (tmp_path / "corpus/g/itself").symlink_to("itself")
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
    assert list(map(readers.file_digest, paths)) == list(map(readers.file_digest, local))


def test_records_of_remote_files_are_those_of_local_ones(options, corpus, tmp_path):
    system = fsspec.filesystem("memory")
    for file in corpus.iterdir():
        system.pipe(f"/corpus/{file.name}", file.read_bytes())
    there = dataclasses.replace(options, input=("memory://corpus/*.txt",), output=str(tmp_path / "there"))
    assert build.build(there).manifest == build.build(options).manifest


def test_ranges_of_a_remote_arrow_file_share_a_copy_until_it_changes(tmp_path, monkeypatch):
    url = f"memory://{tmp_path.name}/data.arrow"
    copied, download = [], files.download
    monkeypatch.setattr(files, "download", lambda path, to: copied.append(path) or download(path, to))
    for word in ("First", "Other"):  # of the same size
        texts = [f"{word} {number}." for number in range(9)]
        table = pyarrow.table({"text": texts})
        with atomic.replace_file(url) as file, pyarrow.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        size = files.size(url)
        ranges = readers.split_ranges([url], size // 3)
        fields = readers.Fields("text")
        found = [one for each in ranges for one in readers.read_documents(each, "text", fields=fields)]
        assert len(ranges) > 2 and [one.passages for one in found] == [(text,) for text in texts]
    assert copied == [url, url]


@pytest.mark.parametrize(
    "pattern, message", [("memory://none/*", "no input file matches"), ("oss://bucket/*", "ossfs")]
)
def test_remote_mistakes(pattern, message):
    with pytest.raises(UserError, match=message):
        readers.list_inputs(pattern)


def test_several_empty_files_are_counted(tmp_path):
    for name in "ab":
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=r"^all 2 input files are empty, .*a first; expected text$"):
        readers.list_inputs(str(tmp_path))


@pytest.mark.parametrize("pattern", ["none", "none/**", "none/**/*.txt", "[a"])
def test_patterns_of_nothing(tmp_path, pattern):
    with pytest.raises(UserError, match=r"no input file matches .*; expected text files"):
        readers.list_inputs(f"{tmp_path}/{pattern}")


def test_a_directory_without_files(tmp_path):
    with pytest.raises(UserError, match=f"^--input={tmp_path}: the directory has no files; expected text"):
        readers.list_inputs(str(tmp_path))


def test_a_folder_that_cannot_be_read_is_refused(tmp_path, unreadable):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text("Some text.")
    unreadable(tmp_path / "b")
    with pytest.raises(UserError, match=f"^{tmp_path}/b: the folder cannot be read .Permission denied."):
        readers.list_inputs(str(tmp_path))


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "**",
            "**/",
            "**/*.txt",
            "*",
            "*/",
            "*/a.txt",
            "corpus",
            "corpus/*",
            "corpus/**",
            "corpus//**/*.txt",
        ),
        *("corpus/**/d/**/*.txt", "corpus/**/**/e.txt", "corpus/*/*/", "corpus/*/d/e.txt", "corpus/*.txt/*"),
        *("corpus/.*", "corpus/**/.*/*", "corpus/b/d/[[]e].txt", "corpus/b/[d]/*", "corpus/g/./*", "../*/*"),
        *("corpus/a.txt/", "corpus/g/b/*", "none/**", "none", "[a", ""),
    ],
)
def test_patterns_find_what_glob_finds(tree, pattern):
    for given in (pattern, f"{tree}/{pattern}"):
        expected = sorted(
            path.rstrip("/") for path in glob.glob(given, recursive=True) if os.path.lexists(path)
        )
        assert sorted(path.rstrip("/") for path in listing._found(given)) == expected


def test_a_pattern_follows_a_link_that_leads_back(tree):
    (tree / "corpus/g/back").symlink_to(".")
    assert list(map(os.path.realpath, readers.list_inputs("corpus/g/**/h.json"))) == [
        f"{tree}/corpus/g/h.json"
    ]


@pytest.mark.parametrize(
    "pattern", ["corpus/**/*.txt", "corpus/**", "corpus/*/d/*.txt", "*/b/d/*", "corpus/?/**/e.txt"]
)
def test_a_pattern_refuses_folders_that_cannot_be_read(tree, unreadable, pattern):
    unreadable("corpus/b/d")
    with pytest.raises(
        UserError, match=r"^corpus/b/d: the folder cannot be read .Permission denied.; .* allow"
    ):
        readers.list_inputs(pattern)


def test_a_pattern_may_leave_out_folders_that_cannot_be_read(tree, unreadable):
    unreadable("corpus/b")
    assert readers.list_inputs("corpus/[!b]*/*.json,corpus/a*") == ["corpus/a.txt", "corpus/g/h.json"]


def test_a_folder_in_which_nothing_is_found_by_name_is_refused(tree, monkeypatch):
    def lstat(path, lstat=os.lstat):
        if os.fspath(path) == "corpus/b/c.txt":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return lstat(path)

    monkeypatch.setattr(os, "lstat", lstat)
    with pytest.raises(UserError, match=r"^corpus/b: the folder cannot be read .Permission denied."):
        readers.list_inputs("corpus/*/c.txt")


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"pipe is a pipe, and .* write it to a file first"):
        readers.list_inputs(str(tmp_path))


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


def test_prepared_data_set(prepared_folder):
    paths = readers.list_inputs("tfds:tiny_corpus", str(prepared_folder))
    assert readers.short_names(paths) == ["tiny_corpus/1.2.0"]
    assert readers.file_digest(paths[0])["bytes"] == readers.file_size(paths[0])
    fields = readers.Fields("text", "title")

    def read(target):
        ranges = readers.split_ranges(paths, target)
        return [d for r in ranges for d in readers.read_documents(r, "text", fields=fields)]

    whole = read(1 << 30)
    assert read(100) == whole and len(readers.split_ranges(paths, 100)) > 5
    assert sorted(d.key for d in whole) == sorted(f"title {n}" for n in range(30))
    assert all(d.passages == (f"First of {d.key[6:]}.", "Second é.") for d in whole)
    with pytest.raises(UserError, match=r"--text_field=body: .* it has label, latin, parts, text, title"):
        list(
            readers.read_documents(readers.split_ranges(paths, 100)[0], "text", fields=readers.Fields("body"))
        )


def test_a_data_set_whose_fields_are_no_text_or_no_ids(prepared_folder):
    (whole,) = readers.split_ranges(readers.list_inputs("tfds:tiny_corpus", str(prepared_folder)), 1 << 30)
    for field, found in (("label", r"int\w*"), ("parts", "list|ndarray")):
        message = rf"--text_field={field}: in tiny_corpus/1\.2\.0 it holds values of type ({found}), expected"
        with pytest.raises(UserError, match=message):
            list(readers.read_documents(whole, "text", fields=readers.Fields(field)))
    counts = collections.Counter()
    documents = list(readers.read_documents(whole, "text", counts, readers.Fields("latin", "url")))
    assert documents[0].passages == ("Second \ufffd or \ufffd.",) and counts["undecodable"] == 60
    assert "u" in {document.key for document in documents} and len({one.key for one in documents}) == 30


@pytest.mark.parametrize("name", ["none", "", "../x", "tiny_corpus/9.9.9"])
def test_a_data_set_that_is_not_prepared(tmp_path, name):
    with pytest.raises(UserError, match="is not prepared in"):
        readers.list_inputs(f"tfds:{name}", str(tmp_path))


@pytest.mark.parametrize(
    "pattern", "* *.txt ** **/* **/b a/**/c.txt a/* a/? [ab] a a/b/c.txt .* .d/* a/.*".split()
)
def test_a_pattern_matches_what_glob_finds(tmp_path, pattern):
    for name in ("a/b/c.txt", "a/.e/f", ".d/g", "b", "x.txt", "a/[b]"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = {path.rstrip("/") for path in glob.glob(f"{tmp_path}/{pattern}", recursive=True)}
    there = [tmp_path, *tmp_path.rglob("*")]
    assert {str(path) for path in there if listing.matches(str(path), f"{tmp_path}/{pattern}")} == found


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


def test_what_describes_a_data_set_is_not_read_there_either():
    system = fsspec.filesystem("memory")
    system.store.clear()
    for name in ("README.md", "dataset_info.json", "data/train.parquet"):
        system.pipe(f"/set/{name}", b"x")
    for pattern in ("memory://set", "memory://"):
        assert readers.list_inputs(pattern) == ["memory://set/data/train.parquet"]


def test_results_beside_a_data_set_are_not_read(tmp_path):
    for name in ("cache-0123.arrow", "train/cache-0123.arrow", "train/data-00000-of-00001.arrow"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert readers.list_inputs(str(tmp_path)) == [f"{tmp_path}/train/data-00000-of-00001.arrow"]
    (tmp_path / "train/data-00000-of-00001.arrow").unlink()
    assert len(readers.list_inputs(str(tmp_path))) == 2


def test_what_lies_beside_a_data_set_is_named(tmp_path, capsys):
    for name in ("README.md", "dataset_info.json", "_SUCCESS", "a.parquet"):
        (tmp_path / name).write_bytes(b"x")
    assert readers.list_inputs(str(tmp_path)) == [f"{tmp_path}/a.parquet"]
    assert not capsys.readouterr().err
    for name in ("b.csv", "c.csv"):
        (tmp_path / name).write_bytes(b"x")
    for _ in range(2):  # the second time as the languages of a corpus are divided
        assert readers.list_inputs(str(tmp_path)) == [f"{tmp_path}/a.parquet"]
    assert capsys.readouterr().err == (
        f"warning: of {tmp_path}, only the Parquet and Arrow files are read, without b.csv, c.csv; to read "
        "others, give a pattern that finds them, in an --input of its own\n"
    )


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
        assert readers.pattern_for(str(expected), given)
