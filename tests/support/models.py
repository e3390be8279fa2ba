"""Tiny models and packed batches that several tests share."""

import numpy as np

from bert_jax.models import config
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.masking import MaskingOptions, Vocabulary

VOCAB, MASK, SPECIAL = 101, 4, (0, 2, 3)  # [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4


def tiny_config(**overrides):
    fields = dict(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=8,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    return config.from_dict(fields | overrides)


def small_of(family):
    """The config of a model of a family with three layers of 8."""
    small = dict(vocab_size=30, hidden_size=8, num_attention_heads=2, intermediate_size=12)
    small |= dict(num_hidden_layers=3, max_position_embeddings=16)
    size = next(iter(family.sizes.values()), {})
    named = {name: value for name, value in size.items() if name not in small}
    if "position_buckets" in named:
        named["position_buckets"] = 8
    found = config.from_dict({"model_type": family.model_type, **family.fixed, **named, **small})
    return found.replace(embedding_size=6) if found.embedding_size else found


def tiny_task(strategy="token", **overrides):
    continuation = np.arange(VOCAB) % 3 == 0
    vocabulary = Vocabulary(overrides.get("vocab_size", VOCAB), MASK, SPECIAL, continuation)
    return MaskedLM(
        tiny_config(**overrides), vocabulary, MaskingOptions(strategy=strategy, max_predictions=8)
    )


def packed_batch(rows=8, length=32, slots=3, seed=0, vocab=VOCAB):
    """Random packed rows: one to `slots` sequences each, some padding, both labels."""
    rng = np.random.default_rng(seed)
    batch = {
        "input_ids": np.zeros((rows, length), np.int32),
        "lengths": np.zeros(rows, np.int32),
        "starts": np.full((rows, slots), length, np.int32),
        "first_lengths": np.zeros((rows, slots), np.int32),
        "next_sentence_labels": np.full((rows, slots), -1, np.int32),
        "row_ids": np.arange(rows, dtype=np.int32),
    }
    for row in range(rows):
        position = 0
        for slot in range(rng.integers(1, slots + 1)):
            size = int(rng.integers(7, length // slots + 1))
            first = int(rng.integers(3, size - 2))
            ids = rng.integers(5, vocab, size)
            ids[0], ids[first - 1], ids[-1] = 2, 3, 3
            batch["input_ids"][row, position : position + size] = ids
            batch["starts"][row, slot], batch["first_lengths"][row, slot] = position, first
            batch["next_sentence_labels"][row, slot] = rng.integers(0, 2)
            position += size
        batch["lengths"][row] = position
    return batch
