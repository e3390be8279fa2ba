"""Low-rank updates as PEFT's files have them: lora_A and lora_B of the modules of transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.convert.families import Family
from bert_jax.convert.low_rank import LowRankAdapter
from bert_jax.convert.model import Model
from bert_jax.convert.param_mapping import HUGGINGFACE
from bert_jax.errors import UserError
from bert_jax.models.config import EncoderConfig


class Modules(NamedTuple):
    """The modules of one kind in transformers, one for each layer.

    Attributes:
        names: their names, such as "model.layers.0.attn.Wqkv".
        kernels: the kernels here that are equal parts of each of them, in order; in general one.
        stacked: whether these have a layer axis.
    """

    names: tuple[str, ...]
    kernels: list[str]
    stacked: bool


def modules_of(family: Family, config: EncoderConfig, head: str) -> list[Modules]:
    """Returns the modules of a family that are dense layers."""
    found: dict[tuple[str, ...], Modules] = {}
    for one in family.table:
        if not one.ours.endswith("/kernel") or HUGGINGFACE not in one.names:
            continue
        if one.heads and head not in one.heads:
            continue
        for kernel, theirs, stacked in one.tensors(HUGGINGFACE, config):
            names = tuple(tensor.removesuffix(".weight") for tensor in theirs)
            found.setdefault(names, Modules(names, [], stacked)).kernels.append(kernel)
    return list(found.values())


def factors(
    where: str,
    pairs: Sequence[tuple[np.ndarray | None, np.ndarray | None]],
    rank: int,
    shape: tuple[int, ...],
    parts: int,
) -> list[tuple[np.ndarray, np.ndarray] | None]:
    """Returns A [layers, *inputs, rank] and B [layers, rank, *outputs] of each part of modules.

    They are 0 for a layer without an update. The parts share the A of the module. What `joined` and padding
    fill with zeros is left out: columns of B that are 0 for a part, with their rows of A. A part of zeros
    alone has no update, unless all are, as before training.

    Args:
        where: the file and the first module, for messages.
        pairs: `lora_A` and `lora_B` of each layer, None for a layer that has none.
        rank: the rank of the updates.
        shape: the shape in one layer of the kernel that each part is.
        parts: the number of parts.
    """
    given = {None if a is None or b is None else (a.shape, b.shape) for a, b in pairs if a is not b}
    for count in range(1, len(shape)):
        inputs, outputs = shape[:count], shape[count:]
        sizes = math.prod(inputs), parts * math.prod(outputs)
        if given == {((rank, sizes[0]), (sizes[1], rank))}:
            break
    else:
        raise UserError(
            f"{where} and its like have no lora_A and lora_B of rank {rank} for "
            f"{'' if parts == 1 else f'{parts} '}kernels {list(shape)} of each layer"
        )
    down = np.stack([np.zeros((rank, sizes[0]), np.float32) if a is None else a for a, _ in pairs])
    up = np.stack([np.zeros((sizes[1], rank), np.float32) if b is None else b for _, b in pairs])
    up = up.reshape(len(pairs), parts, -1, rank)
    used = np.any(up != 0, axis=(0, 2))
    if parts == 1:
        used |= np.any(down != 0, axis=(0, 2))
    found: list[tuple[np.ndarray, np.ndarray] | None] = []
    for part in range(parts):
        columns = np.flatnonzero(used[part] if used.any() else np.ones(rank, bool))
        a, b = down[:, columns].swapaxes(1, 2), up[:, part][..., columns].swapaxes(1, 2)
        shapes = (len(pairs), *inputs, len(columns)), (len(pairs), len(columns), *outputs)
        found.append((a.reshape(shapes[0]), b.reshape(shapes[1])) if len(columns) else None)
    return found


def to_files(model: Model, adapter: LowRankAdapter) -> tuple[dict[str, np.ndarray], list[str], int]:
    """Returns the tensors of the updates by PEFT's names, what names their modules in PEFT, and the rank."""
    pairs: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    targets: list[str] = []
    others: list[str] = []
    for one in modules_of(model.family, model.config, model.head):
        modules: Sequence[str] = one.names
        if model.head == "none":
            modules = [module.removeprefix(f"{model.family.base}.") for module in modules]
        updates = [adapter.updates.get(kernel) for kernel in one.kernels]
        (targets if any(update is not None for update in updates) else others).extend(modules)
        for layer, module in enumerate(modules if modules[0] in targets else ()):
            at = layer if one.stacked else ...
            pairs[module] = joined([update and (update.a[at], update.b[at]) for update in updates])
    rank = max(len(a) for a, _ in pairs.values())
    tensors: dict[str, np.ndarray] = {}
    for module, (a, b) in pairs.items():
        missing = rank - len(a)
        tensors[f"{module}.lora_A.weight"] = np.pad(a, ((0, missing), (0, 0)))
        tensors[f"{module}.lora_B.weight"] = np.pad(b, ((0, 0), (0, missing)))
    short = sorted({module.rpartition(".")[2] for module in targets})
    if any(module.rpartition(".")[2] in short for module in others):
        short = sorted(targets)  # PEFT compares the ends of names, and these would be those of others too
    return tensors, short, rank


def joined(pairs: Sequence[tuple[np.ndarray, np.ndarray] | None]) -> tuple[np.ndarray, np.ndarray]:
    """Returns A [rank, inputs] and B [parts x outputs, rank] of a module whose parts have these updates.

    Parts with the same A share it. Otherwise the module has all of them, and B is 0 between a part and the A
    of another, which is the same product.

    Args:
        pairs: a [*inputs, rank] and B [rank, *outputs] of each part; None for a part without an update.
    """
    down: list[np.ndarray] = []
    columns: list[tuple[int, int, np.ndarray]] = []  # the part, the number of its A, and B transposed
    for part, pair in enumerate(pairs):
        if pair is not None:
            a, b = pair[0].reshape(-1, pair[0].shape[-1]).T, pair[1].reshape(len(pair[1]), -1).T
            number = next((i for i, other in enumerate(down) if np.array_equal(a, other)), len(down))
            down += [a] if number == len(down) else []
            columns.append((part, number, b))
    ends = np.cumsum([len(a) for a in down])
    up = np.zeros((len(pairs), len(columns[0][2]), ends[-1]), np.float32)
    for part, number, b in columns:
        up[part, :, ends[number] - b.shape[1] : ends[number]] = b
    return np.concatenate(down), up.reshape(-1, ends[-1])
