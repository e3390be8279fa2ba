"""A model with drawn weights and the vocabulary of a few words, in memory."""

import numpy as np
from support import encoder_oracle

from bert_jax import tokenization
from bert_jax.checkpoint.leaves import nest
from bert_jax.convert import Model
from bert_jax.models import assembled
from bert_jax.models.config import from_dict

WORDS = "red green blue one two three cat dog bird the a is big small $ 5 .".split()
TEXTS = ["the cat is big", "a dog", "", "one two three " * 7, "the dogs is small .", "blue"] * 3 + [
    "red " * 40
]


def tiny_model(directory, groups=("encoder", "pooler"), head="none", **fields):
    path = directory / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s"]) + "\n")
    tokenizer = tokenization.load(path)
    sizes = dict(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=40,
    )
    config = from_dict(sizes | fields)
    rng = np.random.default_rng(0)
    params = {
        name: rng.normal(float(name.endswith("scale")), 0.3, shape).astype(np.float32)
        for name, shape in assembled.shapes(config, groups).items()
    }
    return Model(config, params, head, tokenizer=tokenizer, source="a tiny model")


def by_hand(model, text, text_b=None):
    """BERT in NumPy and float64, one text without padding: states [layers + 1, L, H] and attention
    probabilities [layers, heads, L, L]."""
    tokenizer = model.tokenizer
    row, types = [tokenizer.cls_id], [0]
    for number, part in enumerate(tokenizer.encode_batch([text] if text_b is None else [text, text_b])):
        row += [*part, tokenizer.sep_id]
        types += [number] * (len(part) + 1)
    return of_row(model, row, types)


def of_row(model, row, types):
    """As `by_hand`, of tokens."""
    params = nest({name: array.astype(np.float64) for name, array in model.params.items()})["encoder"]
    one = np.ones(len(row), int)
    states, weights = encoder_oracle.states(model.config, params, row, types, np.cumsum(one) - 1, one)
    return np.stack(states), np.stack(weights)
