"""Reads and writes TF1 checkpoints of google-research's models with TensorFlow (the extra `tensorflow`)."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bert_jax import tokenization
from bert_jax.checkpoint.leaves import check_finite
from bert_jax.convert import families
from bert_jax.convert.families import FAMILIES, Family
from bert_jax.convert.families.base import START_FIELDS
from bert_jax.convert.formats.base import Format
from bert_jax.convert.heads import head_of
from bert_jax.convert.model import Model, check_file_params
from bert_jax.convert.param_mapping import GENERATOR, TENSORFLOW
from bert_jax.convert.sentences import PairScores, SentenceVectors
from bert_jax.data import google
from bert_jax.errors import StorageError, UserError, check_installed
from bert_jax.io import atomic, files, json_files
from bert_jax.io.wording import first_line
from bert_jax.models import config as bert_config
from bert_jax.objectives.replaced_tokens import generator_config

PREFIX = "bert_model.ckpt"  # the prefix of the released checkpoints

# Fields that a released configuration lacks; they are not compared with their defaults when one is written.
_NOT_COMPARED = ("layer_norm_eps", "model_type", *START_FIELDS, *bert_config.DROPOUT_FIELDS)


def find_prefix(path: files.PathLike) -> str | None:
    """Returns the prefix of the TF1 checkpoint at a path or in a directory; None without one."""
    text = os.fspath(path)
    for prefix in (text, text.removesuffix(".index"), text.removesuffix(".meta")):
        if not google.is_record_file(prefix) and files.exists(prefix + ".index"):
            return prefix
    names = [name for name in files.names(text) if name.endswith(".index")]
    found = [name.removesuffix(".index") for name in names]
    found = [name for name in found if not google.is_record_file(name)]  # records have .index files, too
    found = [PREFIX] if PREFIX in found else found
    return os.path.join(text, found[0]) if len(found) == 1 else None


class TensorFlow1(Format):
    """A checkpoint of TensorFlow 1, with its configuration and vocabulary in the same directory."""

    name = TENSORFLOW
    title = "TF1 checkpoint"

    def detect(self, path: files.PathLike) -> bool:
        return find_prefix(path) is not None

    def read_config(
        self, path: files.PathLike
    ) -> tuple[bert_config.EncoderConfig, tokenization.Tokenizer | None]:
        folder = files.parent(find_prefix(path) or os.fspath(path))
        config, family = _read_config(folder)
        return config, read_tokenizer(folder, family)

    def read(self, path: files.PathLike, *, ignore: str = "", log: Callable[[str], None] = print) -> Model:
        prefix = find_prefix(path) or os.fspath(path)
        folder = files.parent(prefix)
        config, family = _read_config(folder)
        model = from_variables(_variables(prefix), config, read_tokenizer(folder, family), prefix, ignore)
        if model.classes > 1:
            model = model.replace(labels=_numbered(model.classes))
        return model

    def warning(self, model: Model) -> str:
        is_lost = {
            "the settings of sentence vectors": model.sentence not in (None, SentenceVectors()),
            "the labels": bool(model.labels) and model.labels != _numbered(len(model.labels or ())),
            "problem_type": model.problem_type in ("multi_label_classification", "regression"),
            "the settings of scores": model.scores != PairScores(),
        }
        lost = [name for name, value in is_lost.items() if value]
        return f"a TF1 checkpoint does not keep {', '.join(lost)}; choose another format" if lost else ""

    def write(self, model: Model, folder: files.PathLike, card: str = "") -> None:
        family = model.family
        if family.tensorflow is None:
            raise UserError(f"--to=tensorflow does not support the family {family.name}")
        fields = family.tensorflow_fields(family.tensorflow, model.config)
        if lost := family.lost_field(model.config, fields, _NOT_COMPARED, model.head, TENSORFLOW):
            raise UserError(f"--to=tensorflow does not support {lost[0]}={lost[1]!r} of {family.name}")
        tf, tensors = tensorflow(), to_variables(model)
        prefix = os.path.join(os.fspath(folder), PREFIX)
        ordered = sorted(tensors)
        arrays = [tf.constant(np.asarray(tensors[name], np.float32)) for name in ordered]
        part = prefix + "-part"
        try:
            tf.raw_ops.SaveV2(
                prefix=part, tensor_names=ordered, shape_and_slices=[""] * len(ordered), tensors=arrays
            )
            tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=[part], destination_prefix=prefix, delete_old_dirs=False
            )
        except tf.errors.OpError as error:
            raise StorageError(f"{prefix}: TensorFlow cannot write it ({first_line(error)})") from error
        content = json.dumps(fields, indent=2, sort_keys=True) + "\n"
        atomic.write_text(os.path.join(folder, family.tensorflow.file), content)
        if model.tokenizer is not None:
            name = tokenization.KINDS[model.tokenizer.kind].released[0]
            atomic.copy_file(model.tokenizer.path, os.path.join(folder, name))


FORMAT = TensorFlow1()


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"LABEL_{i}" for i in range(count))


def to_variables(model: Model) -> dict[str, np.ndarray]:
    """Returns the variables of a checkpoint by name, including the generator's."""
    family, generator = model.family, model.generator
    groups = {one.ours.split("/")[0] for one in family.table if TENSORFLOW in one.names}
    kind = GENERATOR if model.head == "masked_lm" and "mlm" not in groups else TENSORFLOW
    tensors = family.to_files(model.params, model.config, kind, model.head)
    if generator is not None:
        tensors |= family.to_files(generator.params, generator.config, GENERATOR, generator.head)
    return tensors


