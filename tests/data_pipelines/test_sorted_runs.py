"""Runs of documents on disk: what is written comes back by ranges of keys, in the order of the keys."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.errors import UserError
from data_pipelines import sorted_runs

SENTENCES = st.lists(st.lists(st.integers(0, 65_535), min_size=1, max_size=9), min_size=1, max_size=5)
KEYS = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**63, 2**64 - 1]))
RUNS = st.lists(st.lists(st.tuples(KEYS, SENTENCES), max_size=8), max_size=4)


@given(runs=RUNS, cuts=st.lists(KEYS, max_size=3), dtype=st.sampled_from(["<u2", "<u4"]))
@settings(deadline=None, max_examples=40)
def test_ranges_of_keys_hold_all_documents_in_order(tmp_path_factory, runs, cuts, dtype):
    folder, dtype = tmp_path_factory.mktemp("runs"), np.dtype(dtype)
    paths = []
    for number, run in enumerate(runs):
        writer = sorted_runs.RunWriter(dtype)
        for key, sentences in run:
            writer.add(key, sentences)
        assert writer.size == sum(len(s) for _, sentences in run for s in sentences)
        paths.append(str(folder / str(number)))
        writer.write(paths[-1])
    edges = [0, *sorted(cuts), 1 << 64]
    ordered = sorted((document for run in runs for document in run), key=lambda document: document[0])
    for low, high in itertools.pairwise(edges):
        found = sorted_runs.read_documents(paths, low, high, dtype)
        assert [list(document) for document in found] == [s for key, s in ordered if low <= key < high]
        for document in found:
            assert all(type(token) is int for sentence in document for token in sentence)


@pytest.mark.parametrize("left", [0, 9, -1])
def test_a_run_that_was_cut_is_refused(tmp_path, left):
    writer = sorted_runs.RunWriter(np.dtype("<u2"))
    writer.add(5, [[1, 2], [3]])
    writer.write(str(tmp_path / "run"))
    content = (tmp_path / "run").read_bytes()
    (tmp_path / "run").write_bytes(content[:left])
    with pytest.raises(UserError, match=f"run is truncated; delete {tmp_path} and run"):
        sorted_runs.read_documents([str(tmp_path / "run")], 0, 1 << 64, np.dtype("<u2"))


def test_keys_are_spread_evenly_and_never_change():
    assert sorted_runs.document_key("a document") == 18383076448087490940
    keys = np.array([sorted_runs.document_key(f"wiki_{number}") for number in range(20_000)], np.uint64)
    counts = np.bincount((keys >> np.uint64(60)).astype(int), minlength=16)
    assert counts.min() > 1100 and counts.max() < 1400
    assert sorted_runs.document_key("\udc80") != sorted_runs.document_key("\udc81")
