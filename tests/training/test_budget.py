"""What a run has spent of a budget of tokens or time, and the configuration of one."""

import signal
import types

import jax
import numpy as np
import pytest
from support.regression import Run, assert_same, at, send

from bert_jax.errors import Preempted, UserError
from bert_jax.settings import defaults, pretrain_config
from bert_jax.training import budget


def config(**changes):
    fields = defaults.pretrain("tiny")
    fields.optimizer.warmup_steps = 0
    fields.update_from_flattened_dict(changes)
    return pretrain_config.pretraining(fields)


def test_tokens_beyond_32_bits():
    """ModernBERT's 1.72 trillion tokens, in batches of 4,608 rows of 1,024 tokens."""
    whole = budget.from_config(config(**{"budget.tokens": 1_720_000_000_000}))
    step = jax.jit(whole.after)
    spent, start, rows = whole.initial(), 2**32 - 10_000_000, 4608 * 1024
    spent["tokens"][0] = start
    for number in range(1, 6):
        spent = step(spent, np.int32(rows))
        assert whole.count(spent) == start + number * rows
        assert whole.count(step(spent, np.int32(0))) == whole.count(spent)
    assert float(whole.share(spent)) == pytest.approx(whole.count(spent) / 1.72e12, rel=1e-6)
    assert float(whole.share({"tokens": np.array([0, 2**10], np.uint32)})) == 1


@pytest.mark.parametrize("field", ["warmup_steps", "cooldown_steps", "decay_steps"])
def test_a_schedule_of_a_budget_has_no_steps(field):
    fields = {"budget.tokens": 100, "optimizer.schedule": "wsd", f"optimizer.{field}": 7}
    with pytest.raises(UserError, match=f"optimizer.{field}=7: with budget.tokens"):
        config(**fields)


@pytest.fixture(scope="module")
def spent(tmp_path_factory):
    """A run of 16 tokens a step whose budget is spent at step 7, and its state."""
    run = Run(tmp_path_factory.mktemp("spent") / "run", steps=50, budget__tokens=100)
    return run, run.fit()


@pytest.mark.long
@pytest.mark.parametrize("stop", [6, 7])
def test_a_budget_ends_a_run_at_the_step_that_spends_it(spent, tmp_path, stop):
    whole, state = spent
    assert whole.steps_of("train")[-1] == 7 and whole.steps_of("eval")[-1] == 7
    assert whole.logged("the budget is spent, at step 7: 112 of 100 tokens")
    run = Run(tmp_path / "run", steps=50, budget__tokens=100, log_every=100)
    run.before_batch = at(stop, lambda: send(signal.SIGTERM))
    with pytest.raises(Preempted, match=f"stopped at step {stop}, saved"):
        run.fit()
    run.config.log_every = 5
    assert_same(run.fit(), state)
    assert_same(run.fit(), state)
    assert run.logged("nothing to train: the budget is spent, at step 7")


@pytest.mark.parametrize("every", [0, 1, 2])
def test_a_budget_of_time_ends_a_run_however_often_it_saves(tmp_path, monkeypatch, every):
    """A clock on which a second passes with each batch."""
    clock = iter(range(10**6))
    monkeypatch.setattr(budget, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    run = Run(tmp_path / "run", steps=40, budget__hours=10 / 3600, checkpoint__every=every, eval__every=0)
    assert 10 <= run.fit().step <= 13
    assert run.logged("the budget is spent, at step 1")
