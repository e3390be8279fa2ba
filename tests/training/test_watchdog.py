import threading

from bert_jax.training.watchdog import Watchdog


def test_a_run_without_progress_is_ended():
    ended = threading.Event()
    said = []
    with Watchdog(0.05, lambda message: (said.append(message), ended.set())):
        assert ended.wait(10)
    assert len(said) == 1 and "no step for" in said[0] and "--stall_timeout=0.05" in said[0]


def test_beats_and_pauses_keep_it_quiet():
    said = []
    with Watchdog(0.2, said.append) as watchdog:
        for _ in range(20):
            threading.Event().wait(0.02)
            watchdog.heartbeat()
        with watchdog.paused():
            threading.Event().wait(0.5)
    assert said == []


def test_none_is_watched_with_0():
    with Watchdog(0, lambda message: None) as watchdog:
        assert not watchdog._thread.is_alive()
