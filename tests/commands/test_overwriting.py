"""Which commands replace an output that exists: pictures always, what takes long to make when asked."""

import importlib
import re

import pytest
from absl import flags as absl_flags

from bert_jax import cli
from bert_jax.errors import UserError
from bert_jax.io import checks
from bert_jax.settings.flags import Define


def flags_of(command):
    flags = absl_flags.FlagValues()
    importlib.import_module(f"bert_jax.commands.{command.replace('-', '_')}").define_flags(Define(flags))
    return flags


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_that_writes_a_file_of_its_own_has_the_flag_unless_it_is_a_picture(command):
    flags = flags_of(command)
    writes = [name for name in ("output", "output_dir", "index") if name in flags]
    of_pictures = writes and re.search("Picture", flags[writes[0]].help)
    assert ("overwrite" in flags) == bool(writes and not of_pictures)
    if "overwrite" in flags:
        assert flags["overwrite"].default is False


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
