"""Defines the record of a model family, and the code that all families share."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.convert import param_mapping
from bert_jax.convert.heads import HEADS
from bert_jax.convert.param_mapping import DENSE, HUGGINGFACE, TENSORFLOW, Entry, FileParams
from bert_jax.errors import UserError
from bert_jax.models import assembled
from bert_jax.models.assembled import AssembledModel
from bert_jax.models.config import DROPOUT_FIELDS, ENCODER_FIELDS, EncoderConfig, from_dict
from bert_jax.models.heads.structures import (
    MASKED_LM,
    REPLACED_TOKENS,
    TOKENS,
    ClassificationHead,
    MaskedLMHead,
    ReplacedTokensHead,
)
from bert_jax.tokenization.families import TokenizerRecord

START_FIELDS = ("initializer",)  # affect the start of training only
CLASSIFIER = "classifier/bias"  # the parameter with one value per class

# Other names in config.json of the activations that `EncoderConfig` has.
ACTIVATIONS: Mapping[str, str] = {
    "swish": "silu",
    "gelu_python": "gelu",
    **dict.fromkeys(("gelu_fast", "gelu_accurate", "gelu_python_tanh"), "gelu_tanh"),
}

# Tensors that are not parameters: buffers below the prefix of a Hugging Face model, and, in a TF1 checkpoint,
# the state of the optimizer and counters.
_BUFFERS = r"\.(embeddings\.(position_ids|token_type_ids)|(.*\.)?rotary_emb\..*)"
_OPTIMIZER = r".*/(adam|lamb)_[mv](_\d+)?|.*/Adam(_1)?|global_step|.*loss_scale|.*(good|bad)_steps"

# Prefixes of every name in the state of a model: PyTorch adds them if the model is wrapped for several
# devices or compiled, and sentence-transformers adds one to the names of its encoder.
_WRAPPERS = re.compile(r"((module|_orig_mod|_fsdp_wrapped_module|0\.auto_model)\.)+")


@dataclasses.dataclass(frozen=True)
class TensorFlowConfig:
    """The configuration file next to the TF1 checkpoints of a family."""

    file: str
    fields: tuple[str, ...]  # the keys of `Family.fields` that it has
    activations: Mapping[str, str] = dataclasses.field(default_factory=dict)  # {name in the file: ours}
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # instead of `Family.fixed`
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # written with one value


@dataclasses.dataclass(frozen=True)
class Family:
    """How the models of a family are stored in files. The record is not needed to compute the models."""

    name: str  # the usual spelling, such as "BERT"
    model_type: str  # the value of this field in config.json
    class_prefix: str  # of the names of transformers' classes, such as "Bert"
    base: str  # the prefix of the encoder's tensor names in models with a head, such as "bert"
    table: tuple[Entry, ...]  # every parameter, with its name and layout in each kind of file
    heads: Mapping[str, tuple[str, ...]]  # {head: its parameter groups}; one in parentheses is optional
    classifiers: Mapping[str, ClassificationHead]  # by head
    fields: Mapping[str, str]  # {field of config.json: field of `EncoderConfig`}, in config.json's order
    activation: str  # the field of config.json that names the activation function
    # (second name, first name) pairs of the same tensor in Hugging Face files; the first is the matrix of the
    # masked LM head.
    tied: tuple[tuple[str, str], ...]
    tokenizer: TokenizerRecord
    # {value of `hidden_act`: its name in config.json}, where they differ.
    activations: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"gelu_tanh": "gelu_pytorch_tanh"}
    )
    # {field of config.json: role of a special token}, for fields that have a default in transformers.
    special_ids: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"pad_token_id": "pad"})
    masked_lm: MaskedLMHead = MASKED_LM
    replaced_tokens: ReplacedTokensHead = REPLACED_TOKENS
    # Fields of config.json with one value in every supported model. Those in `checked` are not written:
    # transformers has the same default.
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    checked: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # transformers' defaults for fields that config.json omits, for `constants`, `checked` and `read_more`.
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Fields of `EncoderConfig` that config.json does not have or may omit, with their values.
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Fields of `EncoderConfig` from config.json that `fields` cannot express, and the inverse.
    read_more: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda fields: {}
    write_more: Callable[[EncoderConfig], Mapping[str, Any]] = lambda config: {}
    tensorflow: TensorFlowConfig | None = None  # None if the family has no TF1 checkpoints
    # {name of a released model: fields of `EncoderConfig`}
    sizes: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    # {kind of file: pattern of the names of tensors that belong to another model in the same file}
    others: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # {other prefix of a name in Hugging Face files: its prefix in `table`}
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    low_rank_targets: tuple[str, ...] = ("query", "value")  # the dense layers that LoRA updates by default

    def untied(self) -> Family:
        """Returns the family with masked LM heads that have a separate matrix."""
        (weight, _), *biases = self.tied
        bias = next(one for one in self.table if one.ours == "mlm/bias")
        kernel = Entry("mlm/decoder/kernel", {HUGGINGFACE: weight}, DENSE, bias.heads)
        name = biases[0][0] if biases else bias.names[HUGGINGFACE]
        own = bias._replace(ours="mlm/decoder/bias", names={HUGGINGFACE: name})
        return dataclasses.replace(
            self,
            table=(*(one for one in self.table if one is not bias), kernel, own),
            masked_lm=dataclasses.replace(self.masked_lm, tied=False),
            tied=tuple((first, second) for second, first in biases),  # only the decoder's is used
        )

    def required(self, head: str) -> list[str]:
        """Returns the parameter groups of every model with this head; UserError for an unknown head."""
        if head not in self.heads:
            raise UserError(f"{self.name} has no head {head!r}; expected one of {', '.join(self.heads)}")
        return [group for group in self.heads[head] if not group.startswith("(")]

    def allowed(self, head: str) -> list[str]:
        """Returns the parameter groups that a model with this head may have."""
        return [group.strip("()") for group in self.heads[head]]

    @property
    def groups(self) -> tuple[str, ...]:
        """All parameter groups of all heads."""
        return tuple(dict.fromkeys(group for head in self.heads for group in self.allowed(head)))

    def class_name(self, head: str) -> str:
        """Returns the name of transformers' class with this head."""
        return self.class_prefix + HEADS[head].suffix

    def head_of_class(self, name: str) -> str | None:
        """Returns the head of one of transformers' classes; None if the class is not of this family."""
        return next((head for head in self.heads if self.class_name(head) == name), None)

    def module(
        self, config: EncoderConfig, groups: Sequence[str], head: str, classes: int = 2
    ) -> AssembledModel:
        """Returns the Flax module with some parameter groups and the classifier of a head, if it has one."""
        classifier = self.classifiers.get(head, TOKENS)
        heads = classifier, self.masked_lm, self.replaced_tokens
        return AssembledModel(config, tuple(groups), classes or 2, *heads)

    def read_config(self, fields: Mapping[str, Any], kind: str = HUGGINGFACE) -> EncoderConfig:
        """Returns the architecture; UserError for an unsupported field that changes the function."""
        fields = {**self.defaults, **fields}
        for name, expected in {**self.constants, **self.checked}.items():
            if fields.get(name, expected) != expected:
                raise UserError(f"{name}={fields[name]!r} is not supported, only {expected!r}")
        known = {**self.fields, self.activation: "hidden_act"}
        found = {ours: fields[theirs] for theirs, ours in known.items() if theirs in fields}
        fixed, activations = self.fixed, ACTIVATIONS
        if kind == TENSORFLOW and self.tensorflow:
            fixed, activations = self.tensorflow.fixed, self.tensorflow.activations
        if isinstance(act := found.get("hidden_act"), str):
            found["hidden_act"] = activations.get(act, act)
        more = {"tie_word_embeddings": fields.get("tie_word_embeddings") is not False}
        more |= self.read_more(fields)
        return from_dict({"model_type": self.model_type, **fixed, **found, **more})

    def write_config(self, config: EncoderConfig, head: str) -> dict[str, Any]:
        """Returns the fields of config.json that depend on the architecture and the class.

        Dropout rates and initializers without a field in config.json are skipped: they affect training only.
        UserError if the class of transformers computes a different function.
        """
        config = config.spelled_out()
        if config.classifier_pooling == "last" and self._pooling(config, head) == "none":
            config = config.replace(classifier_pooling=None)  # no class of transformers has it
        values = {theirs: getattr(config, ours) for theirs, ours in self.fields.items()}
        fields = {name: value for name, value in values.items() if value is not None}
        fields |= {"architectures": [self.class_name(head)], "model_type": self.model_type}
        fields[self.activation] = self.activations.get(config.hidden_act, config.hidden_act)
        fields |= {**self.constants, **self.write_more(config)}
        fields |= {} if config.tie_word_embeddings else {"tie_word_embeddings": False}
        if lost := self.lost_field(config, fields, (*DROPOUT_FIELDS, *START_FIELDS), head):
            raise UserError(f"transformers' {self.name} needs {lost[0]}={lost[2]!r}, not {lost[1]!r}")
        return fields

    def lost_field(
        self,
        config: EncoderConfig,
        fields: Mapping[str, Any],
        ignored: Collection[str],
        head: str,
        kind: str = HUGGINGFACE,
    ) -> tuple[str, Any, Any] | None:
        """Returns the name and both values of the first field that is not read back as it was written."""
        written, read = config.spelled_out(), self.read_config(fields, kind).spelled_out()
        for name in ENCODER_FIELDS:
            ours, theirs = getattr(written, name), getattr(read, name)
            if name == "classifier_pooling" and self._pooling(written, head) == self._pooling(read, head):
                continue
            if name not in ignored and ours != theirs:
                return name, ours, theirs
        return None

    def _pooling(self, config: EncoderConfig, head: str) -> str:
        return self.classifiers.get(head, TOKENS).pooling_of(config)

    def tensorflow_fields(self, tensorflow: TensorFlowConfig, config: EncoderConfig) -> dict[str, Any]:
        """Returns the fields of the configuration next to a TF1 checkpoint."""
        config = config.spelled_out()
        fields = {name: getattr(config, self.fields[name]) for name in tensorflow.fields}
        spellings = {act: name for name, act in tensorflow.activations.items()}
        fields[self.activation] = spellings.get(config.hidden_act, config.hidden_act)
        return fields | dict(tensorflow.constants)

    def to_files(
        self, params: Mapping[str, np.ndarray], config: EncoderConfig, kind: str, head: str = "none"
    ) -> dict[str, np.ndarray]:
        """Returns the arrays to store, by their names in the file; see `param_mapping.to_files`."""
        table = [one for one in self.table if not one.heads or head in one.heads]
        nameless = [one.ours for one in table if one.ours in params and kind not in one.names]
        if nameless:
            raise UserError(f"the format {kind} does not support {nameless[0]} of a {self.name}")
        named = [one for one in table if kind in one.names]
        return param_mapping.to_files(params, named, kind, config)

    def from_files(
        self, tensors: Mapping[str, Any], config: EncoderConfig, kind: str, head: str | None = None
    ) -> FileParams:
        """Returns the parameters and other tensors of a file; see `param_mapping.from_files`.

        If one name has several meanings, `head`, the head that the file names, decides.
        """
        table = [one for one in self.table if kind in one.names]
        head = head or self._head_of(tensors, table)
        table = [one for one in table if head is None or not one.heads or head in one.heads]
        last = [
            tensors[one.names[kind]] for one in table if one.ours == CLASSIFIER and one.names[kind] in tensors
        ]
        classes = last[0].shape[0] if last else 2
        # Use the classifier with the most parameters: `expected` must have every parameter of the table.
        expected = assembled.parameters(self.module(config, self.groups, "sequence_classification", classes))
        if kind == HUGGINGFACE:
            patterns = [re.escape(self.base) + _BUFFERS, *(re.escape(second) for second, _ in self.tied)]
        else:
            patterns = [_OPTIMIZER]
        others = re.compile("|".join([*patterns, *filter(None, [self.others.get(kind)])]))
        return param_mapping.from_files(tensors, table, expected, kind, config, others)

    def _head_of(self, tensors: Mapping[str, Any], table: Sequence[Entry]) -> str | None:
        for head in self.heads:
            own = [one.names.get(HUGGINGFACE, "") for one in table if head in one.heads]
            kernels = [name for name in own if name.endswith(".weight") or name.startswith("decoder")]
            if kernels and all(name in tensors for name in kernels):
                return head
        return None

    def canonical(self, tensors: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[str]]:
        """Returns the tensors of a Hugging Face folder in float32, named as in a class with a head.

        If tied tensors have different values, the masked LM head is skipped, and their names are the second
        result.
        """
        prefix = f"{self.base}."
        of_base = [one.names[HUGGINGFACE] for one in self.table if one.names[HUGGINGFACE].startswith(prefix)]
        heads_of_names = tuple({name.removeprefix(prefix).partition(".")[0] + "." for name in of_base})
        wrappers = {match[0] if (match := _WRAPPERS.match(name)) else "" for name in tensors}
        wrapper = wrappers.pop() if len(wrappers) == 1 else ""
        result: dict[str, np.ndarray] = {}
        for stored, tensor in tensors.items():
            name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", stored.removeprefix(wrapper))
            name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
            if name.startswith(heads_of_names):
                name = prefix + name
            other = next((other for other in self.renamed if name.startswith(other)), "")
            name = self.renamed.get(other, "") + name.removeprefix(other)
            if name in result:
                raise UserError(f"the model has two tensors {name}, with and without a prefix")
            floating = np.issubdtype(tensor.dtype, np.floating) or tensor.dtype.name == "bfloat16"
            result[name] = tensor.astype(np.float32, copy=False) if floating else tensor
        untied = []
        for second, first in self.tied:
            if second in result and first not in result:
                result[first] = result[second]
            elif second in result and not np.array_equal(result[second], result[first]):
                untied += [second] * self.masked_lm.tied
        head = [*untied, *(one.names[HUGGINGFACE] for one in self.table if one.ours.startswith("mlm/"))]
        return {name: x for name, x in result.items() if not untied or name not in head}, untied
