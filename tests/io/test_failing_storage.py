"""A temporary failure of storage is not a mistake of the user: launchers start the same command again."""

import errno

import pytest

from bert_jax.data import cache
from bert_jax.errors import StorageError, UserError
from bert_jax.io import columnar, remote
from bert_jax.tasks import table
from bert_jax.tasks.question_answering import question_files

URL = "gs://bucket/file"


class Failing:
    """A file system all of whose operations raise an error."""

    def __init__(self, error):
        self._error = error

    def __getattr__(self, name):
        def fail(*args, **options):
            raise self._error

        return fail


READERS = {
    "records": lambda: cache.local_copy(URL, lambda line: None),
    "rows": lambda: list(table.text_lines(f"{URL}.tsv")),
    "questions": lambda: list(question_files.squad_items(f"{URL}.json")),
    "table": lambda: len(columnar.Table(f"{URL}.parquet")),
}


@pytest.mark.parametrize("what", READERS)
@pytest.mark.parametrize(
    "error, refusal",
    [
        (ConnectionResetError("the bucket is gone"), StorageError),
        (OSError(errno.EIO, "the bucket is gone"), StorageError),
        (PermissionError(errno.EACCES, "Permission denied"), UserError),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), UserError),
    ],
    ids=["connection", "disk", "permission", "missing"],
)
def test_only_a_wrong_path_is_a_mistake(monkeypatch, what, error, refusal):
    monkeypatch.setattr(remote, "file_system", lambda path: (Failing(error), path))
    with pytest.raises((StorageError, UserError), match=rf"{URL}.*") as caught:
        READERS[what]()
    assert caught.type is refusal and "\n" not in str(caught.value)
    if refusal is StorageError:
        assert "the bucket is gone" in str(caught.value)
