"""Encodes and decodes tf.train.Example messages with protobuf, without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message, message_factory


def _field(name: str, number: int, kind: str, is_list: bool = False) -> dict[str, Any]:
    """Returns a field, whose kind is a scalar type in upper case or the name of a message."""
    label = "LABEL_REPEATED" if is_list else "LABEL_OPTIONAL"
    field: dict[str, Any] = {"name": name, "number": number, "label": label}
    if kind.isupper():
        return field | {"type": f"TYPE_{kind}"}
    return field | {"type": "TYPE_MESSAGE", "typeName": f".t.{kind}"}


# tensorflow/core/example/{example,feature}.proto
_ENTRY = {
    "name": "FeatureEntry",
    "field": [_field("key", 1, "STRING"), _field("value", 2, "Feature")],
    "options": {"mapEntry": True},
}
_LISTS = {"BytesList": "BYTES", "FloatList": "FLOAT", "Int64List": "INT64"}
_MESSAGES = [
    *({"name": name, "field": [_field("value", 1, kind, True)]} for name, kind in _LISTS.items()),
    {
        "name": "Feature",
        "field": [
            _field("bytes_list", 1, "BytesList"),
            _field("float_list", 2, "FloatList"),
            _field("int64_list", 3, "Int64List"),
        ],
    },
    {
        "name": "Features",
        "field": [_field("feature", 1, "Features.FeatureEntry", True)],
        "nestedType": [_ENTRY],
    },
    {"name": "Example", "field": [_field("features", 1, "Features")]},
]
_FILE = {"name": "example.proto", "package": "t", "syntax": "proto3", "messageType": _MESSAGES}
_pool = descriptor_pool.DescriptorPool()
_pool.Add(json_format.ParseDict(_FILE, descriptor_pb2.FileDescriptorProto()))
_Example: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName("t.Example"))


def encode(features: Mapping[str, bytes | Sequence[int] | Sequence[float]]) -> bytes:
    """Returns a serialized tf.train.Example, with its features sorted by name.

    The value of a feature is the only value of a list of bytes, or all numbers of another list.
    """
    example = _Example()
    for name, value in features.items():
        feature = example.features.feature[name]
        if isinstance(value, bytes):
            feature.bytes_list.value.append(value)
        elif isinstance(value[0], float):
            feature.float_list.value.extend(value)
        else:
            feature.int64_list.value.extend(value)
    return example.SerializeToString(deterministic=True)


def decode(record: bytes) -> Mapping[str, Any]:
    """Returns the features of a tf.train.Example: `bytes_list`, `float_list` or `int64_list` has `value`.

    Raises ValueError if the message is malformed.
    """
    try:
        return _Example.FromString(record).features.feature
    except message.DecodeError as error:
        raise ValueError(str(error)) from None
