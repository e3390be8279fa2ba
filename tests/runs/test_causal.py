"""Pre-training left to right, and before masked LM; and what is done with its models."""

import json
import math
import re

import pytest
from support import fine_tuned, processes

from bert_jax import checkpoint, cli

pytestmark = pytest.mark.usefixtures("quick_compilation")

CAUSAL = {"objective": "causal_lm", "model.causal": True, "optimizer.warmup_steps": 0}


@pytest.fixture(scope="module")
def causal(tmp_path_factory, records):
    """The work directory of a run of `objective=causal_lm`."""
    directory = tmp_path_factory.mktemp("causal") / "run"
    with processes.quick_compilation():
        assert cli.main(processes.command(directory, records, steps=4, **CAUSAL)) == 0
    return directory


@pytest.mark.long
def test_a_run_left_to_right(causal):
    config = json.loads((causal / "config.json").read_text())["config"]
    assert config["objective"] == "causal_lm" and config["model"]["causal"] is True
    assert {name.split("/")[0] for name in checkpoint.parameter_names(causal)} == {"encoder", "mlm"}
    first, *_, last = processes.metrics(causal)
    assert first["loss"] == pytest.approx(first["clm_loss"], rel=1e-6)  # two sums
    assert first["loss"] == pytest.approx(math.log(100), rel=0.05)
    assert last["kind"] == "eval" and {"clm_loss", "clm_accuracy"} <= last.keys()
    assert not any("mlm" in name or "nsp" in name for line in processes.metrics(causal) for name in line)


# The run of two phases: the border is within an interval of the log, and each phase has several checkpoints.
STEPS, BORDER = 8, 5
PHASES = {
    "causal_steps": BORDER, "steps": STEPS, "log_every": 2, "checkpoint.every": 1, "checkpoint.keep": STEPS,
    "eval.every": 4, "optimizer.warmup_steps": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def phases(tmp_path_factory, records):
    """The work directory of a run from left to right and then of masked LM, on 8 devices, and its output."""
    directory = tmp_path_factory.mktemp("phases") / "run"
    with processes.quick_compilation():
        assert cli.main(processes.command(directory, records, **PHASES)) == 0
    return directory


@pytest.mark.long
@pytest.mark.parametrize("last", [2, BORDER, BORDER + 1])
def test_a_run_resumes_bit_for_bit_in_and_between_its_phases(phases, records, tmp_path, capsys, last):
    output = fine_tuned.assert_resumes_to_the_same_end(
        lambda copy: cli.main(processes.command(copy, records, **PHASES)),
        phases, tmp_path / "run", capsys, last,
    )  # fmt: skip
    assert "the first 5 steps train causal LM, the others masked LM" in output
    assert len(re.findall("compiled the train step", output)) == (2 if last < BORDER else 1)
