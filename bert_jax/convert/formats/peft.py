"""Reads and writes the folders of PEFT with low-rank updates: adapter_config.json and safetensors.

A folder has the updates and the head; the rest of the model is in the checkpoint that the folder names.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from bert_jax.convert import sentences
from bert_jax.convert.families import CLASSIFIER, Family
from bert_jax.convert.formats import huggingface, tensorflow1, work_directory
from bert_jax.convert.formats.base import Format
from bert_jax.convert.heads import PRETRAINED
from bert_jax.convert.model import LowRankAdapter, Model, Update
from bert_jax.convert.param_mapping import HUGGINGFACE
from bert_jax.convert.sentences import PairScores
from bert_jax.errors import UserError
from bert_jax.io import files, json_files
from bert_jax.io.wording import some
from bert_jax.models.config import EncoderConfig
from bert_jax.tokenization import Tokenizer

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
DESCRIPTION = "bert_jax.json"  # what adapter_config.json has no fields for; PEFT does not read it
_PREFIX = "base_model.model."

_TASKS = {
    "sequence_classification": "SEQ_CLS",
    "token_classification": "TOKEN_CLS",
    "question_answering": "QUESTION_ANS",
    "none": "FEATURE_EXTRACTION",
}

# The fields that are read or do not change what the model computes. Any other has to be empty.
_READ = {
    "peft_type", "task_type", "base_model_name_or_path", "r", "lora_alpha", "use_rslora", "bias",
    "init_lora_weights", "target_modules", "modules_to_save", "lora_dropout", "inference_mode",
    "auto_mapping", "peft_version", "revision", "exclude_modules", "layers_to_transform", "layers_pattern",
    "megatron_core", "megatron_config", "qalora_group_size", "ensure_weight_tying",
}  # fmt: skip
# Other adapter kinds are errors, and so are initializations of A and B that change the base model.
_VALUES = {"peft_type": ("LORA",), "bias": ("none",), "init_lora_weights": (True, False, "gaussian")}
_SCHEMA = {"r": range(1, 2**16), "lora_alpha": float, "base_model_name_or_path": str}
_DESCRIBED = {
    "head": str,
    "groups": [str],
    "labels": ([str], None),
    "problem_type": str,
    "scores?": {"activation": str, "max_seq_length": int},
}


class Peft(Format):
    """A LoRA folder in the format of PEFT's `save_pretrained`."""

    name = "peft"
    title = "PEFT folder"
    takes_changes = False  # the updates belong to the base model as it is

    def detect(self, path: files.PathLike) -> bool:
        return files.is_directory(path) and CONFIG in files.names(path)

    def read_config(self, path: files.PathLike) -> tuple[EncoderConfig, Tokenizer | None]:
        kind, base = _find_base(os.fspath(path), _read_fields(os.fspath(path)))
        return kind.read_config(base)

    def read(self, path: files.PathLike, *, ignore: str = "", log: Callable[[str], None] = print) -> Model:
        folder = os.fspath(path)
        fields, described = _read_fields(folder), {}
        kind, path_of_base = _find_base(folder, fields)
        base = kind.read(path_of_base, ignore=ignore, log=log)
        adapter = _read_adapter(folder, fields, path_of_base, base)
        if files.exists(file := os.path.join(folder, DESCRIPTION)):
            described = json_files.read(file, _DESCRIBED)
        head = described.get("head") or _head(base, fields, adapter.params)
        groups = described.get("groups") or _groups(base, head, adapter.params)
        params = {name: x for name, x in adapter.merged(base.params).items() if name.split("/")[0] in groups}
        about: dict[str, Any] = {}
        theirs, ours = (each.get(CLASSIFIER, np.zeros(0)).shape for each in (base.params, params))
        if described:
            about = {name: described[name] for name in ("labels", "problem_type")}
            about |= {"labels": tuple(about["labels"] or ()) or None}
            about["scores"] = PairScores(**described.get("scores", {}))
        elif head == base.head and ours == theirs:
            about = {name: getattr(base, name) for name in ("labels", "problem_type", "scores")}
        if head in PRETRAINED:
            own = sentences.read(folder, base.config.max_seq_length, base.tokenizer)
            about["sentence"] = own or base.sentence
        return Model(base.config, params, head, base.tokenizer, source=folder, adapter=adapter, **about)

    def read_sentence(
        self, path: files.PathLike, config: EncoderConfig, tokenizer: Tokenizer | None
    ) -> sentences.SentenceVectors | None:
        folder = os.fspath(path)
        if found := sentences.read(folder, config.max_seq_length, tokenizer):
            return found
        kind, base = _find_base(folder, _read_fields(folder))
        return kind.read_sentence(base, config, tokenizer)

    def warning(self, model: Model) -> str:
        base = model.adapter.base if model.adapter else ""
        if not base or huggingface.FORMAT.detect(base):
            return ""
        return (
            f"PEFT and transformers cannot load the base model, {base}: convert it with --to=huggingface, "
            f"and write the new path as base_model_name_or_path into {CONFIG}"
        )

    def write(self, model: Model, folder: files.PathLike, card: str = "") -> None:
        """Writes adapter_config.json, adapter_model.safetensors, and a file with what these lack."""
        if model.adapter is None:
            raise UserError(f"{model.source} has no low-rank updates, which --to=peft needs")
        tensors, targets, rank = _updates_to_files(model, model.adapter)
        whole = _hf_tensors(model, model.adapter.params)
        fields = {
            "base_model_name_or_path": files.absolute(model.adapter.base),
            "bias": "none",
            "inference_mode": True,
            "init_lora_weights": True,
            "lora_alpha": rank * next(iter(model.adapter.updates.values())).scale,
            "lora_dropout": 0.0,
            "modules_to_save": _modules_to_save(model, whole) or None,
            "peft_type": "LORA",
            "r": rank,
            "target_modules": targets,
            "task_type": _TASKS.get(model.head),
            "use_rslora": False,
        }
        folder = os.fspath(folder)
        sentences.write_json(folder, CONFIG, fields)
        description = {
            "head": model.head,
            "groups": model.groups,
            "labels": model.labels,
            "problem_type": model.problem_type,
            "scores": dataclasses.asdict(model.scores),
        }
        sentences.write_json(folder, DESCRIPTION, description)
        if model.sentence and not model.sentence.unsupported:
            sentences.write(model.sentence, model.config.hidden_size, model.config.max_seq_length, folder)
        named = {_PREFIX + name: np.ascontiguousarray(x) for name, x in (tensors | whole).items()}
        save_file(named, os.path.join(folder, WEIGHTS), {"format": "pt"})
        os.chmod(os.path.join(folder, WEIGHTS), os.stat(os.path.join(folder, CONFIG)).st_mode)


