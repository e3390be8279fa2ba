"""Google records: the bytes of a row, rows of any writer, and what is told of those that cannot be."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import google_records
from support.google_records import LENGTH, PREDICTIONS, example

from bert_jax.data import cache, google, records
from bert_jax.errors import UserError
from data_pipelines.stages import google_rows


@pytest.fixture
def foreign(tmp_path):
    """Writes a directory of records without a manifest; returns a function that opens it."""
    vocab = google_records.write_vocabulary(tmp_path / "vocab.txt")

    def opened(*examples, name="tf_examples.tfrecord", split="train", vocab=vocab, **options):
        google_records.write(tmp_path / "records" / name, examples)
        return records.open_dataset(str(tmp_path / "records"), split, vocab, **options)

    return opened


def encode(rows):
    """The records of (ids, first length, positions, labels, next-sentence label) each."""
    return [google_rows.Instance(*row).encode(LENGTH, PREDICTIONS) for row in rows]


@pytest.mark.long
@given(data=st.data())
@settings(deadline=None, max_examples=30)
def test_rows_come_back(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("google")
    vocab = google_records.write_vocabulary(folder / "vocab.txt", 300)
    ids = st.lists(st.integers(4, 299), min_size=1, max_size=4)
    rows = data.draw(st.lists(st.tuples(ids, ids, st.integers(0, 1)), min_size=1, max_size=5))
    made = []
    for first, second, label in rows:
        tokens = [2, *first, 3, *second, 3]
        chosen = st.sets(st.integers(0, len(tokens) - 1), max_size=PREDICTIONS)
        positions = sorted(data.draw(chosen))
        made.append((tokens, len(first) + 2, positions, [tokens[p] for p in positions], label))
    google_records.write(folder / "records" / "a.tfrecord", encode(made))
    dataset = records.open_dataset(str(folder / "records"), "train", vocab)
    batch = dataset.batch(np.array([-1, *range(len(made))]))
    for i, (tokens, first, positions, labels, nsp) in enumerate([([], 0, [], [], -1), *made]):
        slots = [0] * (PREDICTIONS - len(positions))
        assert batch["input_ids"][i].tolist() == tokens + [0] * (LENGTH - len(tokens))
        assert (batch["lengths"][i], batch["starts"][i, 0]) == (len(tokens), 0 if i else LENGTH)
        assert (batch["first_lengths"][i, 0], batch["next_sentence_labels"][i, 0]) == (first, nsp)
        assert batch["masked_positions"][i].tolist() == positions + slots
        assert batch["masked_labels"][i].tolist() == labels + slots
        assert batch["masked_weights"][i].tolist() == [1.0] * len(positions) + slots


def test_the_tokens_before_they_were_masked(foreign):
    masked = foreign(example(masks=((1, 7), (4, 8))), example(masks=((2, 5),))).batch(np.array([0, 1, -1]))
    batch = google.without_masks(masked)
    assert batch["input_ids"][:, :6].tolist() == [[2, 7, 10, 3, 8, 3], [2, 9, 5, 3, 11, 3], [0] * 6]
    assert batch.keys() == {name for name in masked if not name.startswith("masked_")}
    assert masked["input_ids"][0, :3].tolist() == [2, 9, 10]  # not changed
    assert google.without_masks(batch).keys() == batch.keys()


def test_newer_names_and_no_next_sentence_label(foreign):
    dataset = foreign(example(newer=True, next_sentence_labels=None, second=(11, 12, 13)))
    batch = dataset.batch(np.array([0]))
    assert batch["input_ids"][0, :8].tolist() == [2, 9, 10, 3, 11, 12, 13, 3]
    assert batch["first_lengths"].tolist() == [[4]] and batch["next_sentence_labels"].tolist() == [[-1]]
    assert dataset.manifest["nsp"] == "none"


def test_files_by_name(foreign, tmp_path):
    foreign(example(), name="part.tfrecord-00000-of-00002")
    foreign(example(), example(), name="part.tfrecord-00001-of-00002")
    (tmp_path / "records" / "notes.txt").touch()
    google_records.write(tmp_path / "records" / "eval.tf_record", [example()] * 4)
    dataset = foreign(example(), name="z.tfrecord")
    assert [len(file) for file in dataset.files] == [1, 2, 1]
    assert len(foreign(example(), name="z.tfrecord", split="eval")) == 4
    assert (tmp_path / "records" / "part.tfrecord-00001-of-00002.index").exists()


def test_files_at_a_url_are_copied_once(foreign, tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_JAX_RECORD_CACHE", str(tmp_path / "cache"))
    foreign(example(), name="part.tfrecord-00000-of-00002")
    rows = len(foreign(example(), example(), name="part.tfrecord-00001-of-00002"))
    url, said = f"file://{tmp_path}/records", []
    copy = cache.localize(f"{url}, {url}/", said.append).split(",")[0]
    assert copy.startswith(f"{tmp_path}/cache/records-") and len(said) == 1 and "fetching 2 files" in said[0]
    assert len(records.open_dataset(copy, "train", f"{tmp_path}/vocab.txt")) == rows == 3
    os.truncate(os.path.join(copy, "part.tfrecord-00001-of-00002"), 9)
    assert cache.localize(url, said.append) == copy and "fetching 1 file of" in said[1]
    foreign(example(), name="part.tfrecord-00001-of-00002")
    changed = cache.localize(url, said.append)
    assert changed != copy and len(records.open_dataset(changed, "train", f"{tmp_path}/vocab.txt")) == 2


BAD = {
    "an-id": (dict(first=(9, 100)), "the token id 100 is outside the vocabulary of 100"),
    "a-label-id": (dict(masks=((1, 700),)), "the token id 700 is outside the vocabulary of 100"),
    "a-position": (dict(masks=((6, 7),)), "a masked position is outside of the row's tokens"),
    "segments": (dict(segment_ids=[0, 1, 0, 1, 1, 1] + [0] * 6), "segment_ids are not zeros and then ones"),
    "a-weight": (dict(masked_lm_weights=[1.0, -1.0, 0.0]), "a weight is not positive"),
    "short": (dict(input_mask=[1] * 5), "input_mask does not have 12 values"),
    "no-feature": (dict(masked_lm_ids=None), "masked_lm_ids does not have 3 values"),
}


@pytest.mark.parametrize("fields, message", BAD.values(), ids=BAD)
def test_rows_that_cannot_be(foreign, fields, message):
    with pytest.raises(UserError) as caught:
        foreign(example(), example(**fields), example())
    assert message in str(caught.value) and "tf_examples.tfrecord" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_inspecting_records_of_others(foreign, tmp_path, capsys):
    foreign(*[example(first=(9, 10 + i), masks=((1, 9), (4, 8)), label=i % 2) for i in range(80)])
    vocab = f"--vocab={tmp_path / 'vocab.txt'}"
    code, report = google_records.inspect(capsys, tmp_path / "records", vocab)
    train = report["facts"]["train"]
    assert (code, report["kind"], report["problems"]) == (0, "google records", [])
    assert (train["rows"], train["predictions"], train["kept_share"]) == (80, 160, 0.5)
    assert train["random_next_share"] == 0.5 and train["duplicate_rows"] == 0
    assert report["examples"][0] == "(next) [CLS] w4 w5 [SEP] w6 [SEP] <- 1 w4, 4 w3"
    code, report = google_records.inspect(capsys, tmp_path / "records" / "tf_examples.tfrecord")
    assert (code, report["examples"], report["kind"]) == (0, [], "google records")
