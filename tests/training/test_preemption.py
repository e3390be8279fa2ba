"""Requests to stop in runs of several processes."""

import jax
from jax.experimental import multihost_utils

from bert_jax.training.preemption import PreemptionGuard


def test_a_sigterm_between_two_runs_of_several_processes_stops_the_second(monkeypatch):
    """The stand-in answers as JAX does: yes to the number after all that it has seen before the signal."""
    seen, is_received = [], False

    def reached(number):
        seen.append(number)
        return is_received and number == after + 1

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", reached)
    with PreemptionGuard() as first:
        assert [first.requested() for _ in range(3)] == [False] * 3
    is_received, after = True, max(seen)
    with PreemptionGuard() as second:
        assert second.requested()
    assert seen == list(range(seen[0], seen[0] + 4))
