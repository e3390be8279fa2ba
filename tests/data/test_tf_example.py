"""Example messages, against the wire format of protobuf."""

import pytest

from bert_jax.data import tf_example

# Of {"a": b"x", "b": [1, 300], "c": [1.0]}: each entry is a name and a feature, which is a list.
ENTRIES = (
    "0a0a 0a0161 1205 0a03 0a01 78",
    "0a0c 0a0162 1207 1a05 0a03 01ac02",
    "0a0d 0a0163 1208 1206 0a04 0000803f",
)
MESSAGE = bytes.fromhex("0a29" + "".join(ENTRIES))


def test_the_bytes_of_an_example():
    assert tf_example.encode({"b": [1, 300], "c": [1.0], "a": b"x"}) == MESSAGE
    found = tf_example.decode(MESSAGE)
    assert list(found["a"].bytes_list.value) == [b"x"] and list(found["b"].int64_list.value) == [1, 300]
    assert list(found["c"].float_list.value) == [1.0]
    with pytest.raises(ValueError, match="pars"):
        tf_example.decode(MESSAGE[:-1])
