"""Compressed files: how they are recognized, and the messages about damaged ones."""

import errno

import pytest
from support import mutations

from bert_jax.errors import UserError
from bert_jax.io import compression

CONTENT = b"some text\n" * 1000


@pytest.mark.parametrize(
    "path, suffix, rest",
    [
        ("a.txt", "", "a.txt"),
        ("a.txt.GZ", ".gz", "a.txt"),
        ("b.zst", ".zst", "b"),
        ("c.tar.bz2", ".bz2", "c.tar"),
        ("d.xz/e", "", "d.xz/e"),
        ("gz", "", "gz"),
    ],
)
def test_the_suffix_says_whether_a_file_is_compressed(path, suffix, rest):
    assert (compression.suffix(path), compression.strip_suffix(path)) == (suffix, rest)


@pytest.mark.parametrize("suffix", mutations.COMPRESS)
def test_files_are_decompressed_by_their_suffix(tmp_path, suffix):
    path = tmp_path / f"x.txt{suffix}"
    path.write_bytes(mutations.COMPRESS[suffix](CONTENT))
    with compression.opened(path) as file:
        assert file.read() == CONTENT
    if not suffix:
        return
    for damaged in (path.read_bytes()[:-20], CONTENT):
        path.write_bytes(damaged)
        message = rf"x\.txt{suffix} is truncated or not a {suffix} file \(.*\); compress or copy it again"
        with pytest.raises(UserError, match=message), compression.opened(path) as file:
            file.read()


def test_an_error_of_the_system_is_not_one_of_the_content(tmp_path):
    (tmp_path / "x.gz").write_bytes(mutations.COMPRESS[".gz"](CONTENT))
    with pytest.raises(OSError, match="No space left") as caught, compression.opened(tmp_path / "x.gz"):
        raise OSError(errno.ENOSPC, "No space left")
    assert caught.value.errno == errno.ENOSPC
