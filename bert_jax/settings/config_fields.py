"""Fields of a run's configuration: how one is declared, and what follows from its declaration.

Configurations are frozen dataclasses, whose fields `option` declares: those of runs in
`bert_jax.settings.typed`, those of a task in its `Config`. Their defaults, the checks of values, what may
change when a run resumes, and docs/config.md follow from the declarations.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import numbers
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from bert_jax.errors import UserError

INT32 = 2**31 - 1

_TYPES = {bool: "bool", int: "int", float: "float", str: "str"}

Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a configuration.

    Attributes:
        default: the value unless a config file or a flag sets it.
        meaning: the description in docs/config.md.
        type: "int", "float", "bool", "str" or "regex". A float has to be finite, and may be given as an int.
        minimum, maximum: inclusive bounds.
        above, below: exclusive bounds.
        resume: whether the field may change when a run resumes. "same": only with --allow_changes. "free":
            yes, since it affects where, how fast or how often something is done, but not what is computed.
            "fixed": no, since the shapes in the checkpoint depend on it.
        optional: whether None is a valid value.
    """

    default: Any
    meaning: str
    type: str
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    resume: str = "same"
    optional: bool = False

    def problem(self, value: Any) -> str | None:
        """Returns the requirement that a value violates, or None if the value is valid."""
        if value is None and self.optional:
            return None
        if self.type in ("bool", "str", "regex"):
            expected = bool if self.type == "bool" else str
            if not isinstance(value, expected):
                return "must be true or false" if expected is bool else "must be a text"
            return _regex_problem(str(value)) if self.type == "regex" else None
        kind: Any = numbers.Integral if self.type == "int" else numbers.Real
        if isinstance(value, bool) or not isinstance(value, kind):
            return "must be a whole number" if self.type == "int" else "must be a number"
        if self.type == "float" and not math.isfinite(_as_float(value)):
            return "must be a finite number"
        if self.minimum is not None and value < self.minimum:
            return f"must be at least {self.minimum:g}"
        if self.above is not None and value <= self.above:
            return f"must be more than {self.above:g}"
        if self.maximum is not None and value > self.maximum:
            return f"must be at most {self.maximum:,}"
        if self.below is not None and value >= self.below:
            return f"must be less than {self.below:g}"
        return None


def _as_float(value: numbers.Real) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _regex_problem(value: str) -> str | None:
    try:
        re.compile(value)
    except re.error as error:
        return f"must be a regular expression ({error})"
    return None


def option(default: Any, meaning: str, **limits: Any) -> Any:
    """Returns a dataclass field that declares a field of a configuration.

    Args:
        default: the default value. Its type is the type of the field, unless `limits` has another one.
        meaning: the description in docs/config.md.
        **limits: further arguments of `Field`. The bounds of a whole number are 0 and 2^31 - 1 by default.
    """
    limits = limits if "type" in limits else {"type": _TYPES[type(default)]} | limits
    if limits["type"] == "int":
        limits = {"minimum": 0, "maximum": INT32} | limits
    return dataclasses.field(default=default, metadata={"field": Field(default, meaning, **limits)})


# Kinds of options: fields that may change, or never may, when a run resumes; and two ranges of numbers.
free = functools.partial(option, resume="free")
fixed = functools.partial(option, resume="fixed")
share = functools.partial(option, minimum=0, maximum=1)
amount = functools.partial(option, minimum=0, maximum=10**6)


class Part:
    """A configuration, or one of its parts."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields that a config file has, as a nested dict."""
        found = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, field.name)
            if isinstance(value, Part):
                found[field.name] = value.to_dict()
            elif "field" in field.metadata:
                found[field.name] = value
        return found


def fields(config: Any, prefix: str = "") -> Iterator[tuple[str, Field]]:
    """Yields (dotted name, declaration) of every field of a configuration and of its parts.

    Args:
        config: the configuration whose values are the defaults, such as `PretrainConfig()`.
        prefix: added in front of each name.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from fields(value, f"{prefix}{field.name}.")
        elif "field" in field.metadata:
            yield prefix + field.name, dataclasses.replace(field.metadata["field"], default=value)


def build(config: type[Config], values: Mapping[str, Any]) -> Config:
    """Returns an instance of a configuration class with the values of a nested mapping.

    Further entries of the mapping are ignored.
    """
    return config(
        **{
            field.name: build(type(field.default), values[field.name])
            if dataclasses.is_dataclass(field.default)
            else values[field.name]
            for field in dataclasses.fields(config)  # type: ignore[arg-type]  # `type[Config]` is a dataclass
            if dataclasses.is_dataclass(field.default) or "field" in field.metadata
        }
    )


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted name, value) of every field of a nested mapping."""
    for name, value in config.items():
        if hasattr(value, "items"):  # a mapping or a ConfigDict
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def check(name: str, value: Any, field: Field) -> None:
    """Raises UserError, which names the field, if a value is not valid."""
    problem = field.problem(value)
    if problem:
        raise UserError(f"{name}={_short(value)} {problem}")


def check_values(config: Mapping[str, Any], declared: Mapping[str, Field]) -> None:
    """Raises UserError for the first value of a configuration that is not valid; the message names the field.

    Args:
        config: the configuration, all of whose fields are declared.
        declared: the fields by their dotted names.
    """
    for name, value in flatten(config):
        check(name, value, declared[name])


