"""Models of transformers and the same ones here; what imports this is skipped where PyTorch is missing."""

import functools
import inspect

import jax
import numpy as np
import pytest

from bert_jax import convert
from bert_jax.checkpoint.leaves import nest
from bert_jax.convert import families
from bert_jax.models import Encoder
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.masking import MaskingOptions, Vocabulary

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCAB = 2048


def random_model(cls, spread=True, seed=0, **fields):
    """A model of transformers, without dropout.

    With `spread` its weights are such that no output is degenerate: attention far from uniform, biases and
    scales of norms that matter. Without, they are as transformers initializes them.
    """
    torch.manual_seed(seed)
    make = getattr(transformers, cls)
    theirs = make.config_class(vocab_size=VOCAB, attn_implementation="eager", **fields)
    for name, value in vars(theirs).items():
        if "dropout" in name and isinstance(value, float) and not name.startswith("summary"):
            setattr(theirs, name, 0.0)
    model = make(theirs).eval()
    if spread:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name.lower() and name.endswith("weight"):
                    parameter.normal_(1, 0.1)
                elif parameter.ndim == 1:
                    parameter.normal_(0, 0.1)
                else:
                    parameter.normal_(0, 0.05 if "embeddings" in name else parameter.shape[1] ** -0.5)
    return model


def here(model, folder):
    """The same model here, by way of the files that transformers writes: its configuration and parameters.

    Returns:
        EncoderConfig, nested dict of float32 arrays.
    """
    model.save_pretrained(folder)
    loaded = convert.load(folder)
    return loaded.config.replace(dtype="float32"), nest(loaded.params)


def objective(config):
    """Masked LM, with the next-sentence head where the family is pre-trained with it."""
    family = families.of(config)
    vocabulary = Vocabulary(config.vocab_size, 103, (0, 101, 102), np.zeros(config.vocab_size, bool))
    return MaskedLM(
        config,
        vocabulary,
        MaskingOptions(),
        token_types=family.tokenizer.template.types,
        head=family.masked_lm,
        next_sentence_head="pretraining" in family.heads,
    )


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
        "row_ids": np.arange(rows, dtype=np.int32),
    }


def torch_inputs(model, batch, labels=False):
    """The arguments of a model of transformers, of a batch as the records give it."""
    index = np.arange(batch["input_ids"].shape[1])
    real = index < batch["lengths"][:, None]
    taken = inspect.signature(model.forward).parameters
    arrays = {
        "input_ids": np.where(real, batch["input_ids"], model.config.pad_token_id or 0),
        "attention_mask": real,
    }
    if "token_type_ids" in taken and model.config.type_vocab_size > 1:
        arrays["token_type_ids"] = real & (index >= batch["first_lengths"])
    if labels:
        arrays["labels"] = np.full(real.shape, -100)
        for row, slot in np.argwhere(batch["masked_weights"] > 0):
            arrays["labels"][row, batch["masked_positions"][row, slot]] = batch["masked_labels"][row, slot]
        for name in ("next_sentence_label", "sentence_order_label"):
            if name in taken:
                arrays[name] = batch["next_sentence_labels"][:, 0]
    return {name: torch.tensor(np.asarray(array, np.int64)) for name, array in arrays.items()}


def apply(model, params, *arrays, **static):
    run = jax.jit(lambda params, *arrays: model.apply({"params": params}, *arrays, **static))
    return jax.tree.map(np.asarray, run(params, *arrays))


def hidden_states(config, params, inputs):
    """[B, L, H] after the embeddings and after each layer, as transformers' `hidden_states`."""
    method = functools.partial(Encoder.every_layer, collect=lambda x: x)
    return apply(Encoder(config), params["encoder"], *inputs, method=method)
