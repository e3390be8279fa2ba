"""Hugging Face folders of BERT: config.json, safetensors, tokenizer files. Nothing in them is executed."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors

from bert_jax import tokenization
from bert_jax.convert import param_mapping
from bert_jax.convert.model import HEADS, Model, check_found, head_of
from bert_jax.errors import UserError
from bert_jax.io import atomic, files, json_files
from bert_jax.models import config as bert_config

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"

# What the weights of other libraries are called; all but the last two are pickles or may hold one.
_OTHER_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")

# The head of each class that transformers saves.
ARCHITECTURES = {
    "BertModel": "none",
    "BertForPreTraining": "pretraining",
    "BertForMaskedLM": "masked_lm",
    "BertForSequenceClassification": "sequence_classification",
    "BertForTokenClassification": "token_classification",
    "BertForMultipleChoice": "multiple_choice",
    "BertForQuestionAnswering": "question_answering",
}

# transformers' class that loads each head.
AUTO_CLASSES = {
    "none": "AutoModel",
    "pretraining": "AutoModelForPreTraining",
    "masked_lm": "AutoModelForMaskedLM",
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "multiple_choice": "AutoModelForMultipleChoice",
    "question_answering": "AutoModelForQuestionAnswering",
}

_BOOL = (bool, None)
_TOKENIZER_CONFIG = {"do_lower_case?": _BOOL, "strip_accents?": _BOOL, "tokenize_chinese_chars?": _BOOL}
_NORMALIZER = {"type?": str, "lowercase?": _BOOL, "strip_accents?": _BOOL}
_TOKENIZER = {
    "normalizer?": ({**_NORMALIZER, "normalizers?": ([_NORMALIZER], None)}, None),
    "model?": ({"type?": (str, None)}, None),
    "added_tokens?": ([{"content": str, "id": range(0, 1 << 31)}], None),
}

_extracted: list[
    tempfile.TemporaryDirectory
] = []  # vocabularies out of tokenizer.json, until the process ends


def is_huggingface(path: files.PathLike) -> bool:
    """Whether a directory is a transformers folder: a config.json that is none of bert_jax's, or weights."""
    there = files.names(path)
    if any(name in there for name in (WEIGHTS, INDEX, *_OTHER_WEIGHTS)):
        return True
    return CONFIG in there and "model_type" in json_files.read(os.path.join(path, CONFIG))


def read(path: files.PathLike, *, ignore: str = "") -> tuple[Model, dict[str, np.ndarray]]:
    """(the model, its tensors by their names in `BertForPreTraining` and its like).

    Args:
        ignore: a regular expression; tensors of the file whose whole name it matches are left out.

    Raises:
        UserError: no BERT, no safetensors, a tensor missing, unknown or of another shape.
    """
    folder = os.fspath(path)
    config, fields = read_config(folder)
    tensors = _canonical(_read_tensors(folder), folder)
    found = param_mapping.from_files(tensors, config, param_mapping.HUGGINGFACE)
    check_found(str(path), found, ignore)
    architectures = [
        ARCHITECTURES[name] for name in fields.get("architectures") or () if name in ARCHITECTURES
    ]
    of_classifier = [name for name in architectures if "classifier" in HEADS[name]]
    head = head_of(found.params, *of_classifier[:1])
    labels = None
    if "classifier/bias" in found.params and head != "multiple_choice":
        labels = _labels(fields, found.params["classifier/bias"].shape[0])
    problem_type = fields.get("problem_type") or "" if head == "sequence_classification" else ""
    model = Model(config, found.params, head, read_tokenizer(folder), labels, str(path), problem_type)
    return model, tensors


def read_config(folder: files.PathLike) -> tuple[bert_config.EncoderConfig, dict[str, Any]]:
    """(the architecture, every field of config.json)."""
    file = os.path.join(folder, CONFIG)
    if not files.exists(file):
        raise UserError(f"{folder}: there are weights and no config.json; copy the model's config.json there")
    fields = json_files.read(file, {"architectures?": ([str], None), "id2label?": (dict, None)})
    kind = fields.get("model_type", "bert")
    if kind != "bert":
        raise UserError(f"{file}: model_type is {kind!r}; only bert can be read")
    for name, expected in (
        ("position_embedding_type", "absolute"),
        ("is_decoder", False),
        ("add_cross_attention", False),
    ):
        if fields.get(name, expected) != expected:
            raise UserError(f"{file}: {name} is {fields[name]!r}; only {expected!r} can be read")
    try:
        # transformers' "dtype" is of the stored weights, not of the computation.
        architecture = {n: v for n, v in fields.items() if n not in bert_config.EXECUTION_FIELDS}
        return bert_config.from_dict(architecture, ignore_unknown=True), fields
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


def read_tokenizer(folder: files.PathLike) -> tokenization.Tokenizer | None:
    """The tokenizer of a folder: vocab.txt or a SentencePiece model, else what tokenizer.json holds.

    None where it has none of them. Lower-casing and accents are those of tokenizer_config.json, else those of
    tokenizer.json, else detected from the vocabulary.
    """
    there = files.names(folder)
    settings, rust = (
        json_files.read(os.path.join(folder, name), schema) if name in there else {}
        for name, schema in (("tokenizer_config.json", _TOKENIZER_CONFIG), ("tokenizer.json", _TOKENIZER))
    )
    normalizer = _bert_normalizer(rust)
    lower_case = settings.get("do_lower_case", normalizer.get("lowercase"))
    strip_accents = settings.get("strip_accents")
    if strip_accents is None:
        strip_accents = normalizer.get("strip_accents")
    if settings.get("tokenize_chinese_chars", True) is False:
        raise UserError(
            f"{folder}: its tokenizer keeps Chinese characters together (tokenize_chinese_chars is false), "
            "which bert_jax's does not do"
        )
    for name in ("vocab.txt", "spiece.model", "tokenizer.model"):
        if name in there:
            path = os.path.join(folder, name)
            break
    else:
        if not rust:
            return None
        path = _extract_vocabulary(rust, folder)
    return tokenization.load(path, lower_case=lower_case, strip_accents=strip_accents)


