"""Text to records: a function of text, vocabulary and flags, whoever works and whatever is interrupted."""

import collections
import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.builds import contents, sequences

from bert_jax import cli, tokenization
from bert_jax.data import records
from bert_jax.errors import UserError
from bert_jax.tokenization import templates
from data_pipelines import build, readers


@pytest.mark.parametrize("several_buckets", [False, True])
def test_records_hold_pairs_of_the_text(options, several_buckets, request):
    if several_buckets:
        request.getfixturevalue("small_steps")
    manifest = build.build(options).manifest
    tokenizer = tokenization.load(options.vocab)
    text = {}
    for path in readers.list_inputs(options.input):
        for document in Path(path).read_text().split("\n\n"):
            ids = sum(tokenizer.encode_batch(document.splitlines()), [])
            text[document.split()[0]] = " " + " ".join(map(str, ids)) + " "
    number = {tokenizer.tokens.index(name): name for name in text}
    owners = collections.defaultdict(set)
    for split in ("train", "eval"):
        found = list(sequences(options.output, split))
        assert len(found) == manifest["splits"][split]["sequences"]
        assert sum(label for *_, label in found) == manifest["splits"][split]["random_next"]
        for ids, first, label in found:
            assert (ids[0], ids[first - 1], ids[-1]) == (2, 3, 3)
            segments = ids[1 : first - 1], ids[first:-1]
            sides = [
                {d for d, words in text.items() if " " + " ".join(map(str, segment)) + " " in words}
                for segment in segments
            ]
            assert sides[0] and sides[1]
            if not label:
                assert sides[0] & sides[1]
            owners[split] |= {number[token] for token in ids if token in number}
    # Each document is in one split; none is lost.
    assert not owners["train"] & owners["eval"]
    assert len(owners["train"] | owners["eval"]) == 60
    assert 2 <= len(owners["eval"]) <= 25
    assert manifest["splits"]["train"]["documents"] + manifest["splits"]["eval"]["documents"] == 60
    assert len(manifest["splits"]["train"]["files"]) > 1 or not several_buckets


def test_bytes_do_not_depend_on_the_number_of_workers(corpus, vocabulary, tmp_path):
    written = []
    for workers in (1, 2):
        output = str(tmp_path / str(workers))
        arguments = [
            f"--input={corpus}/*.txt",
            f"--vocab={vocabulary}",
            f"--output={output}",
            "--num_shards=3",
        ]
        assert cli.main(["data", *arguments, "--max_seq_length=48", f"--workers={workers}"]) == 0
        written.append(contents(output))
    assert written[0] == written[1]
    assert sorted(written[0])[:3] == [
        "eval-00000-of-00001.tfrecord",
        "eval-00000-of-00001.tfrecord.index",
        "manifest.json",
    ]
    assert "train-00002-of-00003.tfrecord.index" in written[0] and "vocab.txt" in written[0]


def test_the_order_of_the_inputs_and_their_place_change_nothing(options, corpus, tmp_path):
    build.build(options)
    shutil.copytree(corpus, tmp_path / "copy")
    other = dataclasses.replace(
        options,
        input=tuple(str(tmp_path / "copy" / f"{number}.txt") for number in (2, 0, 1)),
        output=str(tmp_path / "other"),
    )
    build.build(other)
    assert contents(options.output) == contents(other.output)


@pytest.mark.parametrize("name", ["roberta", "modernbert"])
def test_rows_of_another_family(options, tmp_path, name):
    plain = build.build(options).manifest
    assert "template" not in plain["vocabulary"]
    other = dataclasses.replace(options, output=str(tmp_path / "other"), template=name)
    manifest = build.build(other).manifest
    assert manifest["fingerprint"] != plain["fingerprint"]
    template = templates.NAMED[name]
    assert tokenization.restore(options.vocab, manifest["vocabulary"]).template == template
    batch = records.open_dataset(other.output, "train").batch(np.arange(4))
    layout = template.layout(manifest["special_ids"])
    ends, firsts = np.minimum(batch["starts"][:, 1], batch["lengths"]), batch["first_lengths"][:, 0]
    for ids, end, first in zip(batch["input_ids"], ends, firsts, strict=True):
        assert ids[:end].tolist() == layout.row(*layout.split(ids[:end], first)).tolist()
    with pytest.raises(UserError, match="--overwrite"):
        build.build(dataclasses.replace(other, template=""))


def test_the_parts_of_a_long_document_are_one_document(options, tmp_path, monkeypatch):
    monkeypatch.setattr(readers.documents, "MAX_DOCUMENT_BYTES", 100)
    (tmp_path / "a.txt").write_text("the river walks under the stone.\n" * 20)
    with pytest.raises(UserError, match="--nsp=next"):
        build.build(dataclasses.replace(options, input=(str(tmp_path / "a.txt"),)))
    (tmp_path / "b.txt").write_text("the wind.\n")
    text = build.build(dataclasses.replace(options, input=(str(tmp_path / "?.txt"),))).manifest["text"]
    assert text["documents"] == 2 and text["long_documents"] == 1
