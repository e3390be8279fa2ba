"""Text to records: a function of text, vocabulary and flags, whoever works and whatever is interrupted."""

import collections
import dataclasses
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.builds import contents

from bert_jax import cli, tokenization
from bert_jax.data import records
from bert_jax.errors import UserError
from bert_jax.tokenization import templates
from data_pipelines import build, output, readers, sorted_runs
from data_pipelines.stages import buckets, tokenizing

ROOT = Path(__file__).resolve().parents[2]


def sequences(directory, split):
    """(A's ids, B's ids, label) of all sequences of a split."""
    dataset = records.open_dataset(directory, split)
    batch = dataset.batch(np.arange(len(dataset)))
    for row in range(len(dataset)):
        length = batch["lengths"][row]
        edges = [start for start in batch["starts"][row] if start < length] + [length]
        for number, (start, end) in enumerate(itertools.pairwise(edges)):
            ids = batch["input_ids"][row, start:end].tolist()
            first = batch["first_lengths"][row, number]
            yield ids[1 : first - 1], ids[first:-1], batch["next_sentence_labels"][row, number]
            assert (ids[0], ids[first - 1], ids[-1]) == (2, 3, 3)


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
        for first, second, label in found:
            sides = [
                {d for d, ids in text.items() if " " + " ".join(map(str, side)) + " " in ids}
                for side in (first, second)
            ]
            assert sides[0] and sides[1]
            if not label:
                assert sides[0] & sides[1]
            owners[split] |= {number[token] for side in (first, second) for token in side if token in number}
    # Each document is in one split; none is lost.
    assert not owners["train"] & owners["eval"]
    assert len(owners["train"] | owners["eval"]) == 60
    assert 2 <= len(owners["eval"]) <= 25
    assert manifest["splits"]["train"]["documents"] + manifest["splits"]["eval"]["documents"] == 60
    assert len(manifest["splits"]["train"]["files"]) > 1 or not several_buckets


@pytest.mark.long
def test_the_random_next_is_of_the_same_bucket_and_of_all_of_it(options, small_steps):
    build.build(dataclasses.replace(options, dupe_factor=30, eval_fraction=0.0))
    tokenizer = tokenization.load(options.vocab)
    made = [(Path(task.output).parent, tokenizing.tokenize(task)) for task in tokenize_tasks(options)]
    planned = buckets.plan([one | {"histogram": str(folder / one["histogram"])} for folder, one in made], 0.0)
    assert len(planned) > 4

    def bucket(number):
        key = keys[number]
        return next(b.number for b in planned if b.low <= key < b.high)

    keys = {}
    for range_ in readers.split_ranges(readers.list_inputs(options.input), 1 << 20):
        for document in readers.read_documents(range_, "text"):
            from data_pipelines import sentences

            keys[sentences.split(document)[0].split()[0]] = sorted_runs.document_key(document.key)
    served = collections.defaultdict(collections.Counter)
    for first, second, label in sequences(options.output, "train"):
        a, b = (
            {t for t in map(tokenizer.tokens.__getitem__, side) if t.isdigit()} for side in (first, second)
        )
        if label and len(a) == len(b) == 1 and a != b:
            assert bucket(*a) == bucket(*b)
            served[bucket(*a)].update(b)
    for number, counts in served.items():
        members = [name for name in keys if bucket(name) == number]
        assert len(members) >= 3 and len(counts) >= len(members) - 1


def tokenize_tasks(options):
    folder = Path(options.output).parent / "tasks"
    folder.mkdir()
    tokenizer = tokenization.load(options.vocab)
    ranges = readers.split_ranges(readers.list_inputs(options.input), 1 << 20)
    return [
        tokenizing.TokenizeTask((r,), "text", tokenizer, str(folder / str(i))) for i, r in enumerate(ranges)
    ]


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


@pytest.mark.parametrize(
    "field, value", [("seed", 8), ("dupe_factor", 2), ("max_seq_length", 64), ("short_seq_prob", 0.9)]
)
def test_flags_change_the_records_and_not_the_held_out_documents(options, tmp_path, field, value):
    first = build.build(options).manifest
    other = build.build(
        dataclasses.replace(options, output=str(tmp_path / "other"), **{field: value})
    ).manifest
    assert first["fingerprint"] != other["fingerprint"]
    assert first["splits"]["train"]["files"] != other["splits"]["train"]["files"] or field == "seed"
    assert list(sequences(options.output, "train")) != list(sequences(str(tmp_path / "other"), "train"))
    assert first["splits"]["eval"]["documents"] == other["splits"]["eval"]["documents"]


