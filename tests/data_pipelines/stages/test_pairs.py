"""Pairs against google-research/bert's known answers, with its masking drawn here from the same generator."""

import collections
import hashlib
import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax import tokenization
from bert_jax.tokenization import templates
from data_pipelines.stages import pairs

SHORTEST = pairs.shortest(templates.BERT)


@pytest.fixture(scope="module")
def sample(shared_data):
    """The tokens of the reference's sample text, by document, and the tokenizer."""
    tokenizer = tokenization.load(str(shared_data / "vocab" / "bert-base-uncased-vocab.txt"))
    documents = [[]]
    for line in (shared_data / "sample_text.txt").read_text(encoding="utf-8").splitlines():
        if not line.strip():
            documents.append([])
            continue
        ids = tokenizer.encode_batch([line.strip()])[0]
        if ids:
            documents[-1].append(ids)
    return [document for document in documents if document], tokenizer


def reference_masks(ids, tokenizer, rng, max_predictions, whole_word):
    """create_masked_lm_predictions, on ids; returns (masked ids, positions, labels)."""
    words = []
    for position, token in enumerate(ids):
        if token in (tokenizer.cls_id, tokenizer.sep_id):
            continue
        if whole_word and words and tokenizer.tokens[token].startswith("##"):
            words[-1].append(position)
        else:
            words.append([position])
    rng.shuffle(words)
    wanted = min(max_predictions, max(1, round(len(ids) * 0.15)))
    masked, positions = list(ids), []
    for word in words:
        if len(positions) >= wanted:
            break
        if len(positions) + len(word) > wanted:
            continue
        for position in word:
            if rng.random() < 0.8:
                masked[position] = tokenizer.mask_id
            elif rng.random() >= 0.5:
                masked[position] = rng.randint(0, tokenizer.vocab_size - 1)
            positions.append(position)
    positions.sort()
    return masked, positions, [ids[position] for position in positions]


@pytest.mark.parametrize(
    "whole_word, instances, random_next, predictions, digest",
    [(False, 60, 32, 922, "8f3ddd35eda9fec4"), (True, 64, 37, 978, "4df1a055604c168f")],
)
def test_known_answers_of_the_reference(sample, whole_word, instances, random_next, predictions, digest):
    documents, tokenizer = sample
    rng = random.Random(12345)
    documents = list(documents)
    rng.shuffle(documents)
    rows, counts = [], collections.Counter()
    for pair in pairs.make_pairs(documents, 128, rng, short_seq_prob=0.1, dupe_factor=5):
        ids = [tokenizer.cls_id, *pair.first, tokenizer.sep_id, *pair.second, tokenizer.sep_id]
        segments = [0] * (len(pair.first) + 2) + [1] * (len(pair.second) + 1)
        masked, positions, labels = reference_masks(ids, tokenizer, rng, 20, whole_word)
        rows.append([masked, segments, positions, labels, int(pair.label)])
        for position, label in zip(positions, labels, strict=True):
            kind = {tokenizer.mask_id: "mask", label: "kept"}.get(masked[position], "random")
            counts[kind] += 1
    rng.shuffle(rows)
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    assert (len(rows), sum(row[4] for row in rows), sum(counts.values())) == (
        instances,
        random_next,
        predictions,
    )
    if not whole_word:
        assert counts == {"mask": 722, "random": 104, "kept": 96}
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest


SENTENCE = st.lists(st.integers(0, 9), min_size=1, max_size=30)
DOCUMENTS = st.lists(st.lists(SENTENCE, min_size=1, max_size=12), min_size=2, max_size=6)


def numbered(documents):
    """The same documents with tokens that tell where they are from: (document, running number)."""
    out = []
    for d, document in enumerate(documents):
        counter = iter(range(10**6))
        out.append([[(d, next(counter)) for _ in sentence] for sentence in document])
    return out


