"""Fills of masks at each evaluation of pre-training, on a mesh of 8 devices that splits every parameter."""

import pytest
from support import processes

from bert_jax import cli
from bert_jax.inference.fill_mask import MaskFiller
from bert_jax.training.metrics import read_tables

pytestmark = pytest.mark.usefixtures("quick_compilation")

TEXTS = ("word1 word2 [MASK] word4", "[MASK] word3 [MASK]")
GIVEN = "; ".join([*TEXTS, "The cat saw [MASK] word5"])
FIELDS = {
    "steps": 6,
    "eval.every": 2,
    "checkpoint.every": 2,
    "mesh.fsdp": 2,
    "mesh.tensor": 2,
    "eval.sentences": GIVEN,
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory, records):
    """A finished run."""
    workdir = tmp_path_factory.mktemp("filled") / "run"
    with processes.quick_compilation():
        assert cli.main(processes.command(workdir, records, **FIELDS)) == 0
    return workdir


@pytest.mark.long
@pytest.mark.parametrize("step", [4, 6])
def test_they_are_those_of_the_checkpoint(filled, step):
    first, second = MaskFiller(f"{filled}/checkpoints/{step}", dtype="float32")(TEXTS, top=5)
    expected = {TEXTS[0]: first[0], f"{TEXTS[1]} (mask 1)": second[0], f"{TEXTS[1]} (mask 2)": second[1]}
    (table,) = [table for table in read_tables(filled, "eval/fills") if table["step"] == step]
    assert table["header"] == ["sentence", "1", "2", "3", "4", "5"]
    assert [row[0] for row in table["rows"]] == list(expected)
    for sentence, *cells in table["rows"]:
        tokens, shares = zip(*(cell.split(" ") for cell in cells), strict=True)
        assert list(tokens) == [candidate.token for candidate in expected[sentence]]
        probabilities = [100 * candidate.probability for candidate in expected[sentence]]
        assert [float(share.removesuffix("%")) for share in shares] == pytest.approx(probabilities, abs=0.06)
