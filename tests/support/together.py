"""The processes of a run as threads of one process."""

import threading

import jax
import numpy as np
from jax.experimental import multihost_utils


def run(monkeypatch, *calls):
    """Calls each function as one process of a run; returns their results, or the errors that they raised."""
    place, given, results = threading.local(), [None] * len(calls), [None] * len(calls)
    barrier = threading.Barrier(len(calls), timeout=20)

    def gather(array):
        given[place.process] = np.asarray(array)
        barrier.wait()
        gathered = np.stack(given)
        barrier.wait()
        return gathered

    def call(process):
        place.process = process
        try:
            results[process] = calls[process]()
        except Exception as error:
            results[process] = error

    monkeypatch.setattr(jax, "process_count", lambda: len(calls))
    monkeypatch.setattr(jax, "process_index", lambda: place.process)
    monkeypatch.setattr(multihost_utils, "process_allgather", gather)
    threads = [threading.Thread(target=call, args=[process]) for process in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
