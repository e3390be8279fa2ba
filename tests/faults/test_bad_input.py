"""Ten thousand wrong inputs: each is read or refused in one line, within bounds of time and memory.

An input that fails is tried again by its number: `python tests/support/fuzzing.py NUMBER NUMBER+1`.
"""

import pytest
from support.fuzzing import Inputs, try_all
from support.limits import Hang, limits

from bert_jax.errors import UserError

SAMPLE = 390  # thirty of each kind


@pytest.mark.long
def test_a_sample_of_inputs(tmp_path):
    outcomes, wrong = try_all(tmp_path / "fuzz", range(SAMPLE))
    assert not wrong
    kinds = {kind for kind, _ in outcomes}
    assert len(kinds) == 13 and all(outcomes[kind, "refused"] for kind in kinds)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(8))
def test_ten_thousand_inputs(tmp_path, part):
    outcomes, wrong = try_all(tmp_path / "fuzz", range(SAMPLE + 1300 * part, SAMPLE + 1300 * (part + 1)))
    assert not wrong
    assert sum(outcomes.values()) == 1300


def test_the_same_number_is_the_same_input(tmp_path):
    one, other = Inputs(tmp_path / "one"), Inputs(tmp_path / "other")
    for number in (0, 5, 11, 37):
        assert one.try_input(number) == other.try_input(number)
        contents = [
            {path.name: path.read_bytes() for path in sorted(inputs.case.rglob("*")) if path.is_file()}
            for inputs in (one, other)
        ]
        assert contents[0] == contents[1]


@pytest.mark.parametrize(
    "error, outcome",
    [
        (ValueError("broken"), "ValueError: broken"),
        (UserError("two\nlines"), "a message of several lines"),
        (UserError("one line"), "refused"),
        (MemoryError(), "MemoryError"),
        (None, "read"),
    ],
)
def test_what_counts_as_wrong(tmp_path, monkeypatch, error, outcome):
    def read(self, rng):
        if error is not None:
            raise error

    monkeypatch.setattr(Inputs, "corpus", read)
    assert Inputs(tmp_path / "fuzz").try_input(0)[1].startswith(outcome)


def test_time_and_memory_are_bounded(monkeypatch):
    monkeypatch.setattr("support.limits.SECONDS", 0.2)
    with pytest.raises(Hang), limits():
        while True:
            pass
    monkeypatch.setattr("support.limits.BYTES", 1 << 28)
    with pytest.raises(MemoryError), limits():
        bytearray(1 << 30)
