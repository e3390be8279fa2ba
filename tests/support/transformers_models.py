"""BERTs of transformers and the same ones here; what imports this is skipped where PyTorch is missing."""

import jax
import numpy as np
import pytest

from bert_jax import convert
from bert_jax.checkpoint.leaves import nest
from bert_jax.models import Encoder, sizes
from bert_jax.models.embeddings import Embeddings
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.masking import MaskingOptions, Vocabulary

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCAB = 30522


def random_bert(size, seed=0, spread=True):
    """A BertForPreTraining of a named size, without dropout.

    With `spread` its weights are such that no output is degenerate: attention far from uniform, biases and
    scales of LayerNorm that matter. Without, they are as transformers initialises them.
    """
    torch.manual_seed(seed)
    fields = sizes.named(size).to_dict()
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    theirs = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
        **{name: fields[name] for name in names},
    )
    model = transformers.BertForPreTraining(theirs).eval()
    if spread:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "LayerNorm" in name and name.endswith("weight"):
                    parameter.normal_(1, 0.1)
                elif name.endswith("bias"):
                    parameter.normal_(0, 0.1)
                elif "embeddings" in name:
                    parameter.normal_(0, 0.05)
                else:
                    parameter.normal_(0, parameter.shape[1] ** -0.5)
    return model


def here(model, folder):
    """The same model here, by way of the files that transformers writes: its configuration and parameters.

    Returns:
        EncoderConfig without dropout, nested dict of float32 arrays.
    """
    model.save_pretrained(folder)
    loaded = convert.load(folder)
    config = loaded.config.replace(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return config, nest(loaded.params)


def task(config):
    vocabulary = Vocabulary(config.vocab_size, 103, (0, 101, 102), np.zeros(config.vocab_size, bool))
    return MaskedLM(config, vocabulary, MaskingOptions())


def random_batch(rows, length, predictions, seed=0):
    """Rows of two segments, masked, most of them padded, with both next-sentence labels, as records of the
    `google` schema give them."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(length // 3, length + 1, rows)
    lengths[0] = length
    real = np.arange(length) < lengths[:, None]
    positions = np.array([rng.choice(n, predictions, replace=False) for n in lengths])
    weights = np.float32(rng.random((rows, predictions)) < 0.8)
    return {
        "input_ids": np.int32(rng.integers(1000, VOCAB, (rows, length)) * real),
        "lengths": np.int32(lengths),
        "starts": np.zeros((rows, 1), np.int32),
        "first_lengths": np.int32(rng.integers(2, lengths - 2))[:, None],
        "next_sentence_labels": np.int32(np.arange(rows) % 2)[:, None],
        "masked_positions": np.int32(positions),
        "masked_labels": np.int32(rng.integers(1000, VOCAB, (rows, predictions))),
        "masked_weights": weights,
    }


def torch_inputs(batch, labels=False):
    """What transformers' model takes, of a batch as the records give it."""
    index = np.arange(batch["input_ids"].shape[1])
    real = index < batch["lengths"][:, None]
    arrays = {
        "input_ids": batch["input_ids"],
        "attention_mask": real,
        "token_type_ids": real & (index >= batch["first_lengths"]),
    }
    if labels:
        arrays["labels"] = np.full(real.shape, -100)
        for row, slot in np.argwhere(batch["masked_weights"] > 0):
            arrays["labels"][row, batch["masked_positions"][row, slot]] = batch["masked_labels"][row, slot]
        arrays["next_sentence_label"] = batch["next_sentence_labels"][:, 0]
    return {name: torch.tensor(np.asarray(array, np.int64)) for name, array in arrays.items()}


def apply(model, params, *arrays, **static):
    run = jax.jit(lambda params, *arrays: model.apply({"params": params}, *arrays, **static))
    return jax.tree.map(np.asarray, run(params, *arrays))


def hidden_states(config, params, inputs):
    """[B, L, H] after the embeddings and after each layer, as transformers' `hidden_states`."""
    params = params["encoder"]
    states = [apply(Embeddings(config), params["embeddings"], *inputs[:3], deterministic=True)]
    for layers in range(1, config.num_hidden_layers + 1):
        stack = jax.tree.map(lambda x, n=layers: x[:n], params["layers"])
        encoder = Encoder(config.replace(num_hidden_layers=layers))
        states.append(apply(encoder, params | {"layers": stack}, *inputs))
    return states
