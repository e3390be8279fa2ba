"""A small record directory with known rows, and the protocol buffer of a row."""

import json
import os

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from bert_jax.data import manifests, packed, tfrecord


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
        rng = np.random.default_rng(seed)
        directory = str(tmp_path / name)
        os.makedirs(directory)
        entries, written = {}, {}
        for split, sizes in splits:
            files, written[split] = [], []
            for number, size in enumerate(sizes):
                rows = [_random_row(rng, length, vocab_size) for _ in range(size)]
                path = f"{split}-{number:05d}-of-{len(sizes):05d}.tfrecord"
                records, size = tfrecord.write_records(
                    os.path.join(directory, path), map(packed.encode_row, rows)
                )
                files.append({"name": path, "rows": records, "bytes": size})
                written[split] += rows
            sequences = [sequence for row in written[split] for sequence in row]
            lengths = np.bincount([len(s.ids) for s in sequences], minlength=length + 1)
            entries[split] = manifests.merge_splits(
                [
                    {
                        "documents": 7,
                        "rows": len(written[split]),
                        "sequences": len(sequences),
                        "tokens": sum(len(s.ids) for s in sequences),
                        "random_next": sum(s.next_sentence_label for s in sequences),
                        "sequence_lengths": lengths.tolist(),
                        "files": files,
                    }
                ],
                length,
            )
        content = {
            "schema": "packed",
            "version": 1,
            "seed": 1,
            "max_seq_length": length,
            "max_sequences_per_row": 4,
            "splits": entries,
            "vocabulary": {
                "kind": "wordpiece",
                "file": "vocab.txt",
                "digest": "d",
                "size": vocab_size,
                "lower_case": True,
                "strip_accents": True,
            },
            "special_ids": {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4},
            "sources": [{"name": name}],
            "fingerprint": name,
        } | manifest
        with open(os.path.join(directory, "manifest.json"), "w") as file:
            json.dump(content, file)
        return directory, written

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