def _bert_normalizer(rust: Mapping[str, Any]) -> Mapping[str, Any]:
    normalizer = rust.get("normalizer") or {}
    for one in (normalizer, *(normalizer.get("normalizers") or ())):
        if one.get("type") == "BertNormalizer":
            return one
    return {}


def _extract_vocabulary(rust: Mapping[str, Any], folder: str) -> str:
    model = rust.get("model") or {}
    if model.get("type", "WordPiece") != "WordPiece" or not isinstance(model.get("vocab"), dict):
        raise UserError(
            f"{folder}/tokenizer.json holds no WordPiece vocabulary (its model is {model.get('type')}); put "
            "the model's vocab.txt beside it"
        )
    json_files.check(model["vocab"], {str: int}, os.path.join(folder, "tokenizer.json"), "model.vocab")
    ids = dict(model["vocab"]) | {token["content"]: token["id"] for token in rust.get("added_tokens") or ()}
    tokens = sorted(ids, key=ids.get)
    if [ids[token] for token in tokens] != list(range(len(tokens))) or any("\n" in token for token in tokens):
        raise UserError(f"{folder}/tokenizer.json: its ids are not 0 to {len(tokens) - 1}, one a token")
    _extracted.append(tempfile.TemporaryDirectory(prefix="bert_jax-vocabulary-"))
    path = os.path.join(_extracted[-1].name, "vocab.txt")
    atomic.write_text(path, "".join(token + "\n" for token in tokens))
    return path


def _labels(fields: Mapping[str, Any], count: int) -> tuple[str, ...] | None:
    if count == 1 and fields.get("problem_type") != "multi_label_classification":
        return None  # a number, or a score
    given = fields.get("id2label") or {}
    return tuple(str(given.get(str(i), f"LABEL_{i}")) for i in range(count))


def _read_tensors(folder: str) -> dict[str, np.ndarray]:
    there, path = files.names(folder), os.path.join(folder, INDEX)
    if INDEX in there:
        index = json_files.read(path, {"weight_map": {str: str}})["weight_map"]
        shards = set(index.values())
        if not shards or any(os.path.basename(name) != name or name in ("", ".", "..") for name in shards):
            raise UserError(f"{path}: expected a weight_map from tensors to files beside it")
    elif WEIGHTS in there:
        shards = {WEIGHTS}
    else:
        raise _no_safetensors(folder)
    tensors: dict[str, np.ndarray] = {}
    for name in sorted(shards):
        file = os.path.join(folder, name)
        if name not in there:
            raise UserError(f"{folder}: {name} is missing, and {INDEX} names it; copy it there")
        try:
            tensors |= load_safetensors(file)
        except (safetensors.SafetensorError, ValueError) as error:
            raise UserError(f"{file}: it is damaged or no safetensors file ({error}); get it anew") from error
    if INDEX in there:
        absent = [name for name in index if name not in tensors]
        if absent:
            raise UserError(f"{folder}: {INDEX} names {absent[0]}, which no file holds; get the folder anew")
    return tensors


def load_safetensors(path: str) -> dict[str, np.ndarray]:
    """{name: array} of a safetensors file; half precision comes as it is stored."""
    from safetensors.numpy import load_file

    with files.local_copy(path) as copy:
        return load_file(copy)


def _no_safetensors(folder: str) -> UserError:
    other = next((name for name in _OTHER_WEIGHTS if name in files.names(folder)), None)
    if other is None:
        return UserError(f"{folder}: no weights in it; expected {WEIGHTS}, or {INDEX} and what it names")
    why = ", a pickle, which may run code as it is opened" if other.startswith("pytorch") else ""
    load = f"BertForPreTraining.from_pretrained({str(folder)!r})"
    return UserError(
        f"{folder}: its weights are in {other}{why}; expected {WEIGHTS}. Where you trust it: "
        f"python -c \"from transformers import *; {load}.save_pretrained('OUT')\""
    )


def _canonical(tensors: Mapping[str, np.ndarray], folder: str) -> dict[str, np.ndarray]:
    """Tensors in float32 by the names that a class with a head gives them."""
    result: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
        if name.startswith(("embeddings.", "encoder.", "pooler.")):
            name = f"bert.{name}"
        if name in result:
            raise UserError(f"{folder}: {name} is there twice, with and without its prefix")
        floating = np.issubdtype(tensor.dtype, np.floating) or tensor.dtype.name == "bfloat16"
        result[name] = tensor.astype(np.float32) if floating else tensor
    for second, first in (
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ):
        if second in result and first not in result:
            result[first] = result[second]
        elif second in result and not np.array_equal(result[second], result[first]):
            raise UserError(
                f"{folder}: {second} is not {first}; a BERT whose masked LM head is not tied to the word "
                "embeddings cannot be read"
            )
    return result
