"""Changes the shape of a complete model: its vocabulary rows, positions, layers, dtype or head."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from bert_jax.convert.model import Model
from bert_jax.errors import UserError
from bert_jax.models.config import EncoderConfig
from bert_jax.models.parameters import LAYERS, abstract, parameter_slices

WORDS = "encoder/embeddings/word_embeddings"
POSITIONS = "encoder/embeddings/position_embeddings"
BIASES = ("mlm/bias", "mlm/decoder/bias")  # of the masked LM head; a model has one of them, or none
KERNEL = "mlm/decoder/kernel"  # [H, vocabulary], of a head that does not use the word embeddings


def pad_vocabulary(model: Model, multiple: int) -> Model:
    """Pads the vocabulary with rows up to a multiple of `multiple`, so that it can be sharded evenly.

    The added word embeddings are 0 and their masked LM biases are -1e4: in float32, bfloat16 and float16, the
    softmax assigns exactly 0 to an added id. The loss and all gradients are therefore unchanged, and added
    rows and biases have zero gradients. Adam does not change them; LAMB sees the larger norm of the biases.
    """
    rows = model.config.vocab_size
    added = -rows % multiple
    if not added:
        return model
    if model.has_masked_lm and not any(name in model.params for name in BIASES):
        raise UserError("--pad_vocab_to needs a masked LM head with a bias, or --head=none")

    def padded(x: np.ndarray) -> np.ndarray:
        # Finite in float16 and bfloat16; in float32, exp underflows to 0 below -104.
        fill = -1e4 if x.ndim == 1 else 0
        return np.concatenate([x, np.full((added, *x.shape[1:]), fill, x.dtype)])

    return change_rows(model, rows + added, padded)


def change_rows(model: Model, size: int, change: Callable[[np.ndarray], np.ndarray], **others: Any) -> Model:
    """Returns the model with `size` rows of the vocabulary, and with other fields replaced.

    `change` returns the new rows of the word embeddings [vocabulary, H], of the masked LM biases
    [vocabulary], or of the masked LM head's own matrix [vocabulary, H].
    """
    params = dict(model.params)
    for name in (WORDS, *BIASES):
        if name in params:
            params[name] = change(params[name])
    if KERNEL in params:
        params[KERNEL] = np.ascontiguousarray(change(params[KERNEL].T).T)
    return model.replace(params=params, config=model.config.replace(vocab_size=size), **others)


def unpad_vocabulary(model: Model) -> Model:
    """Removes the rows beyond the tokenizer's vocabulary, whatever their values."""
    size = model.require_tokenizer().vocab_size
    return change_rows(model, size, lambda rows: rows[:size])


def resize_positions(model: Model, positions: int) -> Model:
    """Changes the number of tokens of the longest sequence.

    A longer table of position embeddings repeats the table from its first row on (Beltagy et al. 2020,
    section 5): text that fitted before gives the same results, and longer text needs further training. A
    shorter table keeps the first rows. Rows before the first token's (RoBERTa's `position_offset`) do not
    change. A model without such a table, such as ModernBERT and DeBERTa, keeps its parameters.
    """
    offset, params = model.config.position_offset, dict(model.params)
    if POSITIONS in params:
        before, table = np.split(params[POSITIONS], [offset])
        params[POSITIONS] = np.concatenate([before, table[np.arange(positions) % len(table)]])
    changes = {"max_position_embeddings": positions + offset}
    if model.config.position == "disentangled":
        changes["max_relative_positions"] = model.config.longest_distance
    config = model.config.replace(**changes)
    sentence = model.sentence
    if sentence and sentence.max_seq_length:
        # A limit equal to the number of positions follows it; another limit changes only if it is too long.
        cut = sentence.max_seq_length
        cut = 0 if cut >= model.config.max_seq_length else min(cut, config.max_seq_length)
        sentence = dataclasses.replace(sentence, max_seq_length=cut)
    return model.replace(params=params, config=config, sentence=sentence)