def from_variables(
    variables: Mapping[str, Any],
    config: bert_config.EncoderConfig,
    tokenizer: tokenization.Tokenizer | None,
    source: str,
    ignore: str = "",
) -> Model:
    """Returns the model with the variables of a checkpoint; `config` is the discriminator's, if it has two.

    Variables are any objects with a shape that `numpy.asarray` accepts.
    """
    family = families.of(config)

    def read(config, kind):
        found = family.from_files(variables, config, kind)
        check_file_params(source, family, found, ignore)
        head = head_of({name.split("/")[0] for name in found.params})
        return Model(config, found.params, head, tokenizer, source=source)

    # Both networks share the tables, so a layer tells which network is present.
    layers = {
        kind: one.names[kind].format(layer=0)
        for one in family.table
        for kind in (TENSORFLOW, GENERATOR)
        if one.ours.endswith("/output/kernel") and kind in one.names and "{layer}" in one.names[kind]
    }
    if layers.get(GENERATOR) not in variables:
        return read(config, TENSORFLOW)
    if layers[TENSORFLOW] not in variables:
        return read(config, GENERATOR)
    width = variables[layers[GENERATOR]].shape[1]
    generator = read(generator_config(config, width), GENERATOR)
    return read(config, TENSORFLOW).replace(generator=generator)


def _read_config(folder: str) -> tuple[bert_config.EncoderConfig, Family]:
    released = {one.tensorflow.file: one for one in FAMILIES.values() if one.tensorflow}
    names = [name for name in released if files.exists(os.path.join(folder, name))] or list(released)
    family = released[names[0]]
    return family.read_config(json_files.read(os.path.join(folder, names[0])), TENSORFLOW), family


def read_tokenizer(folder: str, family: Family) -> tokenization.Tokenizer | None:
    """Returns the tokenizer of the vocabulary in a folder, or None."""
    record = family.tokenizer
    path = tokenization.find(folder, record.kind)
    if path is None:
        return None
    return tokenization.load(path, template=record.template, normalizer=record.normalizer_of(path))


class _Variable:
    def __init__(self, prefix: str, reader, name: str, shape: tuple[int, ...]):
        self._prefix, self._reader, self._name, self.shape = prefix, reader, name, shape

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        array = self._reader.get_tensor(self._name)
        check_finite(self._prefix, {self._name: array})
        return np.asarray(array, dtype or np.float32)


def _variables(prefix: str) -> dict[str, _Variable]:
    tf = tensorflow()
    try:
        reader = tf.train.load_checkpoint(prefix)
        shapes = reader.get_variable_to_shape_map()
    except (tf.errors.OpError, ValueError) as error:
        raise UserError(f"{prefix}: TensorFlow cannot read it ({first_line(error)})") from error
    return {name: _Variable(prefix, reader, name, tuple(shapes[name])) for name in sorted(shapes)}


def tensorflow():
    """Returns the module `tensorflow`. Raises UserError if it is not installed."""
    check_installed("tensorflow", "tensorflow", "a TF1 checkpoint")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # leaves the accelerator to JAX
    return importlib.import_module("tensorflow")
