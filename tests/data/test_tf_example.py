"""Example messages, against protobuf's own encoder and decoder."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data import tf_example

FEATURES = st.dictionaries(st.text(max_size=150), st.binary(max_size=400), max_size=5)


@pytest.mark.long
@given(FEATURES)
@settings(deadline=None, max_examples=50)
def test_encoded_examples_are_what_protobuf_reads(example_message, features):
    parsed = example_message.FromString(tf_example.encode_example(features))
    assert {name: list(f.bytes_list.value) for name, f in parsed.features.feature.items()} == {
        name: [value] for name, value in features.items()
    }


@pytest.mark.long
@given(st.lists(FEATURES, max_size=6))
@settings(deadline=None, max_examples=50)
def test_decoder_reads_what_protobuf_writes(example_message, messages):
    decode = tf_example.ExampleDecoder()
    for features in messages * 2:  # the second time from the remembered layouts
        message = example_message()
        for name, value in features.items():
            message.features.feature[name].bytes_list.value.append(value)
        assert decode(message.SerializeToString()) == features
        assert decode(tf_example.encode_example(features)) == features


def test_remembered_layout_is_not_taken_for_another_of_the_same_beginning():
    decode = tf_example.ExampleDecoder()
    for a, b in ((6, 4), (4, 6), (5, 5), (6, 4)):
        features = {"aaaaaaaaaaaaaaaaaaaa": b"a", "b": b"x" * a, "c": b"y" * b}
        assert decode(tf_example.encode_example(features)) == features


@given(st.binary(max_size=60))
@settings(deadline=None, max_examples=50)
def test_decoder_refuses_garbage_with_a_value_error(garbage):
    with contextlib.suppress(ValueError):
        assert isinstance(tf_example.ExampleDecoder()(garbage), dict)