def select_layers(model: Model, layers: Sequence[int]) -> Model:
    """Returns the model with only the given layers, numbered from 0, in the given order.

    DistilBERT is initialized with one out of every two layers of its teacher: of 12 layers, 0, 2, 4, 7, 9 and
    11 (Sanh et al. 2019). A layer may be repeated: 0, 1, 2, 0, 1, 2 doubles the depth of a model with 3
    layers, as in progressive stacking (Gong et al. 2019).
    """
    depth = model.config.num_hidden_layers
    expected, changes = "", None
    if model.config.layer_groups:
        expected = "a model whose layers do not share their parameters"
    elif not layers or not all(0 <= layer < depth for layer in layers):
        expected = f"numbers from 0 to {depth - 1}"
    elif (layers[0] or 0 in layers[1:]) and (
        not model.config.first_attention_norm or model.config.conv_kernel_size
    ):
        expected = "layer 0, whose parameters differ, first and only there, as in 0,3,6"
    elif (changes := _attention(model.config, layers)) is None:
        expected = "a global layer at equal distances from the first one on"
    if changes is None:
        raise UserError(f"--layers={','.join(map(str, layers))}: expected {expected}")
    config = model.config.replace(num_hidden_layers=len(layers), **changes)
    return _restacked(model, config, layers)


def without_mask_decoder(model: Model) -> Model:
    """Returns the model without the mask decoder of its pre-training, which only a masked LM head reads."""
    if not model.config.mask_decoder or model.has_masked_lm:
        return model
    config = model.config.replace(mask_decoder=False)
    return _restacked(model, config, range(config.num_hidden_layers))


def _restacked(model: Model, config: EncoderConfig, layers: Sequence[int]) -> Model:
    params = {
        name: array
        for name, array in model.params.items()
        if not name.startswith(f"encoder/{LAYERS}/")
        and (config.mask_decoder or name != "encoder/mask_positions")
    }
    old, new = (
        parameter_slices(abstract(model.family.module(each, ("encoder",), "none")), each)
        for each in (model.config, config)
    )
    by_layer = {
        name: array
        for stack, numbers in old.items()
        for name, array in zip(numbers.names, model.params[stack], strict=True)
    }
    for stack, numbers in new.items():
        params[stack] = np.stack([by_layer[numbers.template.format(layers[i])] for i in numbers.numbers])
    return model.replace(params=params, config=config)


def _attention(config: EncoderConfig, layers: Sequence[int]) -> dict[str, Any] | None:
    """Returns the fields that describe which layers are local; None if no fields can."""
    is_local = [config.is_local(layer) for layer in layers]
    if not any(is_local):
        names = ("local_window", "global_every", "local_rotary_theta")
        return {name: getattr(EncoderConfig, name) for name in names}
    depth = range(len(layers))
    for every in range(2, len(layers) + 1):
        if is_local == [i % every > 0 for i in depth]:
            return {"global_every": every}
    return None


def cast(model: Model, dtype: str) -> Model:
    """Returns the model with every parameter cast to "float32", "bfloat16" or "float16", rounded to nearest.

    Values below 6e-8 may become 0 in float16; UserError if a finite value becomes infinite.
    """
    params = {}
    for name, array in model.params.items():
        with np.errstate(over="ignore"):
            params[name] = np.asarray(array).astype(jnp.dtype(dtype))
        if np.any(np.isfinite(array) & ~np.isfinite(params[name])):
            raise UserError(f"--dtype={dtype}: a value of {name} would become infinite")
    return model.replace(params=params)


def change_head(model: Model, head: str) -> Model:
    """Returns the model with only the parameter groups of another head; nothing is initialized.

    The masked LM head of a checkpoint with two networks belongs to the generator. A pooler stays if the other
    head may have one.
    """
    family = model.family
    if head == model.head:
        return model.replace(untied="") if model.untied else model
    if model.generator is not None and head == model.generator.head:
        return model.generator
    # The classifiers of two heads have the same name.
    missing = [group for group in family.required(head) if group not in model.groups or group == "classifier"]
    if missing:
        raise UserError(
            f"--head={head} needs {', '.join(missing)}, which {model.source or 'the model'} does not have"
        )
    groups = family.allowed(head)
    params = {name: array for name, array in model.params.items() if name.split("/")[0] in groups}
    return model.replace(params=params, head=head, labels=None, problem_type="", untied="")