@pytest.mark.parametrize(("name", "between", "types"), [("roberta", 2, (0, 0)), ("modernbert", 1, (0, 0))])
def test_rows_of_another_family(options, tmp_path, name, between, types):
    plain = build.build(options).manifest
    assert "template" not in plain["vocabulary"]
    other = dataclasses.replace(options, output=str(tmp_path / "other"), template=name)
    manifest = build.build(other).manifest
    assert manifest["fingerprint"] != plain["fingerprint"]
    assert manifest["vocabulary"]["template"] == dataclasses.asdict(templates.NAMED[name])
    tokenizer = tokenization.restore(options.vocab, manifest["vocabulary"])
    assert tokenizer.layout.types == types
    cls, sep = manifest["special_ids"]["cls"], manifest["special_ids"]["sep"]
    batch = records.open_dataset(other.output, "train").batch(np.arange(4))
    for ids, length, starts, firsts in zip(
        *(batch[name] for name in ("input_ids", "lengths", "starts", "first_lengths")), strict=True
    ):
        for start, end, first in zip(starts, [*starts[1:], length], firsts, strict=True):
            if first:
                tokens = ids[start : min(end, length)].tolist()
                assert tokens[0] == cls and tokens[-1] == sep and tokens.count(sep) == between + 1
                assert (
                    tokens[first - between : first] == [sep] * between
                    and sep not in tokens[: first - between]
                )
    with pytest.raises(UserError, match="--overwrite"):
        build.build(dataclasses.replace(other, template=""))


def test_the_manifest_tells_what_there_is(options, small_steps):
    options = dataclasses.replace(options, num_shards=4)
    manifest = build.build(options).manifest
    assert manifest == json.loads((Path(options.output) / "manifest.json").read_text())
    train = manifest["splits"]["train"]
    assert [file["name"] for file in train["files"]] == [f"train-{i:05d}-of-00004.tfrecord" for i in range(4)]
    rows = [file["rows"] for file in train["files"]]
    assert sum(rows) == train["rows"] and max(rows) - min(rows) <= 1
    for file in train["files"]:
        assert os.path.getsize(os.path.join(options.output, file["name"])) == file["bytes"]
    assert sum(length * count for length, count in enumerate(train["sequence_lengths"])) == train["tokens"]
    assert train["fill"] == train["tokens"] / (train["rows"] * 48)
    assert sum(train["sequences_per_row"]) == train["rows"]
    assert sum(number * rows for number, rows in enumerate(train["sequences_per_row"])) == train["sequences"]
    text = manifest["text"]
    assert text["documents"] == 60 and text["unknown_tokens"] == 0 and text["sentences"] > 60
    assert [source["name"] for source in manifest["sources"]] == ["0.txt", "1.txt", "2.txt"]
    assert manifest["special_ids"] == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    assert not os.path.exists(os.path.join(options.output, output.UNFINISHED))


def test_two_documents_are_held_out_of_few_and_none_of_very_few(options, tmp_path):
    for count, expected in [(7, None), (8, 2), (60, 2)]:
        folder = tmp_path / f"few{count}"
        folder.mkdir()
        (folder / "a.txt").write_text(
            "\n\n".join(f"the river.\n{number} stone.\n" for number in range(count))
        )
        few = dataclasses.replace(
            options, input=(str(folder / "a.txt"),), output=str(folder / "out"), eval_fraction=1e-6
        )
        splits = build.build(few).manifest["splits"]
        assert splits.get("eval", {}).get("documents") == expected
        assert splits["train"]["documents"] == count - (expected or 0)


def test_a_sentence_without_end_costs_no_quadratic_time(options, tmp_path):
    (tmp_path / "long.txt").write_text("stone " * 300_000 + "\n\n" + "the river.\n\n" * 3)
    long = dataclasses.replace(options, input=(str(tmp_path / "long.txt"),), eval_fraction=0.0)
    manifest = build.build(long).manifest
    assert 33 <= manifest["text"]["sentences"] <= 40 and manifest["text"]["tokens"] == 300_000 + 9


def test_the_parts_of_a_long_document_are_one_document(options, tmp_path, monkeypatch):
    monkeypatch.setattr(readers.documents, "MAX_DOCUMENT_BYTES", 100)
    (tmp_path / "a.txt").write_text("the river walks under the stone.\n" * 20)
    with pytest.raises(UserError, match="the corpus is one document"):
        build.build(dataclasses.replace(options, input=(str(tmp_path / "a.txt"),)))
    (tmp_path / "b.txt").write_text("the wind.\n")
    text = build.build(dataclasses.replace(options, input=(str(tmp_path / "?.txt"),))).manifest["text"]
    assert text["documents"] == 2 and text["long_documents"] == 1


def test_a_document_whose_first_part_is_dropped_is_one_document(options, tmp_path, monkeypatch):
    monkeypatch.setattr(readers.documents, "MAX_DOCUMENT_BYTES", 100)
    (tmp_path / "a.txt").write_text(f"{'x' * 120}\n" + "the river walks under the stone.\n" * 20)
    one = dataclasses.replace(options, input=(str(tmp_path / "a.txt"),), nsp="none", clean="length")
    one = dataclasses.replace(one, min_document_characters=0)
    text = build.build(one).manifest["text"]
    assert (text["documents"], text["sentences"]) == (1, 20)
    with pytest.raises(UserError, match="the corpus is one document"):
        build.build(dataclasses.replace(one, nsp="next", output=str(tmp_path / "next")))


def test_workers_need_no_jax():
    program = (
        "import data_pipelines.build, sys; print([m for m in ('jax', 'jaxlib', 'flax') if m in sys.modules])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "[]"
