"""What the record of a model family holds, and what is the same for all families."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.convert import param_mapping
from bert_jax.convert.heads import HEADS
from bert_jax.convert.param_mapping import HUGGINGFACE, Entry, Found
from bert_jax.errors import UserError
from bert_jax.models import assembled
from bert_jax.models.config import ENCODER_FIELDS, EncoderConfig, from_dict
from bert_jax.models.heads import ClassificationHead

CLASSIFIER = "classifier/bias"  # the parameter that has one number per class

_ACTIVATION = {"gelu_tanh": "gelu_pytorch_tanh"}


@dataclasses.dataclass(frozen=True)
class Family:
    """How the models of one family lie in files. Nothing of it is needed to compute them.

    Attributes:
        name: as people write it, such as "BERT".
        model_type: the value of that field in config.json.
        class_prefix: what the names of transformers' classes begin with, such as "Bert".
        base: what the names of the encoder's tensors begin with in models that have a head, such as "bert".
        table: every parameter, with its name and layout in each kind of file.
        heads: {head: groups of parameters that make it up}; a group in brackets may be there or not.
        classifiers: {head: what its classifier is}; of masked LM and next sentence, all families have BERT's.
        fields: {field of config.json: field of `EncoderConfig`}, in the order of config.json.
        activation: the field of config.json that names the activation.
        constants: fields of config.json that have one value in every model that can be read.
        checked: the same, of fields that are not written, because transformers has this value by default.
        fixed: fields of `EncoderConfig` that config.json does not have, with the value of every such model.
        beside: {kind of file: pattern of the names of tensors that are no parameters}, such as optimizer
            state, counters, buffers and the second names of tied weights.
        tied: (second name, first name) in Hugging Face's files of the same tensor.
        tokenizer_class: of tokenizer_config.json, for a WordPiece vocabulary.
        tokenizer_fields: further fields of tokenizer_config.json.
        tensorflow_config: name of the file beside a TF1 checkpoint that describes it; "" where none exist.
        sizes: {name of a released model: fields of `EncoderConfig`}.
    """

    name: str
    model_type: str
    class_prefix: str
    base: str
    table: tuple[Entry, ...]
    heads: Mapping[str, tuple[str, ...]]
    classifiers: Mapping[str, ClassificationHead]
    fields: Mapping[str, str]
    activation: str
    tied: tuple[tuple[str, str], ...]
    beside: Mapping[str, re.Pattern[str]]
    tokenizer_class: str
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    checked: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tokenizer_fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tensorflow_config: str = ""
    sizes: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def required(self, head: str) -> list[str]:
        """Returns the groups that every model with a head has."""
        return [group for group in self.heads[head] if not group.startswith("(")]

    def allowed(self, head: str) -> list[str]:
        """Returns the groups that a model with a head may have."""
        return [group.strip("()") for group in self.heads[head]]

    @property
    def groups(self) -> tuple[str, ...]:
        """Every group of parameters that some head has."""
        return tuple(dict.fromkeys(group for head in self.heads for group in self.allowed(head)))

    def class_name(self, head: str) -> str:
        """Returns the name of transformers' class with a head."""
        return self.class_prefix + HEADS[head].suffix

    def head_of_class(self, name: str) -> str | None:
        """Returns the head of a class of transformers; None for a class that is not of this family."""
        return next((head for head in self.heads if self.class_name(head) == name), None)

    def read_config(self, fields: Mapping[str, Any]) -> EncoderConfig:
        """Returns the architecture that a config.json describes.

        Raises:
            UserError: a field that changes the function and cannot be read, or a wrong value.
        """
        for name, expected in {**self.constants, **self.checked}.items():
            if fields.get(name, expected) != expected:
                raise UserError(f"{name} is {fields[name]!r}; only {expected!r} can be read")
        known = {**self.fields, self.activation: "hidden_act"}
        found = {ours: fields[theirs] for theirs, ours in known.items() if theirs in fields}
        return from_dict({"model_type": self.model_type, **self.fixed, **found})

    def write_config(self, config: EncoderConfig, head: str) -> dict[str, Any]:
        """Returns the fields of config.json that the architecture and the class decide.

        Raises:
            UserError: transformers' class computes something else.
        """
        fields: dict[str, Any] = {theirs: getattr(config, ours) for theirs, ours in self.fields.items()}
        fields |= {"architectures": [self.class_name(head)], "model_type": self.model_type}
        fields[self.activation] = _ACTIVATION.get(config.hidden_act, config.hidden_act)
        fields |= self.constants
        again = self.read_config(fields)
        for name in ENCODER_FIELDS:
            ours, theirs = getattr(config, name), getattr(again, name)
            if ours != theirs:
                raise UserError(f"transformers' {self.name} has no {name}={ours!r}, only {theirs!r}")
        return fields

    def to_files(
        self, params: Mapping[str, np.ndarray], config: EncoderConfig, kind: str
    ) -> dict[str, np.ndarray]:
        """Returns {name in the file: array}; see `param_mapping.to_files`.

        Raises:
            UserError: this kind of file has no names for a parameter.
        """
        nameless = [one.ours for one in self.table if one.ours in params and kind not in one.names]
        if nameless:
            raise UserError(f"a {self.name} has no names in a file of the kind {kind} for {nameless[0]}")
        layers = config.num_hidden_layers
        return param_mapping.to_files(params, self.table, kind, layers, config.hidden_size)

    def from_files(self, tensors: Mapping[str, Any], config: EncoderConfig, kind: str) -> Found:
        """Returns what the tensors of a file are; see `param_mapping.from_files`."""
        table = [one for one in self.table if kind in one.names]
        last = next((one.name(kind) for one in table if one.ours == CLASSIFIER), "")
        classes = tensors[last].shape[0] if last in tensors else 2
        # Of the classifiers, the one that has the most parameters.
        classification = self.classifiers["sequence_classification"]
        expected = assembled.parameters(config, self.groups, classes, classification)
        return param_mapping.from_files(tensors, table, expected, kind, config.hidden_size, self.beside[kind])

    def canonical(self, tensors: Mapping[str, np.ndarray], folder: str) -> dict[str, np.ndarray]:
        """Returns the tensors of a Hugging Face folder in float32, by the names of a class with a head.

        Raises:
            UserError: a tensor is there under two names, and with different values where it is tied.
        """
        prefix = f"{self.base}."
        of_base = [one.names[HUGGINGFACE] for one in self.table if one.names[HUGGINGFACE].startswith(prefix)]
        parts = tuple({name.removeprefix(prefix).partition(".")[0] + "." for name in of_base})
        result: dict[str, np.ndarray] = {}
        for stored, tensor in tensors.items():
            name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", stored)
            name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
            if name.startswith(parts):
                name = prefix + name
            if name in result:
                raise UserError(f"{folder}: {name} is there twice, with and without its prefix")
            floating = np.issubdtype(tensor.dtype, np.floating) or tensor.dtype.name == "bfloat16"
            result[name] = tensor.astype(np.float32) if floating else tensor
        for second, first in self.tied:
            if second in result and first not in result:
                result[first] = result[second]
            elif second in result and not np.array_equal(result[second], result[first]):
                raise UserError(
                    f"{folder}: {second} is not {first}; a {self.name} whose masked LM head is not tied to "
                    "the word embeddings cannot be read"
                )
        return result
