"""Records, losses, conversions and resumed work directories are those that earlier code wrote.

Losses and states are compared bit for bit on the kind of processor that recorded them. On another, where XLA
chooses other instructions and orders of sums, they are compared to the rounding of float32.
"""

import json

import jax
import pytest
from support import recorded
from support.gate import inputs, losses, workdirs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Records of each kind, and files of each task."""
    folder = tmp_path_factory.mktemp("gate")
    inputs.write_corpus(folder)
    inputs.write_records(folder)
    inputs.write_tables(folder)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The recorded work directories."""
    folder = tmp_path_factory.mktemp("runs")
    workdirs.copy_runs(folder)
    return folder


def test_records(folder):
    difference = recorded.differences("records", recorded.read("records"), inputs.record_digests(folder))
    assert not difference, difference


@pytest.mark.long
@pytest.mark.parametrize("name", losses.CURVES)
def test_losses(folder, name):
    expected = recorded.read("losses")
    expected["curves"] = {name: expected["curves"].get(name, [])}
    found = {"machine": recorded.machine(), "curves": {name: losses.curve(name, folder)}}
    difference = losses.check_curves(expected, found)
    assert not difference, difference


@pytest.mark.long
def test_conversions(runs):
    found = workdirs.conversions(runs, "pretraining")
    difference = recorded.differences("conversions", recorded.read("conversions"), found)
    assert not difference, difference


@pytest.mark.long
@pytest.mark.parametrize("name", workdirs.RUNS)
def test_a_run_of_earlier_code_goes_on_to_the_same_end(runs, name):
    difference = workdirs.check_ends({name: workdirs.end(name, runs)})
    assert not difference, difference


@pytest.mark.long
def test_a_model_of_earlier_code_is_evaluated_and_predicts_as_before(tmp_path):
    workdirs.copy_runs(tmp_path)  # A copy that no other test continues.
    difference = workdirs.check_predictions(recorded.read("predictions"), workdirs.predictions(tmp_path))
    assert not difference, difference


def test_a_difference_is_seen_and_says_what_to_do():
    expected = recorded.read("losses")
    changed = json.loads(json.dumps(expected))
    curve = next(iter(expected["curves"]))
    changed["curves"][curve][0][2]["loss"] *= 1.001
    for machine in (recorded.machine(), "another"):
        changed["machine"] = machine
        difference = losses.check_curves(expected, changed)
        assert f"{curve}: train step 1: loss was" in difference and "make_gate.py" in difference
    assert not losses.check_curves(expected, expected)
    program = next(iter(recorded.read("programs")))
    assert program in recorded.differences("programs", {program: "a 1"}, {program: "b 1"})


def test_rounding_is_allowed_on_another_machine_alone():
    near = [1.0, 1.0 + 1e-6]
    assert recorded.same_numbers(near, near[::-1], exact=False)
    assert not recorded.same_numbers(near, near[::-1], exact=True)
    assert not recorded.same_numbers([1.0], [1.01], exact=False)
    assert jax.device_count() == 8, "the recorded runs have eight devices"
