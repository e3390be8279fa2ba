"""Reads Hugging Face folders: config.json, safetensors and tokenizer files. Nothing in them is executed."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import load_file

from bert_jax import tokenization
from bert_jax.checkpoint.leaves import check_finite
from bert_jax.convert import families, sentences
from bert_jax.convert.families import CLASSIFIER, FAMILIES, Family
from bert_jax.convert.formats import huggingface_export
from bert_jax.convert.formats.base import Format
from bert_jax.convert.formats.huggingface_export import INDEX, WEIGHTS
from bert_jax.convert.heads import HEADS, head_of
from bert_jax.convert.model import Model, check_file_params, params_of_head
from bert_jax.convert.param_mapping import HUGGINGFACE
from bert_jax.errors import UserError, reading
from bert_jax.io import files, json_files
from bert_jax.io.wording import some
from bert_jax.models import config as bert_config
from bert_jax.tokenization.huggingface import CONFIG, read_tokenizer

# Dtypes of unquantized weights, and of PyTorch's buffers. Quantized weights have other dtypes.
_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "BOOL")

# File names of weights in other formats; all but the last two are pickles or may contain one.
_OTHER_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")


class HuggingFace(Format):
    """A folder in the format of transformers' `save_pretrained`."""

    name = HUGGINGFACE
    title = "Hugging Face folder"

    def detect(self, path: files.PathLike) -> bool:
        """True for a directory with weights or with a config.json of transformers.

        Both may be in the directory of the encoder that sentence-transformers names.
        """
        if not files.is_directory(path):
            return False
        folder = sentences.encoder_folder(os.fspath(path))
        there = files.names(folder)
        if any(name in there for name in (WEIGHTS, INDEX, *_OTHER_WEIGHTS)):
            return True
        return CONFIG in there and "model_type" in json_files.read(os.path.join(folder, CONFIG))

    def read_config(
        self, path: files.PathLike
    ) -> tuple[bert_config.EncoderConfig, tokenization.Tokenizer | None]:
        """Returns the architecture and the tokenizer, from config.json and the tokenizer files."""
        folder = sentences.encoder_folder(os.fspath(path))
        config, family, _ = _read_config(folder)
        return config, read_tokenizer(folder, family.tokenizer)

    def read(self, path: files.PathLike, *, ignore: str = "", log: Callable[[str], None] = print) -> Model:
        """Reads the model in float32, without the parameters of other heads (see `params_of_head`)."""
        root = os.fspath(path)
        folder = sentences.encoder_folder(root)
        config, family, fields = _read_config(folder)
        classes = fields.get("architectures") or [""]
        if not {INDEX, WEIGHTS}.intersection(files.names(folder)):
            raise UserError(
                f"{folder} has no {WEIGHTS} or {INDEX}; pickles, which can run code, are not read"
            )
        tensors, untied = family.canonical(_read_tensors(folder))
        heads = [family.head_of_class(name) for name in classes]
        named = next(filter(None, heads), None)
        found = family.from_files(tensors, config, HUGGINGFACE, named)
        check_file_params(folder, family, found, ignore)
        head = _head_of(found.params, family, named)
        lacking = set(family.required(named or "none")) - {name.split("/")[0] for name in found.params}
        if untied:
            log(f"warning: {folder}: {untied[0]} is not tied, so that its masked LM head is not used")
        elif lacking:
            log(f"warning: {folder} has no {some(sorted(lacking))}, which its head {named} needs")
        params = params_of_head(found.params, head, family, folder, log)
        labels, problem_type, scores = None, "", sentences.PairScores()
        if CLASSIFIER in params and HEADS[head].labeled:
            labels = _labels(fields, params[CLASSIFIER].shape[0])
        if head == "sequence_classification":
            problem_type = fields.get("problem_type") or ""
            scores = sentences.read_scores(root, fields, config.max_seq_length)
        tokenizer = read_tokenizer(folder, family.tokenizer, log)
        model = Model(config, params, head, tokenizer, labels, root, problem_type)
        sentence = self.read_sentence(root, config, tokenizer)
        return model.replace(sentence=sentence, scores=scores, untied=untied[0] if untied else "")

    def read_sentence(
        self,
        path: files.PathLike,
        config: bert_config.EncoderConfig,
        tokenizer: tokenization.Tokenizer | None,
    ) -> sentences.SentenceVectors | None:
        """Returns the settings of sentence-transformers, if the folder has them."""
        return sentences.read(os.fspath(path), config.max_seq_length, tokenizer)

    def warning(self, model: Model) -> str:
        """Returns one line if transformers tokenizes texts or pairs differently from the model, or ""."""
        return huggingface_export.tokenizer_warning(model)

    def write(self, model: Model, folder: files.PathLike, card: str = "") -> None:
        """Writes config.json, safetensors and the tokenizer files; see `huggingface_export.write`."""
        huggingface_export.write(model, folder, card=card)


FORMAT = HuggingFace()


def _read_config(folder: str) -> tuple[bert_config.EncoderConfig, Family, dict[str, Any]]:
    file = os.path.join(folder, CONFIG)
    fields = json_files.read(file, {"architectures?": ([str], None), "id2label?": (dict, None)})
    kind = fields.get("model_type", "bert")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UserError(f"{file}: model_type is {kind!r}, expected one of {', '.join(FAMILIES)}")
    try:
        config = FAMILIES[kind].read_config(fields)
        return config, families.of(config), fields
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


def _head_of(params: Collection[str], family: Family, named: str | None) -> str:
    groups = {name.split("/")[0] for name in params}
    required = set(family.required(named or "none"))
    if named not in (None, "none") and required <= groups:
        groups -= {"classifier", "qa"} - required  # another task's, which may be left in the file
    return head_of(groups, *([named] if named and "classifier" in required else []))


def _labels(fields: Mapping[str, Any], count: int) -> tuple[str, ...] | None:
    named = fields.get("id2label") or {}
    labels = tuple(str(named.get(str(i), f"LABEL_{i}")) for i in range(count))
    if labels == ("LABEL_0",) and fields.get("problem_type") != "multi_label_classification":
        return None  # the name that transformers gives to a regression value, or to a single score
    return labels


def _read_tensors(folder: str) -> dict[str, np.ndarray]:
    shards = {WEIGHTS}
    # A model that is saved again in one file still has the index of its former shards.
    if WEIGHTS not in files.names(folder):
        index = json_files.read(os.path.join(folder, INDEX), {"weight_map": {str: str}})
        shards = set(index["weight_map"].values())
    tensors: dict[str, np.ndarray] = {}
    for name in sorted(shards):
        tensors |= load_safetensors(os.path.join(folder, name))
    return tensors


def load_safetensors(path: str) -> dict[str, np.ndarray]:
    """Returns the arrays of a safetensors file by name; half precision is not converted."""
    try:
        # `open_read` raises an error for a directory; safetensors does not.
        with reading(path), files.local_copy(path) as copy, files.open_read(copy):
            with safetensors.safe_open(copy, "numpy") as file:
                names = file.keys()
                for name in names:
                    tensor = file.get_slice(name)
                    dtype, is_matrix = tensor.get_dtype(), len(tensor.get_shape()) > 1
                    # Counters are not matrices, and position_ids is a buffer.
                    if dtype not in _DTYPES and is_matrix and not name.endswith("_ids"):
                        raise UserError(f"{path}: {name} is {dtype}; quantized weights are not supported")
            tensors = load_file(copy)
    except (safetensors.SafetensorError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as safetensors ({error})") from error
    check_finite(path, tensors)
    return tensors
