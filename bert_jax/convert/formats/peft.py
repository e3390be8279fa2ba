"""Reads and writes the folders of PEFT with low-rank updates: adapter_config.json and safetensors.

A folder has the updates and the head; the rest of the model is in the checkpoint that the folder names.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import save_file

from bert_jax.convert import pair_scores, sentences
from bert_jax.convert.families import CLASSIFIER
from bert_jax.convert.formats import huggingface, peft_updates, tensorflow1, work_directory
from bert_jax.convert.formats.base import Format
from bert_jax.convert.heads import PRETRAINED
from bert_jax.convert.low_rank import LowRankAdapter, Update
from bert_jax.convert.model import Model
from bert_jax.convert.pair_scores import PairScores
from bert_jax.convert.param_mapping import HUGGINGFACE
from bert_jax.errors import UserError
from bert_jax.io import atomic, files, json_files
from bert_jax.models.config import EncoderConfig
from bert_jax.tokenization import Tokenizer

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
DESCRIPTION = "bert_jax.json"  # what adapter_config.json has no fields for; PEFT does not read it
_PREFIX = "base_model.model."
_DIGEST = "bert_jax_digest"  # in the metadata of WEIGHTS; PEFT drops it when it writes the file again
_DIGESTED = (sentences.MODULES, sentences.SETTINGS, sentences.PROMPTS, f"{sentences.POOLING}/config.json")

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
_DESCRIBED = {
    "head": str,
    "groups": [str],
    "labels": ([str], None),
    "problem_type": str,
    "scores?": {"activation": str, "max_seq_length": int},
    "digest?": str,
}
# Other initializations of A and B also change the base model.
_INITIALIZATIONS = (True, False, "gaussian")


class Peft(Format):
    """A folder as `save_pretrained` of PEFT writes it for LoRA."""

    name = "peft"
    title = "PEFT folder"
    example = "a PEFT folder"
    takes_changes = False  # the updates belong to the base model as it is

    def detect(self, path: files.PathLike) -> bool:
        """Returns whether a path is a directory with the configuration of an adapter."""
        return files.is_directory(path) and CONFIG in files.names(path)

    def read_config(self, path: files.PathLike) -> tuple[EncoderConfig, Tokenizer | None]:
        """Returns the architecture and the tokenizer of the base model."""
        kind, base = _find_base(os.fspath(path), _read_fields(os.fspath(path)))
        return kind.read_config(base)

    def read(self, path: files.PathLike, *, ignore: str = "", log: Callable[[str], None] = print) -> Model:
        """Reads the base model, adds the updates, and replaces the head.

        Raises:
            UserError: the base model is not there, or a field or a tensor is of another kind of adapter.
        """
        folder = os.fspath(path)
        fields = _read_fields(folder)
        kind, path_of_base = _find_base(folder, fields)
        base = kind.read(path_of_base, ignore=ignore, log=log)
        adapter = _read_adapter(folder, fields, path_of_base, base)
        described = _read_description(folder, fields)
        head = described.get("head") or _head(base, fields, adapter.params)
        groups = described.get("groups") or _groups(base, head, adapter.params)
        merged = adapter.merged(base.params)
        kept = {name: x for name, x in merged.items() if name.split("/")[0] in groups}
        if not described:
            _check_saved(folder, base, head, kept)
        labels, problem_type = _labels(described, base, head, kept)
        made = Model(base.config, kept, head, base.tokenizer, labels, folder, problem_type, adapter=adapter)
        made = made.replace(scores=_scores(folder, described, base, made))
        if head == "sequence_classification" and made.classes > 1 and not problem_type:
            log(
                f"warning: {folder} does not say whether a text has one of its {made.classes} classes or any "
                "number of them; add problem_type to the config.json of a Hugging Face folder made from it"
            )
        if head not in PRETRAINED:
            return made
        sentence = sentences.read(folder, base.config.max_seq_length, base.tokenizer)
        return made.replace(sentence=sentence or base.sentence)

    def read_sentence(
        self, path: files.PathLike, config: EncoderConfig, tokenizer: Tokenizer | None
    ) -> sentences.SentenceVectors | None:
        """Returns the settings in the folder, and else those of the base model."""
        folder = os.fspath(path)
        if found := sentences.read(folder, config.max_seq_length, tokenizer):
            return found
        kind, base = _find_base(folder, _read_fields(folder))
        return kind.read_sentence(base, config, tokenizer)

    def warning(self, model: Model) -> str:
        """Returns one line if transformers cannot load the base model, or ""."""
        base = model.adapter.base if model.adapter else ""
        if not base or huggingface.FORMAT.detect(base):
            return ""
        return (
            f"PEFT and transformers cannot load the base model, {base}: convert it with `bert-jax convert "
            f"--input={base} --output=DIR --to=huggingface`, and write that DIR as base_model_name_or_path "
            f"into {CONFIG}"
        )

    def write(self, model: Model, folder: files.PathLike, **options: Any) -> None:
        """Writes adapter_config.json, adapter_model.safetensors, and what these do not say of the model.

        Raises:
            UserError: the model is not one of a run with low-rank updates, or PEFT has no name for a
                parameter that the run trained.
        """
        if model.adapter is None:
            raise UserError(
                f"{model.source}: it has no low-rank updates; --to=peft is for runs with adapter.kind=lora"
            )
        tensors, targets, rank = peft_updates.to_files(model, model.adapter)
        whole = _hf_tensors(model, model.adapter.params)
        modules = _modules(model, whole)
        alpha = rank * next(iter(model.adapter.updates.values())).scale
        fields: dict[str, Any] = {
            "alpha_pattern": {},
            "auto_mapping": None,
            "base_model_name_or_path": files.absolute(model.adapter.base),
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
            "init_lora_weights": True,
            "layers_pattern": None,
            "layers_to_transform": None,
            "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
            "lora_dropout": 0.0,
            "modules_to_save": modules or None,
            "peft_type": "LORA",
            "r": rank,
            "rank_pattern": {},
            "revision": None,
            "target_modules": targets,
            "task_type": _TASKS.get(model.head),
            "use_dora": False,
            "use_rslora": False,
        }
        folder = os.fspath(folder)
        atomic.write_text(os.path.join(folder, CONFIG), json.dumps(fields, indent=2, sort_keys=True) + "\n")
        description: dict[str, Any] = {"head": model.head, "groups": model.groups}
        description |= {"labels": model.labels, "problem_type": model.problem_type}
        if model.scores != PairScores():
            description["scores"] = dataclasses.asdict(model.scores)
        if model.sentence and not model.sentence.unsupported:
            sentences.write(model.sentence, model.config.hidden_size, model.config.max_seq_length, folder)
        named = {_PREFIX + name: np.ascontiguousarray(x) for name, x in (tensors | whole).items()}
        description["digest"] = _digest(folder, fields, description, named)
        atomic.write_text(os.path.join(folder, DESCRIPTION), json.dumps(description, indent=2) + "\n")
        save_file(named, os.path.join(folder, WEIGHTS), {"format": "pt", _DIGEST: description["digest"]})
        os.chmod(os.path.join(folder, WEIGHTS), os.stat(os.path.join(folder, CONFIG)).st_mode)


FORMAT = Peft()


def _read_fields(folder: str) -> dict[str, Any]:
    """Returns adapter_config.json, checked for what cannot be read."""
    file = os.path.join(folder, CONFIG)
    fields = json_files.read(file)
    if (kind := fields.get("peft_type")) != "LORA":
        raise UserError(f"{file}: peft_type is {kind!r}; only 'LORA' can be read")
    for name, value in fields.items():
        if name not in _READ and value:
            raise UserError(f"{file}: {name} is {value!r}; only adapters without it can be read")
    if (bias := fields.get("bias", "none")) != "none":
        raise UserError(f"{file}: bias is {bias!r}; only 'none' can be read")
    if (init := fields.get("init_lora_weights", True)) not in _INITIALIZATIONS:
        raise UserError(f"{file}: init_lora_weights is {init!r}, which also changes the base; it is not read")
    known = {"r": range(1, 2**16), "lora_alpha": float, "base_model_name_or_path": str}
    json_files.check({name: fields[name] for name in known if name in fields}, known, file)
    return fields


def _read_description(folder: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what bert-jax wrote of the model; empty if it did not write the folder."""
    file = os.path.join(folder, DESCRIPTION)
    described = json_files.read(file, _DESCRIBED) if files.exists(file) else {}
    # Of another task, the file is from before adapter_config.json was written again.
    return described if _TASKS.get(described.get("head", "")) == fields.get("task_type") else {}


