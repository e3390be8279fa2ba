"""The train steps of all configs in bfloat16 on a CPU: XLA has the products in a form that it can compute.

If it changes a product after it has chosen how to compute it, the program compiles and fails when it runs.
"""

import re

import pytest
from support import lowering

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return lowering.write_files(tmp_path_factory.mktemp("files"))


def products(lowered):
    """Returns (number of products of bfloat16, those that no library computes) of a compiled program."""
    text = lowered.compile().as_text()
    libraries = set(re.findall(r"kind=kCustom, calls=%([\w.-]+)", text))
    found, strange = 0, []
    for name, body in re.findall(r"\n(?:ENTRY )?%?([\w.-]+) \([^\n]*\{\n(.*?)\n\}", text, re.DOTALL):
        dtypes = dict(re.findall(r"%([\w.-]+) = (\w+)\[", body))
        for line in body.splitlines():
            operand = re.search(r" dot\((?:\S+ )?%([\w.-]+),", line)
            if operand and dtypes[operand[1]] == "bf16":
                found += 1
                strange += [] if name in libraries else [line.strip()]
    return found, strange


# Each has kinds of layers or of objectives that those before it have not.
QUICK = ("base", "electra", "modernbert", "crammed_bert")


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in lowering.configs("pretrain")
    ],
)
def test_pretraining(name):
    lowered = lowering.lower_pretraining_step(lowering.load(f"pretrain/{name}"), dtype="bfloat16")
    found, strange = products(lowered)
    assert not strange
    # Four products of attention, and two of feed-forward blocks, forward and backward.
    assert found >= 6 * 3


@pytest.mark.long
def test_layers_keep_no_bfloat16():
    """XLA:CPU would cast what the loop over layers keeps for the backward pass to float32 and back."""
    text = lowering.lower_pretraining_step(lowering.load("pretrain/small"), dtype="bfloat16").as_text()
    kept = re.findall(r"stablehlo.dynamic_update_slice .*-> tensor<[\dx]*x(\w+)>", text)
    assert "ui16" in kept and "bf16" not in kept


@pytest.mark.slow
@pytest.mark.parametrize("name", [*lowering.configs("finetune"), *lowering.MORE])
def test_finetuning(name, files):
    config, data = lowering.finetuning_config(name, files)
    step, predict = lowering.lower_finetuning(config, files, data, dtype="bfloat16")
    found, strange = products(step)
    assert not strange and found
    assert not products(predict)[1]
