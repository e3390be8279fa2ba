"""Google records: known answers of the reference through the command line, and the rules of masks."""

import dataclasses
import hashlib
import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax import cli, tokenization
from bert_jax.data import inspection, manifests, records
from data_pipelines import build
from data_pipelines.stages import buckets, google_rows


def read_instances(directory, split="train"):
    """The rows of records as the reference's shuffled instances: file i has those i, i + n, ... of them."""
    dataset = records.open_dataset(str(directory), split)
    batch = dataset.batch(np.arange(len(dataset)))
    firsts = np.cumsum([0, *map(len, dataset.files)])
    files = len(dataset.files)
    for number in range(len(dataset)):
        row = firsts[number % files] + number // files
        length, first = int(batch["lengths"][row]), int(batch["first_lengths"][row, 0])
        used = int((batch["masked_weights"][row] > 0).sum())
        yield [
            batch["input_ids"][row, :length].tolist(),
            [0] * first + [1] * (length - first),
            batch["masked_positions"][row, :used].tolist(),
            batch["masked_labels"][row, :used].tolist(),
            int(batch["next_sentence_labels"][row, 0]),
        ]


def digest(rows):
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    "flags, shards, expected",
    [
        ([], 1, (60, 32, 922, "8f3ddd35eda9fec4")),
        ([], 7, (60, 32, 922, "8f3ddd35eda9fec4")),
        (["--whole_word_mask"], 3, (64, 37, 978, "4df1a055604c168f")),
    ],
    ids=["tokens", "tokens-in-7-files", "whole-words"],
)
def test_known_answers_of_the_reference(shared_data, tmp_path, flags, shards, expected):
    arguments = [
        f"--input={shared_data / 'sample_text.txt'}",
        f"--vocab={shared_data / 'vocab' / 'bert-base-uncased-vocab.txt'}",
        f"--output={tmp_path / 'out'}",
        f"--num_shards={shards}",
    ]
    assert cli.main(["data", "--schema=google", "--dupe_factor=5", "--workers=1", *arguments, *flags]) == 0
    rows = list(read_instances(tmp_path / "out"))
    assert (
        len(rows),
        sum(row[4] for row in rows),
        sum(len(row[2]) for row in rows),
        digest(rows),
    ) == expected
    train = manifests.read(str(tmp_path / "out"))["splits"]["train"]
    assert (train["rows"], train["random_next"], train["predictions"]) == expected[:3]
    assert len(train["files"]) == shards


@pytest.mark.long
def test_several_buckets_on_several_workers(options, tmp_path, monkeypatch):
    """Each bucket is shuffled by itself; the bytes are the same whoever works, and all are sound."""
    options = dataclasses.replace(options, schema="google", eval_fraction=None, dupe_factor=2)
    first, other = (
        dataclasses.replace(options, output=str(tmp_path / name), num_shards=3) for name in ("first", "other")
    )
    whole = build.build(options).manifest
    monkeypatch.setattr(buckets, "BUCKET_TOKENS", (500, 500))
    monkeypatch.setattr(buckets, "MIN_BUCKET_DOCUMENTS", 3)
    tasks = []
    with monkeypatch.context() as patch:
        make = build.make_shard
        patch.setattr(build, "make_shard", lambda task: (tasks.append(task), make(task))[1])
        manifest = build.build(first).manifest
    read = [path for task in tasks for path, *_ in task.parts]
    assert len(set(read)) > 3 and len(read) <= len(set(read)) + 2  # two files begin within a bucket
    assert build.build(other).manifest == manifest
    assert digest(read_instances(first.output)) == digest(read_instances(other.output))
    assert manifest["splits"]["train"]["documents"] == whole["splits"]["train"]["documents"] == 60
    report = inspection.inspect_records(first.output)
    assert report.problems == [] and report.facts["train"]["rows"] == manifest["splits"]["train"]["rows"]
    rows = [file["rows"] for file in manifest["splits"]["train"]["files"]]
    assert max(rows) - min(rows) <= 1


CONTINUED = 10  # ids from here on continue a word


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("static") / "vocab.txt"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcde", *(f"##{letter}" for letter in "fghij")]
    path.write_text("\n".join(tokens) + "\n")
    return tokenization.load(str(path))


def masker(tokenizer, seed, **changes):
    fields = dict(masked_lm_prob=0.15, max_predictions_per_seq=20, whole_word_mask=False)
    return google_rows.Masker(tokenizer, fields | changes, random.Random(seed))


SIDE = st.lists(st.integers(5, 14), min_size=1, max_size=30)
RULES = [{}, {"whole_word_mask": True}]


@given(first=SIDE, second=SIDE, seed=st.integers(0, 99), rule=st.sampled_from(RULES), most=st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_masks(tokenizer, first, second, seed, rule, most):
    ids = [2, *first, 3, *second, 3]
    masked, positions, labels = masker(tokenizer, seed, max_predictions_per_seq=most, **rule)(ids)
    assert positions == sorted(set(positions))
    assert labels == [ids[position] for position in positions]
    assert not {2, 3} & set(labels)
    wanted = min(most, max(1, round(0.15 * len(ids))))
    assert len(masked) == len(ids) and len(positions) <= wanted
    assert rule or len(positions) == wanted
    changed = [p for p, (new, old) in enumerate(zip(masked, ids, strict=True)) if new != old]
    assert set(changed) <= set(positions)
    if rule:  # with the pieces of a word go all of it
        for position in range(1, len(ids)):
            joined = ids[position] >= CONTINUED and ids[position - 1] not in (2, 3)
            assert not joined or (position in positions) == (position - 1 in positions)


GOLDENS = {"tokens": "e2248568724c3621", "whole-words": "c4899572476c1957"}


@pytest.mark.parametrize("rule, golden", list(zip(RULES, GOLDENS.values(), strict=True)), ids=GOLDENS)
def test_bytes_of_a_large_vocabulary(tmp_path, rule, golden):
    """Ids of one, two and three bytes, and continuations whose words were truncated."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    names += [f"{'##' * (n % 3 == 0)}w{n}" for n in range(70_000)]
    (tmp_path / "vocab.txt").write_text("\n".join(names) + "\n")
    large = tokenization.load(str(tmp_path / "vocab.txt"))
    rng = random.Random(3)
    documents = [
        [[rng.randrange(1, len(names)) for _ in range(rng.randint(1, 40))] for _ in range(rng.randint(1, 30))]
        for _ in range(40)
    ]
    fields = dict(max_seq_length=300, max_predictions_per_seq=45, masked_lm_prob=0.15, short_seq_prob=0.1)
    fields |= dict(whole_word_mask=False) | rule
    rng = random.Random(4)
    content = [one.encode(300, 45) for one in google_rows.instances(documents, large, fields, rng, 3)]
    rng.shuffle(content)
    assert hashlib.sha256(b"".join(content)).hexdigest()[:16] == golden
