"""Packed records by --nsp: next-sentence pairs to the byte as ever, swapped segments, single ones."""

import dataclasses
import hashlib
import json

import numpy as np
import pytest

from bert_jax.data import inspection, records
from data_pipelines import build


@pytest.mark.parametrize(
    "fields, labels",
    [
        ({"nsp": "sop"}, {-1, 0, 1}),
        ({"nsp": "none"}, {-1}),
        ({"nsp": "none", "full_sentences": True}, {-1}),
        ({"nsp": "none", "full_rows": True}, {-1}),
    ],
    ids=["sop", "none", "full-sentences", "full-rows"],
)
def test_other_second_segments(options, fields, labels):
    options = dataclasses.replace(options, **fields)
    manifest = build.build(options).manifest
    assert {name: manifest[name] for name in fields} == fields
    train = manifest["splits"]["train"]
    batch = records.open_dataset(options.output, "train").batch(np.arange(train["rows"]))
    present = batch["first_lengths"] > 0
    assert present.sum() == train["sequences"] and set(batch["next_sentence_labels"][present]) == labels
    assert (batch["next_sentence_labels"] == 1).sum() == train["random_next"]
    assert (batch["next_sentence_labels"] >= 0).sum() == train["labeled"]
    report = inspection.inspect_records(options.output)
    expected = None if options.nsp == "none" else train["random_next_share"]
    assert report.facts["train"].get("random_next_share") == expected
    assert not [problem for problem in report.problems if "segments are swapped" not in problem]
    if "full_sentences" in fields:
        assert train["fill"] > 0.75 and train["sequences"] == train["rows"]
        inside = batch["input_ids"][:, 1:-1] == 3
        assert inside.sum() > len(inside) / 4  # a [SEP] between documents


def test_packed_records_of_before_keep_their_bytes_and_fingerprint(shared_data, tmp_path):
    """Made before there were other schemas and other second segments."""
    vocabulary = str(shared_data / "vocab" / "bert-base-uncased-vocab.txt")
    text = (str(shared_data / "sample_text.txt"),)
    options = build.Options(
        input=text, vocab=vocabulary, output=str(tmp_path / "out"), max_seq_length=64, dupe_factor=3
    )
    manifest = build.build(options).manifest
    content = (tmp_path / "out" / "train-00000-of-00001.tfrecord").read_bytes()
    expected = "f6dda61fbb43393db5cd7d3a096f0fc4fae5633c0d9174f2081656f906bcae65"
    assert hashlib.sha256(content).hexdigest() == expected
    assert manifest["fingerprint"] == "1ee8de53bb546fdacc6ba1bfd211a8391008f0da34a3b1939610b9ab5b8dd6a4"
    for name in ("nsp", "full_sentences"):  # which the manifests of then do not have
        del manifest[name]
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest))
    assert build.build(options).already_done