FORMAT = Peft()


def _read_fields(folder: str) -> dict[str, Any]:
    file = os.path.join(folder, CONFIG)
    fields = json_files.read(file)
    wrong = [name for name, value in fields.items() if name not in _READ and value]
    wrong += [name for name, valid in _VALUES.items() if fields.get(name, valid[0]) not in valid]
    if wrong:
        raise UserError(f"{file}: {wrong[0]}={fields.get(wrong[0])!r} is not supported")
    json_files.check({name: fields[name] for name in _SCHEMA if name in fields}, _SCHEMA, file)
    return fields


def _find_base(folder: str, fields: Mapping[str, Any]) -> tuple[Format, str]:
    named = fields["base_model_name_or_path"]
    for path in (named, os.path.join(folder, named)):
        for one in (work_directory.FORMAT, tensorflow1.FORMAT, huggingface.FORMAT):
            if files.exists(path) and one.detect(path):
                return one, path
    raise UserError(f"{os.path.join(folder, CONFIG)}: base_model_name_or_path={named}: no such local model")


def _read_adapter(folder: str, fields: Mapping[str, Any], path: str, base: Model) -> LowRankAdapter:
    file = os.path.join(folder, WEIGHTS)
    saved = huggingface.load_safetensors(file)
    stored = {name.removeprefix(_PREFIX): x for name, x in saved.items()}
    tensors, untied = base.family.canonical(stored)
    rank = fields["r"]
    scale = float(np.float32(fields["lora_alpha"] / (np.sqrt(rank) if fields.get("use_rslora") else rank)))
    updates: dict[str, Update] = {}
    for one in _modules_of(base.family, base.config, base.head):
        pairs = [
            (tensors.pop(f"{module}.lora_A.weight", None), tensors.pop(f"{module}.lora_B.weight", None))
            for module in one.names
        ]
        if all(a is None and b is None for a, b in pairs):
            continue
        shape = base.params[one.kernels[0]].shape[int(one.stacked) :]
        of_parts = _factors(f"{file}: {one.names[0]}", pairs, rank, shape, len(one.kernels))
        for kernel, factors in zip(one.kernels, of_parts, strict=True):
            if factors is not None:
                a, b = factors if one.stacked else (factors[0][0], factors[1][0])
                updates[kernel] = Update(np.ascontiguousarray(a), np.ascontiguousarray(b), scale)
    # The task names the head, because a file without the whole head does not identify it.
    named = next((head for head, task in _TASKS.items() if task == fields.get("task_type")), None)
    found = base.family.from_files(tensors, base.config, HUGGINGFACE, named)
    unknown = [*untied, *found.unknown, *found.missing, *found.misshapen]
    if unknown or not updates:
        raise UserError(f"{file}: expected updates of layers, and a head; found {some(unknown) or 'none'}")
    return LowRankAdapter(path, updates, found.params)


