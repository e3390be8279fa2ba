"""Paths that users give."""

import pytest

from bert_jax.errors import UserError
from bert_jax.io import checks


@pytest.mark.parametrize(
    "name, expected",
    [
        ("train.cvs", "train.cvs: no such file; did you mean {folder}/train.csv?"),
        ("other.tsv", "other.tsv: no such file; expected a CSV file"),
        ("none/train.csv", "none/train.csv: no such file; expected a CSV file"),
    ],
)
def test_a_missing_file_gets_the_nearest_one_or_what_is_expected(tmp_path, name, expected):
    (tmp_path / "train.csv").touch()
    with pytest.raises(UserError) as error:
        checks.check_input(tmp_path / name, "CSV")
    assert str(error.value) == f"{tmp_path}/{expected.format(folder=tmp_path)}"
