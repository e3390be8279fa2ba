"""The n best answers, against hand-made scores and run_squad's rules as loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import squad_oracle

from bert_jax.tasks import question_answering
from bert_jax.tasks.question_answering.question_files import UNKNOWN, Questions
from bert_jax.tasks.rows import assembly

QUESTION = 2  # tokens before the window: [CLS], one of a question; and one [SEP] after it


def layout(contexts, room=4, stride=2):
    """Questions whose contexts' tokens are single characters, with their windows."""
    lengths, examples, characters, best = [], [], [], []
    for number, context in enumerate(contexts):
        offsets = np.arange(len(context) + 1)
        spans = assembly.split(offsets, room, stride, fill_last=False)
        chosen = assembly.most_context(offsets, spans, 0.01)
        for window, span in enumerate(spans):
            places = range(*span)
            lengths.append(QUESTION + len(places) + 1)
            examples.append(number)
            characters += [(-1, -1)] * QUESTION + [(p, p + 1) for p in places] + [(-1, -1)]
            best += [False] * QUESTION + [chosen[p] == window for p in places] + [False]
    data = question_answering.WindowRows(
        tokens=np.zeros(sum(lengths), np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        first_lengths=np.full(len(lengths), QUESTION, np.int32),
        targets={},
        pad_id=0,
        max_seq_length=room + QUESTION + 1,
        examples=np.array(examples),
        characters=np.array(characters, np.int32),
        is_max_context=np.array(best),
        cut_questions=0,
    )
    ids = [str(i) for i in range(len(contexts))]
    none = [[] for _ in ids]
    places = list(range(len(ids)))
    return Questions("f", ids, ids, contexts, places, none, [UNKNOWN] * len(ids), rows=len(ids)), data


def decode(questions, data, outputs, **changes):
    return question_answering.decode(
        questions, data, np.asarray(outputs, np.float32), question_answering.QuestionConfig(**changes)
    )


def test_the_best_pair_wins():
    questions, data = layout(["abcd"])
    start, end = [0, 9, 1, 0, 3, 0, 9], [0, 9, 4, 0, 0, 2, 9]
    found = decode(questions, data, np.stack([start, end], 1))
    # Starts in the question and ends before starts don't count. cd and a have 5 both: the likelier start
    # comes first; then c and abcd with 3 alike.
    assert [entry["text"] for entry in found.n_best[0]][:4] == ["cd", "a", "c", "abcd"]
    assert found.texts == found.non_null == ["cd"] and found.null_odds == []
    assert found.n_best[0][0]["start_logit"] == 3 and found.n_best[0][0]["end_logit"] == 2
    probabilities = [entry["probability"] for entry in found.n_best[0]]
    assert sum(probabilities) == pytest.approx(1) and probabilities[0] == pytest.approx(probabilities[1])


@pytest.mark.parametrize("threshold, expected", [(0.9, ""), (1.1, "b")])
def test_no_answer_where_it_is_likelier_by_the_threshold(threshold, expected):
    questions, data = layout(["abcdef"])
    outputs = np.zeros((14, 2))
    outputs[0], outputs[7], outputs[3] = 5, 2, 1.5  # [CLS] has 10 and 4, the least counts; b has 3
    found = decode(questions, data, outputs, v2=True, null_score_diff_threshold=threshold)
    assert found.null_odds == [1.0] and found.texts == [expected] and found.non_null == ["b"]
    assert [entry["text"] for entry in found.n_best[0]][:2] == ["", "b"]


@given(
    st.lists(st.text("ab c", min_size=1, max_size=9), min_size=1, max_size=4),
    st.integers(1, 6),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_decoding_is_that_of_the_rules(contexts, n_best, longest, v2, seed):
    questions, data = layout(contexts)
    # Few distinct values: ties are decided by order.
    outputs = np.random.default_rng(seed).integers(-3, 4, (int(data.offsets[-1]), 2)).astype(np.float32)
    found = decode(questions, data, outputs, n_best=n_best, max_answer_length=longest, v2=v2)
    for number, context in enumerate(contexts):
        windows = []
        for row in np.flatnonzero(data.examples == number):
            part = slice(*data.offsets[row : row + 2])
            characters = [tuple(c) if c[0] >= 0 else None for c in data.characters[part].tolist()]
            windows.append((*outputs[part].T.tolist(), characters, data.is_max_context[part]))
        kept, odds = squad_oracle.answers_of(windows, context, n_best, longest, v2)
        listed = [(e["text"], e["start_logit"], e["end_logit"]) for e in found.n_best[number]]
        assert listed == kept
        if v2:
            assert found.null_odds[number] == odds
