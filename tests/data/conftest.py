"""A small record directory with known rows, and the protocol buffer of a row."""

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from support import processes

from bert_jax.data import packed


@pytest.fixture(scope="session")
def example_message():
    """tf.train.Example as a protobuf class, from the fields of
    tensorflow/core/example/{example,feature}.proto."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")

    def message(parent, name, *fields):
        made = parent.add(name=name)
        for number, (field_name, kind, type_name) in enumerate(fields, start=1):
            label = field.LABEL_REPEATED if kind.startswith("repeated") else field.LABEL_OPTIONAL
            made.field.add(
                name=field_name,
                number=number,
                label=label,
                type_name=type_name,
                type=getattr(field, "TYPE_" + kind.split()[-1].upper()),
            )
        return made

    message(file.message_type, "BytesList", ("value", "repeated bytes", None))
    message(file.message_type, "FloatList", ("value", "repeated float", None))
    message(file.message_type, "Int64List", ("value", "repeated int64", None))
    message(
        file.message_type,
        "Feature",
        ("bytes_list", "message", ".t.BytesList"),
        ("float_list", "message", ".t.FloatList"),
        ("int64_list", "message", ".t.Int64List"),
    )
    features = message(
        file.message_type, "Features", ("feature", "repeated message", ".t.Features.FeatureEntry")
    )
    entry = message(
        features.nested_type, "FeatureEntry", ("key", "string", None), ("value", "message", ".t.Feature")
    )
    entry.options.map_entry = True
    message(file.message_type, "Example", ("features", "message", ".t.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


@pytest.fixture
def make_records(tmp_path):
    """Writes a record directory of random rows; returns (directory, {split: rows as lists of
    PackedSequence})."""

    def make(
        name="records",
        splits=(("train", (40, 23)), ("eval", (11,))),
        vocab_size=1000,
        length=32,
        seed=0,
        **manifest,
    ):
        rng, directory = np.random.default_rng(seed), str(tmp_path / name)
        rows = {
            split: [[_random_row(rng, length, vocab_size) for _ in range(size)] for size in sizes]
            for split, sizes in splits
        }
        vocabulary = {"kind": "wordpiece", "file": "vocab.txt", "digest": "d", "size": vocab_size}
        vocabulary |= {"lower_case": True, "strip_accents": True}
        fields = {"vocabulary": vocabulary, "sources": [{"name": name}], "fingerprint": name, "seed": 1}
        processes.write_splits(directory, rows, length, **fields | manifest)
        return directory, {split: [row for part in parts for row in part] for split, parts in rows.items()}

    return make


def _random_row(rng, length, vocab_size):
    row, room = [], length
    while room >= 5 and len(row) < 4:
        size = int(rng.integers(5, room + 1))
        ids = rng.integers(5, vocab_size, size).astype(packed.id_dtype(vocab_size))
        row.append(packed.PackedSequence(ids, int(rng.integers(2, size)), int(rng.integers(2))))
        room -= size
        if rng.random() < 0.3:
            break
    return row
