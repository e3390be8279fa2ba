"""Pairs equal google-research/bert's known results; its masking uses the same random generator here."""

import collections
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.tokenization import templates
from data_pipelines.stages import pairs

SHORTEST = pairs.shortest(templates.BERT)


SENTENCE = st.lists(st.integers(0, 9), min_size=1, max_size=30)
DOCUMENTS = st.lists(st.lists(SENTENCE, min_size=1, max_size=12), min_size=2, max_size=6)


def numbered(documents):
    """Returns the documents with tokens that state their origin: (document, running number)."""
    out = []
    for d, document in enumerate(documents):
        counter = iter(range(10**6))
        out.append([[(d, next(counter)) for _ in sentence] for sentence in document])
    return out


@given(
    documents=DOCUMENTS, length=st.integers(SHORTEST, 64), seed=st.integers(0, 1000), short=st.floats(0, 1)
)
@settings(deadline=None, max_examples=30)
def test_pairs_are_runs_of_their_documents(documents, length, seed, short):
    documents = numbered(documents)
    sizes = [sum(map(len, document)) for document in documents]
    for index in range(len(documents)):
        made = list(pairs.document_pairs(documents, index, length - 3, random.Random(seed), short))
        assert made
        for pair in made:
            assert len(pair.first) >= 1 and len(pair.second) >= 1
            assert len(pair.first) + len(pair.second) <= length - 3
            for side in pair.first, pair.second:
                document, start = side[0]
                assert side == [(document, start + i) for i in range(len(side))]
                assert start + len(side) <= sizes[document]
            assert pair.first[0][0] == index
            if not pair.label:
                assert pair.second[0][0] == index and pair.second[0][1] > pair.first[-1][1]
        # A chunk starts where the used sentences of the previous chunk end, so the starts of A never
        # decrease.
        starts = [pair.first[0][1] for pair in made]
        assert starts == sorted(starts)


def test_random_next_is_from_another_document_and_more_than_half():
    documents = numbered([[[0] * 10] * 40] * 30)
    made = list(pairs.make_pairs(documents, 64, random.Random(0), passes=20))
    other = [pair for pair in made if pair.second[0][0] != pair.first[0][0]]
    assert all(pair.label for pair in other)
    share = sum(pair.label for pair in made) / len(made)
    assert 0.5 < share < 0.65
    assert len(other) / len(made) == pytest.approx(share, abs=0.001)
    # The other documents are used about equally often.
    served = collections.Counter(pair.second[0][0] for pair in other)
    assert min(served.values()) > 0.6 * len(other) / 30 and max(served.values()) < 1.4 * len(other) / 30


@given(
    documents=DOCUMENTS, length=st.integers(SHORTEST, 64), seed=st.integers(0, 1000), short=st.floats(0, 1)
)
@settings(deadline=None, max_examples=30)
def test_sentence_order_pairs_are_neighbors(documents, length, seed, short):
    documents = numbered(documents)
    made = list(pairs.make_pairs(documents, length, random.Random(seed), short, nsp="sop"))
    for pair in made:
        assert len(pair.first) >= 1 and len(pair.first) + len(pair.second) <= length - 3
        assert (pair.label == -1) == (not pair.second)
        before, after = (pair.second, pair.first) if pair.label == 1 else (pair.first, pair.second)
        for side in (before, after):
            assert (
                [token[1] for token in side] == list(range(side[0][1], side[0][1] + len(side))) if side else 1
            )
        if after:
            assert before[-1][0] == after[0][0] and before[-1] < after[0]


def test_half_of_the_pairs_are_swapped():
    documents = numbered([[[0] * 9] * 30] * 4)
    made = list(pairs.make_pairs(documents, 64, random.Random(0), passes=30, nsp="sop"))
    assert 0.45 < sum(pair.label == 1 for pair in made) / len(made) < 0.55


@given(
    documents=DOCUMENTS, length=st.integers(SHORTEST, 64), seed=st.integers(0, 1000), short=st.floats(0, 1)
)
@settings(deadline=None, max_examples=30)
def test_single_segments_lose_nothing_and_stay_in_their_document(documents, length, seed, short):
    documents = numbered(documents)
    made = list(pairs.make_pairs(documents, length, random.Random(seed), short, nsp="none"))
    assert all(pair.second == [] and pair.label == -1 and 0 < len(pair.first) <= length - 2 for pair in made)
    assert all(len({token[0] for token in pair.first}) == 1 for pair in made)
    tokens = [token for pair in made for token in pair.first]
    assert tokens == [token for document in documents for sentence in document for token in sentence]


@given(documents=DOCUMENTS, length=st.integers(SHORTEST, 64))
@settings(deadline=None, max_examples=30)
def test_full_sentences_go_on_over_the_ends_of_documents(documents, length):
    documents = numbered(documents)
    made = [pair.first for pair in pairs.full_sentences(documents, length - 2, "[SEP]")]
    assert all(0 < len(row) <= length - 2 and "[SEP]" not in (row[0], row[-1]) for row in made)
    tokens = [token for row in made for token in row if token != "[SEP]"]
    assert tokens == [token for document in documents for sentence in document for token in sentence]
    for row in made:
        ends = [token[0] for token in row if token != "[SEP]"]
        assert row.count("[SEP]") == len(set(ends)) - 1
    longest = max(len(sentence) for document in documents for sentence in document)
    if longest <= length - 2:
        starts = {document[i][0] for document in documents for i in range(len(document))}
        assert all(row[0] in starts for row in made)


@given(documents=DOCUMENTS, length=st.integers(SHORTEST, 64))
@settings(deadline=None, max_examples=50)
def test_full_rows_are_the_documents_with_separators_cut_every_so_many_tokens(documents, length):
    documents, room = numbered(documents), length - 2
    made = [pair.first for pair in pairs.full_rows(documents, room, "[SEP]")]
    assert all(len(row) == room for row in made[:-1]) and 0 < len(made[-1]) <= room
    texts = [[token for sentence in document for token in sentence] for document in documents]
    expected = texts[0] + [token for text in texts[1:] for token in ("[SEP]", *text)]
    assert [token for row in made for token in row] == expected