def _head(base: Model, fields: Mapping[str, Any], params: Mapping[str, Any]) -> str:
    if heads := [head for head, name in _TASKS.items() if name == fields.get("task_type")]:
        return heads[0]
    groups = {name.split("/")[0] for name in params} - {"pooler"}
    is_choice = groups and groups <= set(base.family.allowed("multiple_choice"))
    return "multiple_choice" if is_choice else base.head


def _groups(base: Model, head: str, params: Mapping[str, Any]) -> set[str]:
    own = {name.split("/")[0] for name in params}
    # The class without a head has the pooler of its base; the others have one where the head reads it.
    of_base = base.family.allowed(head) if head in ("none", base.head) else []
    return own.union(base.family.required(head), of_base)


def _hf_tensors(model: Model, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    if partial := [name for name in params if name not in model.params]:
        raise UserError(f"{model.source}: --to=peft cannot store {partial[0]}, trained in some layers only")
    tensors = model.family.to_files(params, model.config, HUGGINGFACE, model.head)
    prefix = f"{model.family.base}." if model.head == "none" else ""
    return {name.removeprefix(prefix): x for name, x in tensors.items()}


def _modules_to_save(model: Model, trained: Mapping[str, Any]) -> list[str]:
    """Returns the outermost modules that consist of trained tensors only."""
    everything, modules = _hf_tensors(model, model.params), set()
    for name in trained:
        path = name.split(".")[:-1]
        outer = (".".join(path[:count]) for count in range(1, len(path) + 1))
        whole = (
            module
            for module in outer
            if all(other in trained for other in everything if other.startswith(f"{module}."))
        )
        if not (module := next(whole, "")):
            raise UserError(f"{model.source}: --to=peft cannot store {name} without the rest of its module")
        modules.add(module)
    return sorted(modules)


class _Modules(NamedTuple):
    names: tuple[str, ...]  # such as "model.layers.0.attn.Wqkv"
    kernels: list[str]  # the kernels here that each of them consists of, in order; in general one
    stacked: bool  # whether these have a layer axis


def _modules_of(family: Family, config: EncoderConfig, head: str) -> list[_Modules]:
    found: dict[tuple[str, ...], _Modules] = {}
    for one in family.table:
        named = one.ours.endswith("/kernel") and HUGGINGFACE in one.names
        if named and (not one.heads or head in one.heads):
            for kernel, theirs, stacked in one.tensors(HUGGINGFACE, config):
                names = tuple(tensor.removesuffix(".weight") for tensor in theirs)
                found.setdefault(names, _Modules(names, [], stacked)).kernels.append(kernel)
    return list(found.values())


def _factors(
    where: str,
    pairs: Sequence[tuple[np.ndarray | None, np.ndarray | None]],
    rank: int,
    shape: tuple[int, ...],
    kernels: int,
) -> list[tuple[np.ndarray, np.ndarray] | None]:
    """Returns A [layers, *inputs, rank] and B [layers, rank, *outputs] of each kernel of some modules.

    A and B are 0 in a layer without an update. Rows and columns that `_joined` and padding fill with zeros
    are dropped. A kernel of zeros has no update, unless all kernels are 0, as before training. `pairs` are
    `lora_A` and `lora_B` of each layer, None for a layer without an update.
    """
    given = {None if a is None or b is None else (a.shape, b.shape) for a, b in pairs if a is not b}
    for count in range(1, len(shape)):
        inputs, outputs = shape[:count], shape[count:]
        sizes = math.prod(inputs), kernels * math.prod(outputs)
        if given == {((rank, sizes[0]), (sizes[1], rank))}:
            break
    else:
        raise UserError(f"{where}: expected lora_A and lora_B of rank {rank} for kernels {list(shape)}")
    down = np.stack([np.zeros((rank, sizes[0]), np.float32) if a is None else a for a, _ in pairs])
    up = np.stack([np.zeros((sizes[1], rank), np.float32) if b is None else b for _, b in pairs])
    up = up.reshape(len(pairs), kernels, -1, rank)
    used = np.any(up != 0, axis=(0, 2))
    if kernels == 1:
        used |= np.any(down != 0, axis=(0, 2))
    found: list[tuple[np.ndarray, np.ndarray] | None] = []
    for part in range(kernels):
        columns = np.flatnonzero(used[part] if used.any() else np.ones(rank, bool))
        a, b = down[:, columns].swapaxes(1, 2), up[:, part][..., columns].swapaxes(1, 2)
        shapes = (len(pairs), *inputs, len(columns)), (len(pairs), len(columns), *outputs)
        found.append((a.reshape(shapes[0]), b.reshape(shapes[1])) if len(columns) else None)
    return found


def _updates_to_files(model: Model, adapter: LowRankAdapter) -> tuple[dict[str, np.ndarray], list[str], int]:
    pairs: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    targets: set[str] = set()
    others: set[str] = set()
    for one in _modules_of(model.family, model.config, model.head):
        prefix = f"{model.family.base}." if model.head == "none" else ""
        modules = [module.removeprefix(prefix) for module in one.names]
        updates = [adapter.updates.get(kernel) for kernel in one.kernels]
        if not any(updates):
            others.update(modules)
            continue
        targets.update(modules)
        for layer, module in enumerate(modules):
            at = layer if one.stacked else ...
            pairs[module] = _joined([update and (update.a[at], update.b[at]) for update in updates])
    rank = max(len(a) for a, _ in pairs.values())
    tensors: dict[str, np.ndarray] = {}
    for module, (a, b) in pairs.items():
        missing = rank - len(a)
        tensors[f"{module}.lora_A.weight"] = np.pad(a, ((0, missing), (0, 0)))
        tensors[f"{module}.lora_B.weight"] = np.pad(b, ((0, 0), (0, missing)))
    short = {module.rpartition(".")[2] for module in targets}
    if short & {module.rpartition(".")[2] for module in others}:
        short = targets  # PEFT compares the ends of names, and other modules have the same ends
    return tensors, sorted(short), rank


def _joined(pairs: Sequence[tuple[np.ndarray, np.ndarray] | None]) -> tuple[np.ndarray, np.ndarray]:
    """Returns A [rank, inputs] and B [kernels x outputs, rank] of a module of several kernels.

    Kernels with the same A share it. Otherwise the module contains each kernel's A, and B is 0 for the A of
    other kernels, which gives the same product. A pair is None for a kernel without an update.
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
