"""JAX_PLATFORMS names a device that is missing: one line and exit code 2 from every command."""

import json
import os
import subprocess
import sys

import pytest
from support.pretrained import pretrained, vocabulary  # noqa: F401

# In one process, since each command fails before it computes anything.
COMMANDS = """
import contextlib, io, json, sys
from bert_jax import cli
found = {}
for argv in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        code = cli.main(argv)
    found[argv[0]] = code, shown.getvalue()
print(json.dumps(found))
"""


@pytest.mark.long
@pytest.mark.parametrize("platform", ["tpu", "nonsense"])
def test_every_command_that_computes_says_so(tmp_path, pretrained, platform):  # noqa: F811
    commands = [
        ["pretrain", "--config=pretrain/tiny", f"--workdir={tmp_path}/run", "--config.data.dir=records"],
        ["finetune", "--config=finetune/classification", f"--workdir={tmp_path}/run"],
        ["fill-mask", f"--model={pretrained}", "the [MASK] cat"],
        ["convert", f"--input={pretrained}", f"--output={tmp_path}/out", "--to=huggingface"],
        ["inspect", str(pretrained)],
        ["bench", "--config=pretrain/tiny", "--steps=1"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)],
        env=os.environ | {"JAX_PLATFORMS": platform},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for command, (code, shown) in json.loads(done.stdout.splitlines()[-1]).items():
        assert code == 2 and "JAX_PLATFORMS" in shown and shown.count("\n") == 1, (command, shown)
