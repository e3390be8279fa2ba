"""What processes exchange, as threads of one; test_processes.py has real processes."""

import functools

import pytest
from support import together

from bert_jax.errors import ClusterError, StorageError, UserError
from bert_jax.parallel import collective


def test_contents_of_any_length_are_gathered_in_order(monkeypatch):
    contents = [b"", b"one", bytes(range(256)) * 3, b"\0\0"]
    calls = [functools.partial(collective.gather, content) for content in contents]
    assert together.run(monkeypatch, *calls) == [contents] * 4


@pytest.mark.parametrize("kind", [UserError, StorageError])
def test_process_0_chooses_for_all(monkeypatch, kind):
    def refuse():
        raise kind("no such step")

    def in_all(*choices):
        calls = [functools.partial(collective.call_in_primary, choose) for choose in choices]
        return together.run(monkeypatch, *calls)

    value = {"steps": [1, 2**40], "name": "ü"}
    assert in_all(lambda: value, refuse, refuse) == [value] * 3
    errors = in_all(refuse, lambda: [1, 2])
    assert [(type(error), str(error)) for error in errors] == [(kind, "no such step")] * 2


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("error", [UserError("no such file"), StorageError("full"), ValueError("a bug")])
@pytest.mark.parametrize("exchanges", [0, 1])
def test_what_fails_in_one_process_ends_all(monkeypatch, failing, error, exchanges):
    """It fails before any exchange, or after one, while the others come to their next one, or to the end."""

    def call(process):
        with collective.failing_together():
            for number in range(3):
                if process == failing and number == exchanges:
                    raise type(error)(*error.args)
                collective.call_in_primary(lambda: "chosen")
        return "trained"

    for process, found in enumerate(
        together.run(monkeypatch, *(functools.partial(call, process) for process in range(3)))
    ):
        if process == failing:
            assert type(found) is type(error) and str(found) == str(error)
        else:
            expected = ClusterError if isinstance(error, ValueError) else type(error)
            assert type(found) is expected and str(error) in str(found) and "\n" not in str(found)
