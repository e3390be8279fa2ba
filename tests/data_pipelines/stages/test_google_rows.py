"""Statically masked records: the reference's known answers through the command line, and its masks' rules."""

import collections
import hashlib
import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import reference_instances

from bert_jax import cli, tokenization
from bert_jax.data import inspection, manifests, records, tfrecord
from bert_jax.data.google import encoding
from data_pipelines import build
from data_pipelines.stages import buckets, google_instances, shards


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
        # tensorflow/models' functions with the sizes of n-grams drawn from the same generator.
        (["--max_ngram=3"], 1, (58, 31, 916, "d1fca21863572632")),
    ],
    ids=["tokens", "tokens-in-7-files", "whole-words", "n-grams"],
)
def test_known_answers_of_the_reference(shared_data, tmp_path, flags, shards, expected):
    arguments = [
        f"--input={shared_data / 'sample_text.txt'}",
        f"--vocab={shared_data / 'vocab' / 'bert-base-uncased-vocab.txt'}",
        f"--output_dir={tmp_path / 'out'}",
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
    train = manifests.read(str(tmp_path / "out"), "google")["splits"]["train"]
    assert (train["rows"], train["random_next"], train["predictions"]) == expected[:3]
    assert len(train["files"]) == shards


@pytest.fixture
def google_options(corpus, vocabulary, tmp_path):
    numbers = itertools.count()

    def made(**fields):
        output = str(tmp_path / f"out{next(numbers)}")
        inputs = (str(corpus / "*.txt"),)
        return build.Options(
            input=inputs,
            vocab=vocabulary,
            output_dir=output,
            schema="google",
            max_seq_length=48,
            seed=7,
            **fields,
        )

    return made


@pytest.mark.long
def test_defaults_are_the_references(google_options):
    manifest = build.build(google_options()).manifest
    assert (manifest["dupe_factor"], manifest["max_predictions_per_seq"], manifest["masked_lm_prob"]) == (
        10, 20, 0.15,
    )  # fmt: skip
    assert list(manifest["splits"]) == ["train"] and manifest["splits"]["train"]["documents"] == 60


@pytest.mark.long
def test_several_buckets_on_several_workers(google_options, monkeypatch):
    """Each bucket is shuffled by itself; the bytes are the same whoever works, and all are sound."""
    first = google_options(num_shards=3, dupe_factor=2)
    other = google_options(num_shards=3, dupe_factor=2)
    whole = build.build(google_options(dupe_factor=2)).manifest
    monkeypatch.setattr(buckets, "BUCKET_TOKENS", (500, 500))
    monkeypatch.setattr(buckets, "MIN_BUCKET_DOCUMENTS", 3)
    tasks = []
    with monkeypatch.context() as patch:
        make = shards.make_shard
        patch.setattr(shards, "make_shard", lambda task: (tasks.append(task), make(task))[1])
        manifest = build.build(first).manifest
    read = [path for task in tasks for path, *_ in task.parts]
    assert len(set(read)) > 3 and len(read) <= len(set(read)) + 2  # two files begin within a bucket
    assert build.build(other).manifest == manifest
    assert digest(read_instances(first.output_dir)) == digest(read_instances(other.output_dir))
    assert manifest["splits"]["train"]["documents"] == whole["splits"]["train"]["documents"] == 60
    report = inspection.inspect_google_records(first.output_dir)
    assert report.problems == [] and report.facts["train"]["rows"] == manifest["splits"]["train"]["rows"]
    rows = [file["rows"] for file in manifest["splits"]["train"]["files"]]
    assert max(rows) - min(rows) <= 1


def test_the_report_has_the_settings_and_compares_the_vocabulary(google_options, vocabulary, tmp_path):
    options = google_options(dupe_factor=1, clean="exact")
    manifest = build.build(options).manifest
    file = manifest["splits"]["train"]["files"][0]["name"]
    other = tmp_path / "other.txt"
    other.write_text(Path(vocabulary).read_text() + "more\n")
    for path in (options.output_dir, os.path.join(options.output_dir, file)):
        report = inspection.inspect_google_records(path, str(vocabulary))
        assert report.problems == [] and report.facts["input_format"] == "text"
        assert report.facts["cleaned"] == manifest["cleaned"]
        (problem,) = inspection.inspect_google_records(path, str(other)).problems
        assert "other.txt is not the vocabulary of these records" in problem


CONTINUED = 10  # ids from here on continue a word


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("static") / "vocab.txt"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcde", *(f"##{letter}" for letter in "fghij")]
    path.write_text("\n".join(tokens) + "\n")
    return tokenization.load(str(path))


def masker(tokenizer, seed, **changes):
    fields = dict(masked_lm_prob=0.15, max_predictions_per_seq=20, whole_word_mask=False, max_ngram=0)
    return reference_instances.Masker(tokenizer, fields | changes, random.Random(seed))


SIDE = st.lists(st.integers(5, 14), min_size=1, max_size=30)
RULES = [{}, {"whole_word_mask": True}, {"max_ngram": 1}, {"max_ngram": 3}]


@given(first=SIDE, second=SIDE, seed=st.integers(0, 99), rule=st.sampled_from(RULES), most=st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_masks(tokenizer, first, second, seed, rule, most):
    ids = [2, *first, 3, *second, 3]
    masked = masker(tokenizer, seed, max_predictions_per_seq=most, **rule)(ids)
    assert masked.positions == sorted(set(masked.positions))
    assert masked.labels == [ids[position] for position in masked.positions]
    assert not {2, 3} & set(masked.labels)
    wanted = min(most, max(1, round(0.15 * len(ids))))
    assert len(masked.ids) == len(ids) and len(masked.positions) <= wanted
    assert rule or len(masked.positions) == wanted
    changed = [p for p, (new, old) in enumerate(zip(masked.ids, ids, strict=True)) if new != old]
    assert set(changed) <= set(masked.positions)
    if "max_ngram" in rule:  # with the pieces of a word go all of it
        for position in range(1, len(ids)):
            joined = ids[position] >= CONTINUED and ids[position - 1] not in (2, 3)
            assert not joined or (position in masked.positions) == (position - 1 in masked.positions)


@pytest.mark.long
def test_replacements_of_grams_are_alike_and_sizes_are_weighted(tokenizer):
    mask = masker(tokenizer, 0, max_ngram=3, masked_lm_prob=0.03)
    rng, sizes, kinds = random.Random(0), collections.Counter(), collections.Counter()
    for _ in range(3000):
        ids = [2, *(rng.randint(5, 9) for _ in range(97)), 3, 5, 3]
        masked = mask(ids)
        runs = np.split(masked.positions, np.flatnonzero(np.diff(masked.positions) > 1) + 1)
        if len(runs) == 1 and len(masked.positions) == 3:  # one gram of three, or smaller ones in touch
            shown = {masked.ids[position] for position in masked.positions}
            kinds["alike" if shown == {4} else "mixed" if 4 in shown else "other"] += 1
        sizes[len(runs)] += 1
    assert kinds["alike"] > 0.7 * kinds.total()
    # Three tokens come as a gram of three in 2 of 11 draws, and as two or three grams in the others.
    assert 0.15 < sizes[1] / 3000 < 0.3


WORDS = st.lists(st.integers(5, 14), min_size=1, max_size=12)
DOCUMENTS = st.lists(st.lists(WORDS, min_size=1, max_size=7), min_size=2, max_size=6)
SETTINGS = st.fixed_dictionaries(
    {
        "max_seq_length": st.sampled_from([5, 6, 11, 24, 48, 150]),
        "max_predictions_per_seq": st.integers(1, 20),
        "masked_lm_prob": st.sampled_from([0.01, 0.15, 0.5, 0.99]),
        "short_seq_prob": st.sampled_from([0.0, 0.1, 1.0]),
        "dupe_factor": st.integers(1, 4),
        "whole_word_mask": st.booleans(),
        "max_ngram": st.sampled_from([0, 0, 1, 3, 30]),
    }
)


def compiled_records(documents, tokenizer, fields, rng):
    """The records of all instances with their frames, and the order in which they are to be."""
    made = google_instances.Instances(documents, tokenizer, fields, rng)
    content = []
    for rows in made.blocks():
        buffer, edges = encoding.encode(rows.features())
        content += [buffer[low:high].tobytes() for low, high in itertools.pairwise(edges)]
    return content, made.order(len(content)).tolist()


def expected_records(documents, tokenizer, fields, rng):
    shape = fields["max_seq_length"], fields["max_predictions_per_seq"]
    content = [
        tfrecord.frame(reference_instances.encode(instance, *shape))
        for instance in reference_instances.instances(documents, tokenizer, fields, rng)
    ]
    order = list(range(len(content)))
    rng.shuffle(order)
    return content, order


@pytest.mark.long
@given(documents=DOCUMENTS, fields=SETTINGS, seed=st.integers(0, 1 << 40), block=st.sampled_from([1, 300]))
@settings(deadline=None, max_examples=300)
def test_compiled_instances_are_those_of_plain_python(tokenizer, documents, fields, seed, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(google_instances, "_BLOCK_TOKENS", block)
        made = compiled_records(documents, tokenizer, fields, random.Random(seed))
    assert made == expected_records(documents, tokenizer, fields, random.Random(seed))


@pytest.mark.parametrize("rule", RULES, ids=["tokens", "whole-words", "unigrams", "trigrams"])
def test_many_compiled_instances_of_a_large_vocabulary(tmp_path, rule):
    """Ids of one, two and three bytes, and more draws than the generator makes at once."""
    names = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *(f"{'##' * (n % 3 == 0)}w{n}" for n in range(70_000)),
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(names) + "\n")
    large = tokenization.load(str(tmp_path / "vocab.txt"))
    rng = random.Random(3)
    documents = [
        [[rng.randrange(1, len(names)) for _ in range(rng.randint(1, 40))] for _ in range(rng.randint(1, 30))]
        for _ in range(40)
    ]
    fields = dict(max_seq_length=300, max_predictions_per_seq=45, masked_lm_prob=0.15, short_seq_prob=0.1)
    fields |= dict(dupe_factor=3, whole_word_mask=False, max_ngram=0) | rule
    made = compiled_records(documents, large, fields, random.Random(4))
    assert made == expected_records(documents, large, fields, random.Random(4))
    assert len(made[0]) > 100


def test_packed_records_and_help_need_no_numba():
    program = (
        "import sys, data_pipelines.build, data_pipelines.stages.google_rows, bert_jax.cli as cli\n"
        "try: cli.main(['data', '--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in sys.modules if name in ('numba', 'llvmlite')])"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert printed.stdout.splitlines()[-1] == "[]"
