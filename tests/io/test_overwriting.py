"""Which commands replace an output that exists: pictures always, what takes long to make when asked."""

import pytest

from bert_jax.errors import UserError
from bert_jax.io import checks


def test_what_is_there_is_replaced_only_when_asked(tmp_path):
    checks.check_free(tmp_path / "new", overwrite=False)
    checks.check_free(tmp_path, overwrite=False)  # an empty directory
    (tmp_path / "file.npy").write_text("")
    for path in (tmp_path, tmp_path / "file.npy"):
        with pytest.raises(UserError, match=f"--out={path} exists already; --overwrite replaces it"):
            checks.check_free(path, overwrite=False, flag="--out")
        checks.check_free(path, overwrite=True)
    with pytest.raises(UserError, match="exists already"):
        checks.check_output_file(tmp_path / "file.npy", (".npy",), overwrite=False)
    checks.check_output_file(tmp_path / "file.npy", (".npy",))
