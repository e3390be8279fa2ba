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


def environment(platform):
    return os.environ | {"JAX_PLATFORMS": platform}


@pytest.mark.long
@pytest.mark.parametrize("platform", ["cuda", "tpu", "nonsense"])
def test_every_command_that_computes_says_so(tmp_path, pretrained, platform):  # noqa: F811
    text, records = tmp_path / "a.txt", tmp_path / "records"
    text.write_text("the red cat\n")
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"a": "the cat", "b": "the dog"}\n' * 3)
    checkpoint, output = f"--model={pretrained}", f"--output={tmp_path}/out"
    commands = [
        ["pretrain", "--config=pretrain/tiny", f"--workdir={tmp_path}/run", f"--config.data.dir={records}"],
        ["finetune", "--config=finetune/classification", f"--workdir={tmp_path}/run"],
        ["sweep", "--experiment=sizes", f"--workdir={tmp_path}/run", f"--input={text}"],
        ["evaluate", f"--workdir={pretrained}", f"--input={text}"],
        ["predict", f"--workdir={pretrained}", f"--input={text}", output],
        ["fill-mask", checkpoint, "the [MASK] cat"],
        ["embed", checkpoint, f"--input={text}", f"{output}.npy"],
        ["search", checkpoint, f"--corpus={text}", f"--index={tmp_path}/index", "--query=cat"],
        ["serve", checkpoint],
        ["search", checkpoint, f"--input={pairs}", "--text_a=a", "--text_b=b", f"{output}.jsonl"],
        ["convert", f"--input={pretrained}", output, "--to=huggingface"],
        ["convert", f"--input={pretrained}", output, "--to=stablehlo"],
        ["inspect", str(pretrained)],
        ["plot", checkpoint, "--text=the cat", f"{output}.png"],
        ["bench", "--config=pretrain/tiny", "--steps=1"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)],
        env=environment(platform),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for command, (code, shown) in json.loads(done.stdout.splitlines()[-1]).items():
        assert code == 2 and "JAX_PLATFORMS" in shown and shown.count("\n") == 1, (command, shown)
