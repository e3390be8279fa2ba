"""Changes to a whole model's shape: rows of the vocabulary, positions, layers, dtype, head.

Pure functions from a `Model` to a `Model`; the vocabulary itself is changed in `convert.vocabulary`.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from bert_jax.convert.heads import PRETRAINED
from bert_jax.convert.model import Model
from bert_jax.errors import UserError
from bert_jax.models import assembled

WORDS = "encoder/embeddings/word_embeddings"
POSITIONS = "encoder/embeddings/position_embeddings"
BIAS = "mlm/bias"

POSITION_METHODS = ("tile", "interpolate")
DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}

# Finite in float16 and bfloat16, and exp(-1e4 + any logit of a model) is 0 in float32: it underflows at -104.
PADDING_BIAS = -1e4


def pad_vocabulary(model: Model, multiple: int) -> Model:
    """Adds rows to the vocabulary until their number is a multiple, so that it can be sharded evenly.

    Added word embeddings are 0 and their masked LM biases -1e4, so an added id's logit is -1e4 wherever it is
    predicted. What holds, in float32 and in bfloat16 and float16 alike:

    - Logits of real ids are as before, up to how a backend orders the sums of a product of another shape.
    - The softmax gives an added id exactly 0, so the loss and every gradient of real parameters are as
      before.
    - The gradients of the added rows and biases are exactly 0, from the output (probability 0) and from the
      input (no text has these ids, and none is drawn as a random replacement). So Adam leaves them: rows of
      0 decay to 0, and biases are not decayed. They can be cut off again after training.

    What does not: the norm of `mlm/bias` is no longer that of the real biases, which an optimizer that
    divides by norms of whole parameters (LAMB, Adafactor's relative steps) would see, and decay of biases
    would draw the added ones towards 0.

    Args:
        multiple: at least 1. A model whose rows are a multiple already is returned as it is.
    """
    if multiple < 1:
        raise UserError(
            f"rows of the vocabulary to a multiple of {multiple}: expected 1 or more, such as 128"
        )
    rows = model.config.vocab_size
    added = -rows % multiple
    if not added:
        return model
    params = dict(model.params)
    params[WORDS] = np.pad(params[WORDS], ((0, added), (0, 0)))
    if BIAS in params:
        padding = np.full(added, PADDING_BIAS, params[BIAS].dtype)
        params[BIAS] = np.concatenate([params[BIAS], padding])
    return model.replace(params=params, config=model.config.replace(vocab_size=rows + added))


def unpad_vocabulary(model: Model) -> Model:
    """Cuts the rows beyond the tokenizer's vocabulary, whatever is in them; see `rows_are_padding`."""
    if model.tokenizer is None:
        raise UserError(
            f"{model.source or 'the model'} has no vocabulary, so the number of its tokens is unknown; "
            "expected a vocab.txt or a .model beside it"
        )
    size = model.tokenizer.vocab_size
    params = dict(model.params)
    params[WORDS] = params[WORDS][:size]
    if BIAS in params:
        params[BIAS] = params[BIAS][:size]
    return model.replace(params=params, config=model.config.replace(vocab_size=size))


def rows_are_padding(model: Model, size: int) -> bool:
    """Whether the rows from `size` on are as `pad_vocabulary` makes them, and not learnt ones."""
    if np.any(model.params[WORDS][size:]):
        return False
    # -1e4 is rounded in bfloat16; no learnt bias comes near half of it.
    return BIAS not in model.params or bool(np.all(model.params[BIAS][size:] < PADDING_BIAS / 2))


def resize_positions(model: Model, positions: int, method: str = "tile") -> Model:
    """Makes the table of positions longer or shorter. A shorter one has the first rows.

    Args:
        positions: rows of the new table.
        method: how a longer one is filled. "tile" repeats the table from its first row on, as Longformer
            does (Beltagy et al. 2020, section 5): text that fitted before gives the same results, and
            nearby positions keep their relation everywhere but at the seams. "interpolate" stretches it:
            row i is taken at i (old - 1) / (new - 1) with linear weights, so that first and last rows stay
            and none is extrapolated, as image models do with theirs in two dimensions (Dosovitskiy et al.
            2021, section 3.2) and Chen et al. (2023) with rotary positions: order stays global, but short
            text changes too. Either wants training on long text afterwards.
    """
    if positions < 1:
        raise UserError(f"{positions} positions: expected 1 or more, such as 1024")
    if method not in POSITION_METHODS:
        raise UserError(f"position method {method!r} is unknown; choose one of {', '.join(POSITION_METHODS)}")
    table = model.params[POSITIONS]
    old = len(table)
    if positions <= old:
        table = table[:positions]
    elif method == "tile":
        table = table[np.arange(positions) % old]
    else:
        table = _interpolate(table, positions)
    config = model.config.replace(max_position_embeddings=positions)
    return model.replace(params={**model.params, POSITIONS: table}, config=config)


def _interpolate(table: np.ndarray, rows: int) -> np.ndarray:
    at = np.arange(rows) * (len(table) - 1) / (rows - 1)
    below = at.astype(int)
    above = np.minimum(below + 1, len(table) - 1)
    weight = (at - below)[:, None]
    values = table.astype(np.float64)
    return ((1 - weight) * values[below] + weight * values[above]).astype(table.dtype)


def select_layers(model: Model, layers: Sequence[int]) -> Model:
    """The model with these layers only, in this order.

    DistilBERT begins as one of every two layers of its teacher, of 12 layers 0, 2, 4, 7, 9 and 11 (Sanh et
    al. 2019). A layer may stand more than once: 0, 1, 2, 0, 1, 2 doubles the depth, as in progressive
    stacking (Gong et al. 2019).

    Args:
        layers: numbers of layers from 0.
    """
    depth = model.config.num_hidden_layers
    if not layers:
        raise UserError("no layers are chosen; expected their numbers from 0, such as 0,2,4,7,9,11")
    unknown = [layer for layer in layers if not 0 <= layer < depth]
    if unknown:
        raise UserError(f"the model has no layer {unknown[0]}; its {depth} layers are 0 to {depth - 1}")
    known = assembled.parameters(model.config, model.groups, model.classes or 2, model.classification)
    params = {
        name: array[list(layers)] if known[name].layered else array for name, array in model.params.items()
    }
    return model.replace(params=params, config=model.config.replace(num_hidden_layers=len(layers)))


def cast(model: Model, dtype: str) -> Model:
    """The model with every parameter in another dtype, rounded to nearest even.

    Args:
        dtype: float32, bfloat16 or float16. To float32 is exact. float16 reaches 65,504: a finite value that
            it does not hold is an error; values below 6e-8 become 0.
    """
    if dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r} is unknown; choose one of {', '.join(DTYPES)}")
    return model.replace(params={name: _cast(name, array, dtype) for name, array in model.params.items()})


