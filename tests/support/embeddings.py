"""A model with drawn weights and the vocabulary of a few words, in memory."""

import numpy as np
from scipy import special

from bert_jax import tokenization
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
    config = model.config
    params = {name: array.astype(np.float64) for name, array in model.params.items()}

    def norm(x, name, layer=...):
        centered = x - x.mean(-1, keepdims=True)
        x = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + config.layer_norm_eps)
        return x * params[f"{name}/scale"][layer] + params[f"{name}/bias"][layer]

    tables = [params[f"encoder/embeddings/{name}_embeddings"] for name in ("word", "token_type", "position")]
    x = norm(tables[0][row] + tables[1][types] + tables[2][: len(row)], "encoder/embeddings/layer_norm")
    states, weights = [x], []
    stack = "encoder/layers/stack/layer/"
    for layer in range(config.num_hidden_layers):

        def dense(x, name, rule, layer=layer):
            kernel = params[f"{stack}{name}/kernel"][layer]
            return np.einsum(rule, x, kernel) + params[f"{stack}{name}/bias"][layer]

        query, key, value = (
            dense(x, name, "lh,hnd->lnd").swapaxes(0, 1) for name in ("query", "key", "value")
        )
        logits = query @ key.swapaxes(1, 2) / np.sqrt(config.head_dim)
        if config.causal:
            logits = np.where(np.tri(len(row)), logits, -np.inf)
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        weights.append(shares / shares.sum(-1, keepdims=True))
        context = dense(weights[-1] @ value, "attention_output", "nld,ndh->lh")
        x = norm(x + context, f"{stack}attention_norm", layer)
        inner = dense(x, "intermediate", "lh,hi->li")
        inner *= 0.5 * (1 + special.erf(inner / np.sqrt(2)))
        x = norm(x + dense(inner, "output", "li,ih->lh"), f"{stack}output_norm", layer)
        states.append(x)
    return np.stack(states), np.stack(weights)
