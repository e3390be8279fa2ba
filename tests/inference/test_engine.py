"""The batch shapes that the engine uses for the rows of texts, on 8 CPU devices."""

import collections
import random

import jax.numpy as jnp
import numpy as np
import pytest
from support import small_tokenizers
from support.embeddings import tiny_model

from bert_jax import tokenization
from bert_jax.inference import engine


@pytest.fixture
def computed(tmp_path):
    """Returns an engine that outputs the length and the sum of each row, and the shapes it has computed."""
    shapes = []

    def compute(params, batch, config):
        shapes.append(batch["input_ids"].shape)
        return jnp.stack([batch["lengths"], jnp.sum(batch["input_ids"], axis=1)], axis=-1)

    options = dict(max_seq_length=40, batch_tokens=64)
    return engine.Engine(tiny_model(tmp_path), tiny_model(tmp_path).config, (), compute, **options), shapes


def rows_of(lengths):
    return [engine.Row(np.ones(length, np.int32), length, False) for length in lengths]


@pytest.mark.parametrize(
    "lengths, expected",
    [
        ([3] * 200, {(64, 8): 4}),
        ([11] * 41 + [8] * 80, {(40, 12): 2, (64, 8): 1}),
        # The remaining rows fit into one batch of 40 rows of 12 tokens and need no additional program.
        ([11] * 40 + [8] * 40, {(40, 12): 2}),
        ([11] * 40 + [8] * 41, {(40, 12): 1, (64, 8): 1}),
        ([40] + [3] * 7, {(8, 40): 1}),
        ([40] + [3] * 8, {(8, 40): 2}),
        ([40] + [3] * 16, {(8, 40): 1, (64, 8): 1}),
    ],
)
def test_the_last_rows_share_a_shape(computed, lengths, expected):
    compute, shapes = computed
    found = {}
    for numbers, outputs in compute.outputs(rows_of(lengths)):
        found |= zip(numbers.tolist(), outputs, strict=True)
    assert dict(collections.Counter(shapes)) == expected
    assert [found[i].tolist() for i in range(len(lengths))] == [[n, n] for n in lengths]


def test_after_a_warm_up_few_rows_make_small_batches(computed):
    compute, shapes = computed
    compute.warm_up(32, lambda rows, size: {})
    shapes.clear()
    for _ in compute.outputs(rows_of([40] * 8 + [3] * 8), total=16):
        pass
    assert shapes == [(8, 40), (32, 16)]


@pytest.fixture(scope="module")
def vocabulary_files(tmp_path_factory):
    return small_tokenizers.write(tmp_path_factory.mktemp("vocabularies"))


@pytest.mark.parametrize("name", small_tokenizers.NAMES)
def test_the_rows_of_long_texts_are_the_beginnings_of_all_their_tokens(vocabulary_files, name):
    path, options = vocabulary_files[name]
    tokenizer, rng, limit = tokenization.load(path, **options), random.Random(0), 8
    mask = tokenizer.special_tokens["mask"]
    units = ["the cat", "zx" * 150, "  ", "\n", "\u0301", "\x00 ", "\u4e2d", "9, ", "\u03a3 a", f" {mask}"]
    texts = ["".join(rng.choices(units + [" "] * 4, k=rng.randint(0, 200))) for _ in range(150)]
    texts += ["x" * 5000, "zx\n" * 3000, " " * 5000 + "a cat"]
    whole = tokenizer.encode_batch(texts, allow_special=[mask])
    room = tokenizer.layout.room(limit, pair=False)
    for row, ids in zip(engine.text_rows(tokenizer, texts, limit, [mask]), whole, strict=True):
        assert row.token_ids.tolist() == tokenizer.layout.row(ids[:room]).tolist()
        assert row.cut == (len(ids) > room)