def _find_base(folder: str, fields: Mapping[str, Any]) -> tuple[Format, str]:
    """Returns the format and the path of the base model."""
    named = fields["base_model_name_or_path"]
    formats = (work_directory.FORMAT, tensorflow1.FORMAT, huggingface.FORMAT)
    for path in (named, os.path.join(folder, named)):
        for one in formats:
            if files.exists(path) and one.detect(path):
                return one, path
    raise UserError(
        f"{folder}: its base model {named} is not here; get it, and write its path as "
        f"base_model_name_or_path into {CONFIG}"
    )


def _read_adapter(folder: str, fields: Mapping[str, Any], path: str, base: Model) -> LowRankAdapter:
    file = os.path.join(folder, WEIGHTS)
    if not files.exists(file):
        raise UserError(f"{folder}: there is no {WEIGHTS}")
    saved = huggingface.load_safetensors(file)
    with files.local_copy(file) as copy, safetensors.safe_open(copy, "numpy") as opened:
        digest = (opened.metadata() or {}).get(_DIGEST)
    described = _read_description(folder, fields)
    if digest and {digest, described.get("digest")} != {_digest(folder, fields, described, saved)}:
        raise UserError(
            f"{file}: this file or another one of the folder has changed since it was written (its digest "
            "differs); get the folder anew"
        )
    stored = {name.removeprefix(_PREFIX): x for name, x in saved.items()}
    tensors, untied = base.family.canonical(stored, folder)
    rank = fields["r"]
    scale = float(np.float32(fields["lora_alpha"] / (np.sqrt(rank) if fields.get("use_rslora") else rank)))
    updates: dict[str, Update] = {}
    for one in peft_updates.modules_of(base.family, base.config, base.head):
        pairs = [
            (tensors.pop(f"{module}.lora_A.weight", None), tensors.pop(f"{module}.lora_B.weight", None))
            for module in one.names
        ]
        if all(a is None and b is None for a, b in pairs):
            continue
        shape = base.params[one.kernels[0]].shape[int(one.stacked) :]
        of_parts = peft_updates.factors(f"{file}: {one.names[0]}", pairs, rank, shape, len(one.kernels))
        for kernel, factors in zip(one.kernels, of_parts, strict=True):
            if factors is not None:
                a, b = factors if one.stacked else (factors[0][0], factors[1][0])
                updates[kernel] = Update(np.ascontiguousarray(a), np.ascontiguousarray(b), scale)
    if not updates:
        raise UserError(f"{file}: it has no update of a kernel of a {base.family.name}")
    # The head that the task names, because a file without the whole head does not tell which one it is.
    named = next((head for head, task in _TASKS.items() if task == fields.get("task_type")), None)
    found = base.family.from_files(tensors, base.config, HUGGINGFACE, named)
    if unknown := [*untied, *found.unknown, *found.missing]:
        raise UserError(f"{file}: {unknown[0]} cannot be read; expected updates of layers, and a head")
    if found.misshapen:
        raise UserError(f"{file}: {found.misshapen[0]}")
    return LowRankAdapter(path, updates, found.params, base.params)


