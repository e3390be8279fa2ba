"""Runs that end with a budget of tokens or time: their rates, and how they resume."""

import numpy as np
import pytest
from support import processes

from bert_jax import checkpoint

pytestmark = pytest.mark.usefixtures("quick_compilation")

TOKENS = {
    "budget.tokens": 2500,
    "optimizer.warmup_steps": 0,
    "optimizer.warmup_fraction": 0.25,
    "optimizer.schedule": "warmup_then_decay",
    "optimizer.learning_rate": 1e-3,
    "checkpoint.every": 4,
    "eval.every": 0,
}


def lines(directory, kind="train"):
    return processes.metrics(directory, kind)


@pytest.mark.long
def test_a_budget_of_tokens_drives_the_rate_and_resumes_bit_for_bit(pretrain, tmp_path):
    code, output, _ = pretrain(tmp_path / "whole", steps=1000, **TOKENS)
    whole = lines(tmp_path / "whole")
    assert code == 0 and f"the budget is spent, at step {len(whole)}: " in output, output
    assert "at most 1,000 steps, 8,000 rows" in output
    shares = [line["budget"] for line in whole]
    assert shares == sorted(shares) and shares[-1] == 1 > shares[-2]
    # A step has the rate of what the steps before it have spent.
    expected = np.interp([0, *shares[:-1]], [0, 0.25, 1], [0, 1e-3, 0])
    np.testing.assert_allclose([line["learning_rate"] for line in whole], expected, rtol=1e-4, atol=1e-12)

    code, output, _ = pretrain(tmp_path / "parts", steps=6, **TOKENS)
    assert code == 0 and "warning: the run ends after its 6 steps with" in output
    code, output, _ = pretrain(tmp_path / "parts", more=["--allow_changes"], steps=1000, **TOKENS)
    assert code == 0 and "resumed from step 6" in output
    end = len(whole)
    described = [
        checkpoint.describe(tmp_path / name / "checkpoints" / str(end)) for name in ("whole", "parts")
    ]
    assert described[0] == described[1] and any("spent" in name for name in str(described[0]).split("'"))
    parts = lines(tmp_path / "parts")
    for name in ("step", "loss", "learning_rate", "budget"):
        assert [line[name] for line in parts] == [line[name] for line in whole]
    assert [line["step"] for line in lines(tmp_path / "parts", "eval")] == [6, end]
    code, output, _ = pretrain(tmp_path / "parts", more=["--allow_changes"], steps=1000, **TOKENS)
    assert code == 0 and f"nothing to train: the budget is spent, at step {end}" in output