def refuse_unused(
    values: Mapping[str, Any], defaults: Mapping[str, Any], unused: Iterable[tuple[str, str]]
) -> None:
    """Raises UserError for the first field that is set although it has no effect in the configured run.

    Args:
        values: the values of the fields by their dotted names.
        defaults: the values that they have if they are not set.
        unused: (field, reason) for each field without an effect.
    """
    for name, reason in unused:
        if values[name] != defaults[name]:
            raise UserError(f"{name}={values[name]}: {reason}; leave it at {defaults[name]!r}")


# Maps names that fields have in other frameworks to their names here.
_SYNONYMS = {
    "lr": "learning_rate",
    "bs": "batch_size",
    "train_batch_size": "batch_size",
    "wd": "weight_decay",
    "warmup": "warmup_steps",
    "warmup_ratio": "warmup_fraction",
    "max_steps": "steps",
    "train_steps": "steps",
    "num_steps": "steps",
    "num_train_steps": "steps",
    "num_train_epochs": "epochs",
    "gradient_accumulation_steps": "accumulate_steps",
    "grad_accum": "accumulate_steps",
    "max_grad_norm": "optimizer.clip_norm",
    "grad_clip": "optimizer.clip_norm",
    "beta1": "optimizer.b1",
    "beta2": "optimizer.b2",
    "epsilon": "optimizer.eps",
    "max_length": "max_seq_length",
    "seq_length": "max_seq_length",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "dropout": "hidden_dropout_prob",
    "precision": "model.dtype",
    "bf16": "model.dtype",
    "save_every": "checkpoint.every",
    "save_steps": "checkpoint.every",
    "eval_every": "eval.every",
    "eval_steps": "eval.every",
    "logging_steps": "log_every",
    "mlm_probability": "masking.prob",
    "checkpoint_path": "init_from",
    "model_name_or_path": "init_from",
    "num_epochs": "epochs",
    "data_dir": "data.dir",
    "train_file": "data.train",
    "validation_file": "data.eval",
    "eval_file": "data.eval",
    "output_dir": "workdir",
    "init_checkpoint": "init_from",
    "warmup_proportion": "warmup_fraction",
    "num_warmup_steps": "warmup_steps",
    "save_checkpoints_steps": "checkpoint.every",
    "max_eval_steps": "eval.batches",
    "masked_lm_prob": "masking.prob",
    "max_predictions_per_seq": "masking.max_predictions",
    "do_whole_word_mask": "masking.strategy",
    "random_seed": "seed",
    "n_best_size": "n_best",
    "per_device_train_batch_size": "batch_size",
    "auto_find_batch_size": "accumulate_steps",
    "adam_epsilon": "optimizer.eps",
    "adam_beta1": "optimizer.b1",
    "adam_beta2": "optimizer.b2",
    "lr_scheduler_type": "optimizer.schedule",
    "metric_for_best_model": "metrics",
    "input_file": "data.dir",
}

_OF_DATA = "the records have it, which `bert-jax data --{}` makes"
_DEVICES = "a run uses the devices that JAX sees"

# Maps names of settings that are no fields here to how the same is set.
_NO_FIELDS = {
    "max_seq_length": "rows are as long as those of the records, which `bert-jax data --max_seq_length` "
    "makes",
    "output_file": "`bert-jax data --output` is the folder of the records",
    "do_lower_case": "it is detected from the vocabulary, and `--lower_case` of `vocab` and `data` sets it",
    "short_seq_prob": _OF_DATA.format("short_seq_prob"),
    "dupe_factor": _OF_DATA.format("dupe_factor"),
    "bert_config_file": "init_from has the architecture; without one, set model.hidden_size and so on",
    "load_best_model_at_end": "best/ of a fine-tuning has the best checkpoint by the first of its metrics",
    "metric_for_best_model": "fine-tuning has it, by the name metrics",
    "epochs": "pre-training has steps, and fine-tuning epochs",
    "steps": "fine-tuning has epochs, which may be a fraction (--config.epochs=0.1), and pre-training steps",
    "use_tpu": _DEVICES,
    "tpu_name": _DEVICES,
    "num_tpu_cores": _DEVICES,
}


def closest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known field that an unknown name most likely stands for, or None.

    Args:
        name: the unknown name, such as "optimizer.lr", "learning_rate" or "batchsize".
        known: the dotted names of the known fields.
    """
    known = list(known)
    last = name.rpartition(".")[2]
    for wanted in (name, _SYNONYMS.get(last, last)):
        for candidate in known:
            if candidate == wanted or candidate.endswith(f".{wanted}"):
                return candidate
    by_last = {candidate.rpartition(".")[2]: candidate for candidate in known}
    near = difflib.get_close_matches(last, by_last, n=1, cutoff=0.8)
    return by_last[near[0]] if near else None


def elsewhere(name: str) -> str:
    """Returns how to set what a name of another framework means and no field here does, or ""."""
    return _NO_FIELDS.get(name) or _NO_FIELDS.get(_SYNONYMS.get(name, name), "")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