def _digest(
    folder: str, fields: Mapping[str, Any], described: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> str:
    """Returns the SHA-256 digest of all that a folder says of an adapter, except for the path of its base."""
    about = [{**fields, "base_model_name_or_path": ""}, {**described, "digest": ""}]
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for path in (os.path.join(folder, name) for name in _DIGESTED):
        digest.update(files.read(path) if files.exists(path) else b"")
    for name, x in sorted(tensors.items()):
        digest.update(f"{name} {x.dtype} {x.shape}".encode() + x.tobytes())
    return digest.hexdigest()


def _head(base: Model, fields: Mapping[str, Any], params: Collection[str]) -> str:
    """Returns the head of the model with an adapter that has these parameters of its own."""
    groups = {name.split("/")[0] for name in params} - {"pooler"}
    task = fields.get("task_type")
    heads = [head for head, name in _TASKS.items() if name == task]
    for head in heads or (["multiple_choice", base.head] if groups else [base.head]):
        if groups <= set(base.family.allowed(head)):
            return head
    raise UserError(f"a {base.family.name} with the task {task} has no {', '.join(sorted(groups))}")


def _groups(base: Model, head: str, params: Collection[str]) -> set[str]:
    """Returns the parameter groups of the model with this head, as the class of transformers has them."""
    own = {name.split("/")[0] for name in params}
    # The class without a head has the pooler of its base; the others have one where the head reads it.
    of_base = base.family.allowed(head) if head in ("none", base.head) else []
    return own.union(base.family.required(head), of_base)


def _check_saved(folder: str, base: Model, head: str, params: Collection[str]) -> None:
    """Raises a UserError if the head has modules that neither the base model nor the folder has.

    transformers draws those that the base model lacks, and PEFT saves only the classifier of itself.
    """
    missing = set(base.family.required(head)) - {name.split("/")[0] for name in params}
    named = [
        one.names[HUGGINGFACE].removeprefix(f"{base.family.base}.").split(".")[0]
        for one in base.family.table
        if one.ours.split("/")[0] in missing and (not one.heads or head in one.heads)
    ]
    if modules := [*dict.fromkeys(named)]:
        raise UserError(
            f"{folder}: the base model {base.source} has no {' and no '.join(modules)}, which transformers "
            f"drew at random and PEFT did not save; train it again with modules_to_save={modules}"
        )


def _labels(
    described: Mapping[str, Any], base: Model, head: str, params: Mapping[str, np.ndarray]
) -> tuple[tuple[str, ...] | None, str]:
    """Returns the labels and the type of problem of a model; None and "" where they are unknown."""
    if described:
        labels = tuple(described["labels"] or ())
        fitting = CLASSIFIER in params and len(labels) == params[CLASSIFIER].shape[0]
        return labels if fitting else None, described["problem_type"]
    # A folder of PEFT has none.
    return (base.labels, base.problem_type) if _has_outputs_of(base, head, params) else (None, "")


def _scores(folder: str, described: Mapping[str, Any], base: Model, model: Model) -> PairScores:
    """Returns how sentence-transformers makes scores of a model: as the folder says it, and else the base."""
    if described or model.head != "sequence_classification":
        return PairScores(**described.get("scores", {}))
    positions = base.config.max_seq_length
    own = pair_scores.read(folder, {}, positions)
    of_base = base.scores if _has_outputs_of(base, model.head, model.params) else PairScores()
    length = own if sentences.read_length(folder, positions) else of_base
    return PairScores(own.activation or of_base.activation, length.max_seq_length)


def _has_outputs_of(base: Model, head: str, params: Mapping[str, np.ndarray]) -> bool:
    """Returns whether a head with these parameters has the outputs that the base model describes."""
    theirs = base.params.get(CLASSIFIER)
    return head == base.head and (theirs is None or theirs.shape == params[CLASSIFIER].shape)


def _hf_tensors(model: Model, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns parameters of a model by their names in transformers."""
    if parts := [name for name in params if name not in model.params]:
        raise UserError(
            f"{model.source}: {parts[0]} is trained in some layers only, which PEFT has no name for"
        )
    tensors = model.family.to_files(params, model.config, HUGGINGFACE, model.head)
    prefix = f"{model.family.base}." if model.head == "none" else ""
    return {name.removeprefix(prefix): x for name, x in tensors.items()}


def _modules(model: Model, trained: Collection[str]) -> list[str]:
    """Returns the modules of transformers that consist of trained parameters."""
    everything = _hf_tensors(model, model.params)
    modules = set()
    for name in trained:
        parts = name.split(".")[:-1]
        for count in range(1, len(parts) + 1):
            module = ".".join(parts[:count])
            if all(other in trained for other in everything if other.startswith(f"{module}.")):
                modules.add(module)
                break
        else:
            raise UserError(
                f"{model.source}: {name} is trained and the rest of its module is not, as in no PEFT file"
            )
    return sorted(modules)
