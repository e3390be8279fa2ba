"""A template that is not BERT's goes through every place that puts rows together."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.word_examples import WordTokenizer

from bert_jax.inference import engine
from bert_jax.models.row_inputs import packed_inputs, row_inputs
from bert_jax.objectives.masking import Vocabulary
from bert_jax.tasks.rows import assembly
from bert_jax.tasks.table import Examples
from bert_jax.tokenization import templates

ROLES = ("pad", "unk", "cls", "sep", "mask")
MADE_UP = templates.Template(
    single="cls:0 mask:0 A:0 sep:0 sep:0", pair="cls:0 mask:0 A:0 sep:0 mask:0 sep:0 B:2 unk:2 sep:2"
)
ROBERTA = templates.Template(single="cls:0 A:0 sep:0", pair="cls:0 A:0 sep:0 sep:0 B:0 sep:0")
TEMPLATES = (templates.BERT, ROBERTA, MADE_UP)


tokenizers = st.builds(
    lambda template, ids: WordTokenizer(template, dict(zip(ROLES, ids, strict=True))),
    st.sampled_from(TEMPLATES),
    st.permutations(range(10)).map(lambda ids: ids[: len(ROLES)]),
)
texts = st.lists(st.sampled_from("a bb ccc dddd".split()), min_size=1, max_size=30).map(" ".join)


def split_row(tokenizer, data, i):
    row = data.tokens[data.offsets[i] : data.offsets[i + 1]]
    return row, tokenizer.layout.split(row, int(data.first_lengths[i]))


def check_row(tokenizer, row, first_length, first, second):
    """The row has these texts, its special tokens where they belong, and the types of the template."""
    layout = tokenizer.layout
    a, b = layout.split(row, first_length)
    assert a.tolist() == list(first) and (b is None) == (second is None)
    if second is not None:
        assert b.tolist() == list(second) and row[first_length : first_length + len(b)].tolist() == b.tolist()
    spelled = tokenizer.template.single if second is None else tokenizer.template.pair
    ids, token_types = [], []
    for place in spelled.split():
        name, number = place.split(":")
        tokens = {"A": list(first), "B": list(second or ())}.get(name)
        tokens = [tokenizer.special_ids[name]] if tokens is None else tokens
        ids += tokens
        token_types += [int(number)] * len(tokens)
    assert row.tolist() == ids
    zero = np.zeros(1, int)
    assert layout.matches(row[None], zero, zero, np.array([len(row)]), np.array([first_length])).all()
    padded = np.append(row, np.zeros(64 - len(row), np.int32))[None]
    lengths, firsts = jnp.array([len(row)]), jnp.array([first_length])
    alone = row_inputs(jnp.asarray(padded), lengths, firsts, layout.types)
    packed = {"input_ids": jnp.asarray(padded), "lengths": lengths, "starts": jnp.array([[0]])}
    packed = packed_inputs(packed | {"first_lengths": firsts[:, None]}, layout.types)
    for inputs in (alone, packed):
        assert inputs["token_type_ids"][0, : len(row)].tolist() == token_types
        assert inputs["position_ids"][0, : len(row)].tolist() == list(range(len(row)))


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(tokenizer=tokenizers, a=texts, b=texts, max_seq_length=st.integers(12, 40), pair=st.booleans())
def test_texts_and_pairs(tokenizer, a, b, max_seq_length, pair):
    examples = Examples("f", ["0"], [a], [b] if pair else [], rows=1)
    room = tokenizer.layout.room(max_seq_length, pair)
    for stride in (0, 2):
        data = assembly.encode(examples, tokenizer, max_seq_length, stride)
        assert (data.lengths <= max_seq_length).all()
        shown_a = set()
        for i in range(len(data)):
            row, (first, second) = split_row(tokenizer, data, i)
            second = second.tolist() if pair else second
            check_row(tokenizer, row, int(data.first_lengths[i]), first.tolist(), second)
            shown_a |= set(first.tolist())
        if stride and len(a.split()) > len(b.split()):
            assert shown_a == set(tokenizer.encode_batch([a])[0])
    whole = len(a.split()) + (len(b.split()) if pair else 0)
    data = assembly.encode(examples, tokenizer, max_seq_length)
    special = tokenizer.template.special_count(pair)
    assert data.lengths.tolist() == [min(whole, room) + special] and data.truncated == (whole > room)


@settings(max_examples=40, deadline=None)
@given(tokenizer=tokenizers, a=texts, b=texts, length=st.integers(12, 40))
def test_texts_that_are_embedded(tokenizer, a, b, length):
    single, pair = engine.text_rows(tokenizer, [a, (a, b)], length)
    count = len(a.split())
    for row, has_pair, tokens in ((single, False, count), (pair, True, count + len(b.split()))):
        first, second = tokenizer.layout.split(row.token_ids, row.first_length)
        second = second.tolist() if has_pair else second
        check_row(tokenizer, row.token_ids, row.first_length, first.tolist(), second)
        room = tokenizer.layout.room(length, has_pair)
        assert len(first) + len(second or ()) == min(tokens, room) and row.cut == (tokens > room)


@given(tokenizer=tokenizers)
@settings(max_examples=10, deadline=None)
def test_special_tokens_are_never_masked(tokenizer):
    special = Vocabulary.from_tokenizer(tokenizer).special_ids
    places = f"{tokenizer.template.single} {tokenizer.template.pair}".split()
    names = {place.split(":")[0] for place in places}
    assert set(special) == {tokenizer.special_ids[name] for name in names - {"A", "B"}} | {tokenizer.pad_id}