def _cast(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    array = np.asarray(array)
    with np.errstate(over="ignore"):
        result = array.astype(DTYPES[dtype])
    lost = np.isfinite(array) & ~np.isfinite(result)
    if lost.any():
        largest = np.abs(array[lost].astype(np.float64)).max()
        limit = float(ml_dtypes.finfo(DTYPES[dtype]).max)
        other = "bfloat16 or float32" if dtype == "float16" else "float32"
        raise UserError(
            f"{name} does not fit into {dtype}: it reaches {largest:.6g} and {dtype} {limit:.6g}; try {other}"
        )
    return result


def change_head(model: Model, head: str) -> Model:
    """The model with the groups of parameters of another head only; a pooler stays where either may have one.

    Nothing is made up: a head whose parameters the model lacks is a mistake.

    Args:
        head: a name of `HEADS`.
    """
    family = model.family
    if head not in family.heads:
        raise UserError(
            f"head {head!r} is unknown; the heads of a {family.name} are {', '.join(family.heads)}"
        )
    if head == model.head:
        return model
    present = set(model.groups)
    required = family.required(head)
    missing = [group for group in required if group not in present]
    # Heads of different tasks share the group's name.
    if "classifier" in required and "classifier" in present:
        missing.append("its own classifier")
    if missing:
        raise UserError(
            f"{model.source or 'the model'} has the head {model.head} and lacks what {head} needs: "
            f"{', '.join(missing)}; choose {_possible(model)}, or train that head first"
        )
    groups = family.allowed(head)
    params = {name: array for name, array in model.params.items() if name.split("/")[0] in groups}
    return model.replace(params=params, head=head, labels=None, problem_type="")


def _possible(model: Model) -> str:
    """Returns the heads without classes that a model's groups of parameters make up."""
    heads = [
        head
        for head in PRETRAINED
        if head in model.family.heads and set(model.groups).issuperset(model.family.required(head))
    ]
    return " or ".join(heads)
