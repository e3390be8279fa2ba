import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.word_examples import WordTokenizer

from bert_jax.tasks.rows import assembly, batches
from bert_jax.tasks.tagging import TaggedSentences, encode, widen


class PieceTokenizer(WordTokenizer):
    """The word "7x3" has the pieces 70, 71 and 72; "" none."""

    unk_id = 3

    def encode_batch(self, texts):
        out = []
        for text in texts:
            number, _, count = text.partition("x")
            out.append([10 * int(number) + i for i in range(int(count))] if text else [])
        return out


def sentences(lengths, documents=None):
    """Sentences of distinct words with these numbers of pieces; tags alternate."""
    words, number = [], 1
    for pieces in lengths:
        words.append([f"{number + i}x{count}" for i, count in enumerate(pieces)])
        number += len(pieces)
    tags = [["A" if i % 2 else "B" for i in range(len(pieces))] for pieces in lengths]
    ids = [str(i) for i in range(len(words))]
    return TaggedSentences("f", words, tags, documents or [0] * len(words), ids, rows=len(words))


def row(data, i):
    return data.tokens[data.offsets[i] : data.offsets[i + 1]].tolist()


def test_the_first_piece_has_the_tag():
    examples = sentences([[1, 3], [2]])
    examples.words[1][0] = ""
    data = encode(examples, PieceTokenizer(), 8, ("A", "B"))
    assert [row(data, 0), row(data, 1)] == [[1, 10, 20, 21, 22, 2], [1, 3, 2]]
    none = batches.NO_TARGET
    assert data.token_targets["tags"].tolist() == [none, 1, 0, none, none, none, none, 1, none]
    assert data.word_tokens.tolist() == [1, 2, 7]
    assert (data.first_lengths.tolist(), data.truncated) == ([6, 3], 0)
    untagged = encode(dataclasses.replace(examples, tags=[]), PieceTokenizer(), 8, ("A", "B"))
    assert untagged.token_targets == {} and np.array_equal(untagged.tokens, data.tokens)


piece_counts = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=30), min_size=1, max_size=5)


@settings(max_examples=200, deadline=None)
@given(piece_counts, st.integers(4, 24), st.booleans(), st.data())
def test_rows_fit_and_join_to_the_words(lengths, max_seq_length, document_context, data):
    documents = np.cumsum(data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths))))
    examples = sentences(lengths, documents.tolist())
    rows = encode(examples, PieceTokenizer(), max_seq_length, ("A", "B"), document_context)
    assert rows.lengths.max() <= max_seq_length
    # What a model says of a token is the token: joined, every word has its own first piece.
    outputs = rows.tokens[:, None].astype(np.float32)
    words = [word for sentence in examples.words for word in sentence]
    assert outputs[rows.word_tokens, 0].tolist() == [10 * int(word.split("x")[0]) for word in words]
    # Every word is learned once, in a row of its sentence.
    targets = rows.token_targets["tags"]
    assert np.flatnonzero(targets >= 0).tolist() == sorted(rows.word_tokens.tolist())
    owners = rows.examples[np.searchsorted(rows.offsets, rows.word_tokens, side="right") - 1]
    assert owners.tolist() == [i for i, sentence in enumerate(examples.words) for _ in sentence]
    assert rows.truncated == sum(max(pieces) > max_seq_length - 2 for pieces in lengths)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=60), st.integers(6, 30))
def test_each_word_is_where_it_has_most_context(lengths, budget):
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    found = assembly.split(offsets, budget, max(budget // 2, 1))
    assert found[0][0] == 0 and found[-1][1] == len(lengths)
    assert all(offsets[end] - offsets[begin] <= budget for begin, end in found)
    chosen = assembly.most_context(offsets, found)
    for word, row in enumerate(chosen):
        context = {
            i: min(offsets[word] - offsets[begin], offsets[end] - offsets[word + 1])
            for i, (begin, end) in enumerate(found)
            if begin <= word < end
        }
        assert context[row] == max(context.values())
    if len(found) > 1:
        begin, end = found[-1]
        assert begin == 0 or offsets[end] - offsets[begin - 1] > budget


@given(st.lists(st.integers(1, 4), min_size=1, max_size=40), st.data())
def test_context_fills_the_row(lengths, data):
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    begin = data.draw(st.integers(0, len(lengths) - 1))
    end = data.draw(st.integers(begin + 1, len(lengths)))
    budget = int(offsets[end] - offsets[begin]) + data.draw(st.integers(0, 40))
    first, last = widen(offsets, begin, end, budget)
    assert 0 <= first <= begin and end <= last <= len(lengths)
    used = offsets[last] - offsets[first]
    assert used <= budget
    # What is left over is less than the words that come next, one on each side.
    next_words = (lengths[first - 1] if first else 0) + (lengths[last] if last < len(lengths) else 0)
    assert budget - used < max(next_words, 1) or (first, last) == (0, len(lengths))
