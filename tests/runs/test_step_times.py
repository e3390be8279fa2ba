"""The numbers of steps of an experiment's arms within their budgets."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.errors import UserError
from bert_jax.runs.experiment import step_times
from bert_jax.runs.experiment.step_times import TIMED_STEPS, Kind
from bert_jax.settings import defaults
from bert_jax.settings.experiments import Budget, Run


def small_config(steps=100, **fields):
    config = defaults.pretrain("tiny")
    config.steps = steps
    for name, value in fields.items():
        config[name] = value
    return config


def test_the_kinds_of_steps_are_counted():
    ramps = {"batch_ramp": "0=4, 30=8", "batch_size": 8, "length_ramp": "0=64, 50=128"}
    assert step_times.count_kinds(small_config(**ramps)) == Counter(
        {Kind(4, 64, False): 30, Kind(8, 64, False): 20, Kind(8, 128, False): 50}
    )
    assert step_times.count_kinds(small_config(10, batch_size=16)) == Counter({Kind(16, 0, False): 10})


@pytest.mark.long
@settings(deadline=None, max_examples=30)
@given(st.floats(0.5, 50), st.floats(0.01, 2), st.floats(0.01, 2))
def test_no_further_step_fits_into_the_budget(seconds, early, late):
    def make(steps):
        ramp = f"0=4, {max(1, steps // 2)}=8"
        return small_config(steps, batch_size=8, batch_ramp=ramp)

    def cost(steps):
        kinds = step_times.count_kinds(make(steps))
        return sum(count * (early if kind.rows == 4 else late) for kind, count in kinds.items())

    steps = step_times.steps_within(
        Budget(seconds=seconds), make, lambda kind: early if kind.rows == 4 else late
    )
    assert steps == 1 or cost(steps) <= seconds
    # One more step may turn a late step into an early one, so the cost grows by one of the two.
    assert cost(steps + 1) > seconds - max(early, late)


def with_shares(form):
    """A function (steps) that returns a config with shares of the steps, which few steps cannot have."""

    def make(steps):
        run = Run(steps, 0, "", lambda arm: "")
        if form == "causal":
            return small_config(steps, causal_steps=run.share(0.8))
        ramp = f"0=8, {run.share(0.2)}=16, {run.share(0.4)}=32"
        return small_config(steps, batch_size=32, batch_ramp=ramp)

    return make


def tokens(kind):
    return kind.rows * 128.0


@pytest.mark.parametrize("form", ["causal", "ramp"])
@pytest.mark.parametrize("wanted", [5, 77, TIMED_STEPS, 12_345])
def test_shares_of_the_steps_fit_into_the_budget(form, wanted):
    make = with_shares(form)
    cost = sum(count * tokens(kind) for kind, count in step_times.count_kinds(make(wanted)).items())
    assert step_times.steps_within(Budget(tokens=int(cost)), make, tokens) == wanted
    assert step_times.steps_within(Budget(tokens=int(cost) + 1), make, tokens) == wanted
    assert step_times.steps_within(Budget(tokens=int(cost) - 1), make, tokens) == wanted - 1


@pytest.mark.parametrize(
    "form, expected",
    [
        ("causal", "3 steps of the arm, and fewer are refused: causal_steps=2 leaves none of steps=2"),
        ("ramp", "4 steps of the arm, and fewer are refused: batch_ramp='0=8, 1=16, 1=32': expected"),
    ],
)
def test_a_budget_of_too_few_steps_is_refused(form, expected):
    with pytest.raises(UserError) as error:
        step_times.steps_within(Budget(tokens=8), with_shares(form), tokens)
    message = str(error.value)
    assert message.startswith(f"a budget of 8 tokens is less than {expected}")
    assert message.endswith("; give more --tokens")


def test_another_mistake_of_a_config_is_not_a_matter_of_the_budget():
    with pytest.raises(UserError, match=r"^batch_size=0 must be at least 1"):
        step_times.steps_within(Budget(tokens=8), lambda steps: small_config(steps, batch_size=0), tokens)