@given(
    documents=DOCUMENTS,
    length=st.integers(SHORTEST, 64),
    seed=st.integers(0, 1000),
    short=st.floats(0, 1),
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
        # A fresh chunk starts where the last one's used sentences end, so no A begins before the one before
        # it.
        starts = [pair.first[0][1] for pair in made]
        assert starts == sorted(starts)


def test_random_next_is_from_another_document_and_more_than_half():
    documents = numbered([[[0] * 10] * 40] * 30)
    made = list(pairs.make_pairs(documents, 64, random.Random(0), dupe_factor=20))
    other = [pair for pair in made if pair.second[0][0] != pair.first[0][0]]
    assert all(pair.label for pair in other)
    share = sum(pair.label for pair in made) / len(made)
    assert 0.5 < share < 0.65
    assert len(other) / len(made) == pytest.approx(share, abs=0.001)
    # Every other document serves about as often.
    served = collections.Counter(pair.second[0][0] for pair in other)
    assert min(served.values()) > 0.6 * len(other) / 30 and max(served.values()) < 1.4 * len(other) / 30


def test_short_sequences():
    documents = numbered([[[0] * 5] * 200] * 4)
    full = [len(p.first) + len(p.second) for p in pairs.make_pairs(documents, 128, random.Random(0), 0.0, 5)]
    short = [
        len(p.first) + len(p.second) for p in pairs.make_pairs(documents, 128, random.Random(0), 1.0, 200)
    ]
    assert sum(length == 125 for length in full) > 0.9 * len(full)
    assert sum(length < 100 for length in short) > 0.7 * len(short)


@given(
    documents=DOCUMENTS,
    length=st.integers(SHORTEST, 64),
    seed=st.integers(0, 1000),
    short=st.floats(0, 1),
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
    made = list(pairs.make_pairs(documents, 64, random.Random(0), dupe_factor=30, nsp="sop"))
    assert 0.45 < sum(pair.label == 1 for pair in made) / len(made) < 0.55


@given(
    documents=DOCUMENTS,
    length=st.integers(SHORTEST, 64),
    seed=st.integers(0, 1000),
    short=st.floats(0, 1),
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
def test_segments_that_are_never_shortened_take_every_sentence_that_fits(documents, length):
    """RoBERTa's DOC-SENTENCES."""
    documents, room = numbered(documents), length - 2
    made = [pair.first for pair in pairs.make_pairs(documents, length, random.Random(0), 0.0, nsp="none")]
    sizes = {sentence[0]: len(sentence) for document in documents for sentence in map(list, document)}
    for segment, following in itertools.pairwise(made):
        if segment[0][0] == following[0][0]:  # of one document
            assert len(segment) + min(sizes.get(following[0], room), room) > room


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


def test_full_sentences_by_hand():
    documents = [[[1, 2], [3]], [[4, 5, 6]], [[7] * 9]]
    rows = [pair.first for pair in pairs.full_sentences(documents, 7, 0)]
    assert rows == [[1, 2, 3, 0, 4, 5, 6], [7] * 7, [7, 7]]


@given(documents=DOCUMENTS, length=st.integers(SHORTEST, 64))
@settings(deadline=None, max_examples=50)
def test_full_rows_are_the_documents_with_separators_cut_every_so_many_tokens(documents, length):
    documents, room = numbered(documents), length - 2
    made = [pair.first for pair in pairs.full_rows(documents, room, "[SEP]")]
    assert all(len(row) == room for row in made[:-1]) and 0 < len(made[-1]) <= room
    texts = [[token for sentence in document for token in sentence] for document in documents]
    expected = texts[0] + [token for text in texts[1:] for token in ("[SEP]", *text)]
    assert [token for row in made for token in row] == expected


def test_full_rows_by_hand():
    documents = [[[1, 2], [3]], [[4, 5, 6]], [[7] * 9]]
    made = list(pairs.full_rows(documents, 4, 0))
    assert [pair.first for pair in made] == [[1, 2, 3, 0], [4, 5, 6, 0], [7] * 4, [7] * 4, [7]]
    assert {(tuple(pair.second), pair.label) for pair in made} == {((), -1)}
