"""The tokens of records, and whether a checkpoint has their vocabulary."""

import numpy as np
import pytest
from support import processes

from bert_jax import tokenization
from bert_jax.data import records
from bert_jax.errors import UserError
from bert_jax.tokenization import templates

UNCASED = {"lower_case": True, "strip_accents": True}


def test_counts_of_records(tmp_path):
    dataset = records.open_dataset(str(processes.write_records(tmp_path / "records")), "train")
    batch = dataset.batch(np.arange(len(dataset)))
    real = [ids[:length] for ids, length in zip(batch["input_ids"], batch["lengths"], strict=True)]
    counts = records.count_tokens(dataset, 100)
    np.testing.assert_array_equal(counts, np.bincount(np.concatenate(real), minlength=100))
    some = records.count_tokens(dataset, 100, limit=2 * 32)  # the first and the last row
    np.testing.assert_array_equal(some, np.bincount(np.concatenate([real[0], real[-1]]), minlength=100))


def test_the_loss_of_frequencies():
    known, counts = np.array([0, 3, 1, 0]), np.array([0, 1, 1, 2])
    # With 1 added to each, the shares are 1/8, 4/8, 2/8 and 1/8.
    assert records.unigram_loss(counts, known) == pytest.approx(np.log([2, 4, 8, 8]).sum() / 4)


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """A tokenizer of one vocabulary, by its settings."""
    vocabulary = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "é"]) + "\n")

    def of(**settings):
        return tokenization.load(vocabulary, **UNCASED | settings)

    return of


@pytest.mark.parametrize(
    "theirs, ours, said",
    [
        ({}, {"lower_case": False, "strip_accents": False}, "lower_case=True"),
        ({"lower_case": False, "strip_accents": False}, {}, "lower_case=False"),
        ({}, {"strip_accents": False}, "strip_accents=True"),
        ({"template": templates.ROBERTA}, {}, "template=cls:0 A:0 sep:0 sep:0 B:0 sep:0"),
    ],
)
def test_records_of_another_text_are_an_error(theirs, ours, said, load):
    with pytest.raises(UserError) as refused:
        records.check_vocabulary("init_from", "run", load(**theirs), load(**ours))
    assert said in str(refused.value)


@pytest.mark.parametrize("theirs", [{}, {"strip_accents": False}])
def test_records_of_the_same_text_are_accepted(theirs, load):
    records.check_vocabulary("init_from", "run", load(**theirs), load())
