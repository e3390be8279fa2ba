"""The fields of a run's configuration: their types, their ranges, and whether they may change on resume.

The defaults are in `bert_jax.settings.defaults` and `bert_jax.tasks`, the descriptions in docs/config.md.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import numbers
import re
from collections.abc import Iterable, Mapping
from typing import Any

from etils import epy

from bert_jax.errors import UserError
from bert_jax.settings import config_files

with epy.lazy_imports():
    from bert_jax.settings import defaults  # It imports the model's configuration and thereby jax.

_INT32 = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Field:
    """The type and the valid values of a field of the configuration.

    Attributes:
        type: "int", "float", "bool", "str" or "regex". A float has to be finite, and may be given as an int.
        minimum, maximum: inclusive bounds.
        above, below: exclusive bounds.
        resume: whether the field may change when a run resumes. "same": only with --allow_changes. "free":
            yes, since it affects where, how fast or how often something is done, but not what is computed.
            "fixed": no, since the shapes in the checkpoint depend on it.
        optional: whether None is a valid value.
    """

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
        kind, what = (
            (numbers.Integral, "a whole number") if self.type == "int" else (numbers.Real, "a number")
        )
        if isinstance(value, bool) or not isinstance(value, kind):
            return f"must be {what}"
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


def _count(minimum: int, maximum: int = _INT32, resume: str = "same") -> Field:
    return Field("int", minimum, maximum, resume=resume)


def _size(maximum: int, minimum: int = 1) -> Field:
    return _count(minimum, maximum, "fixed")


_TEXT, _FLAG = Field("str"), Field("bool")
_SHAPING_FLAG = Field("bool", resume="fixed")
_RATE = Field("float", minimum=0, below=1)

# Upper bounds that no real run reaches prevent a typing mistake from causing an overflow or a request for all
# of the machine's memory.
_SHARED = {
    "seed": _count(0, 2**32 - 1),
    "batch_size": _count(1, 2**20),
    "accumulate_steps": _count(1, 2**20, "free"),
    "steps": _count(1),
    "log_every": _count(1, resume="free"),
    "max_skipped_steps": _count(1, resume="free"),
    "spikes.factor": Field("float", minimum=0, maximum=10**6),
    "spikes.window": _count(2, 10_000),
    "spikes.metric": _TEXT,
    "init_from": _TEXT,
    "init_ignore": Field("regex"),
    "model.vocab_size": _size(10**8, minimum=0),
    "model.hidden_size": _size(2**20),
    "model.num_hidden_layers": _size(10_000),
    "model.num_attention_heads": _size(2**20),
    "model.intermediate_size": _size(2**24),
    "model.max_position_embeddings": _size(2**24),
    "model.type_vocab_size": _size(10**6, minimum=0),
    "model.hidden_act": _TEXT,
    "model.hidden_dropout_prob": _RATE,
    "model.attention_probs_dropout_prob": _RATE,
    "model.initializer_range": Field("float", minimum=0, maximum=1000),
    "model.layer_norm_eps": Field("float", minimum=1e-37, maximum=1),
    "model.causal": _FLAG,
    "model.model_type": _TEXT,
    "model.embedding_size": _size(2**20, minimum=0),
    "model.embedding_projection": _SHAPING_FLAG,
    "model.position": Field("str", resume="fixed"),
    "model.position_offset": _count(0, 2**24),
    "model.rotary_theta": Field("float", above=0, maximum=10**12),
    "model.local_rotary_theta": Field("float", above=0, maximum=10**12),
    "model.local_window": _count(0, 2**24),
    "model.global_every": _count(1, 10_000),
    "model.norm_placement": _TEXT,
    "model.final_norm": _SHAPING_FLAG,
    "model.embedding_norm": _SHAPING_FLAG,
    "model.first_attention_norm": _SHAPING_FLAG,
    "model.norm": _TEXT,
    "model.norm_bias": _SHAPING_FLAG,
    "model.attention_bias": _SHAPING_FLAG,
    "model.inner_bias": _SHAPING_FLAG,
    "model.output_bias": _SHAPING_FLAG,
    "model.feed_forward": Field("str", resume="fixed"),
    "model.layer_groups": _size(10_000, minimum=0),
    "model.layers_per_group": _size(10_000),
    "model.embedding_dropout": dataclasses.replace(_RATE, optional=True),
    "model.inner_dropout": dataclasses.replace(_RATE, optional=True),
    "model.classifier_dropout": dataclasses.replace(_RATE, optional=True),
    "model.qa_dropout": dataclasses.replace(_RATE, optional=True),
    "model.initializer": _TEXT,
    "model.dtype": _TEXT,
    "model.attention": Field("str", resume="free"),
    "model.residual": Field("str", resume="free"),
    "model.remat": Field("str", resume="free"),
    "model.scan_unroll": _count(0, 10_000, "free"),
    "optimizer.name": _TEXT,
    "optimizer.args": _TEXT,
    "optimizer.schedule": _TEXT,
    "optimizer.learning_rate": Field("float", minimum=0, maximum=10**6),
    "optimizer.warmup_steps": _count(0),
    "optimizer.weight_decay": Field("float", minimum=0, maximum=10**6),
    "optimizer.b1": Field("float", minimum=0, below=1),
    "optimizer.b2": Field("float", minimum=0, below=1),
    "optimizer.eps": Field("float", minimum=1e-37, maximum=10**6),
    "optimizer.no_decay": Field("regex"),
    "optimizer.rates": _TEXT,
    "optimizer.freeze": Field("regex"),
    "optimizer.clip_norm": Field("float", minimum=0, maximum=10**30),
    "mesh.data": _count(-1, 2**20, "free"),
    "mesh.fsdp": _count(-1, 2**20, "free"),
    "mesh.tensor": _count(-1, 2**20, "free"),
    "checkpoint.every": _count(0, resume="free"),
    "checkpoint.keep": _count(1, resume="free"),
    "checkpoint.keep_every": _count(0, resume="free"),
    "eval.every": _count(0, resume="free"),
}

_PRETRAINING = {
    "resume_from": _TEXT,
    "optimizer.decay_steps": _count(0),
    "data.dir": Field("str", resume="free"),  # The records are identified by their digest.
    "data.vocab": Field("str", resume="free"),  # The vocabulary is identified by its digest.
    "data.train_split": _TEXT,
    "data.eval_split": _TEXT,
    "data.max_corrupt_rows": _count(0),
    "eval.batches": _count(0, resume="free"),
    "masking.prob": Field("float", above=0, below=1),
    "masking.strategy": _TEXT,
    "masking.max_predictions": _count(0, 2**16),
}

# The fields of every fine-tuning run. A task adds the fields of its `Config` (`bert_jax.tasks.fields`).
_FINETUNING = {
    "task": _TEXT,
    "epochs": Field("float", above=0, maximum=10**6),
    "warmup_fraction": Field("float", minimum=0, below=1),
    "early_stopping": _count(0),
    "optimizer.layer_decay": Field("float", above=0, maximum=1),
    "group_by_length": _FLAG,
    "data_dir": Field("str", resume="free"),
    "data.train": _TEXT,
    "data.eval": _TEXT,
    "vocab": _TEXT,
    "from_scratch": _FLAG,
}

FIELDS: Mapping[str, Field] = _SHARED | _PRETRAINING | _FINETUNING


def with_resume(resume: str) -> tuple[str, ...]:
    """Returns the names of the fields with a given `Field.resume`."""
    return tuple(name for name, field in FIELDS.items() if field.resume == resume)


def check(name: str, value: Any, fields: Mapping[str, Field] = FIELDS) -> None:
    """Checks the value of a field.

    Args:
        name: the dotted name of the field.
        value: the value.
        fields: the known fields.

    Raises:
        UserError: the value is not valid; the message names the field.
    """
    problem = fields[name].problem(value)
    if problem:
        raise UserError(f"{name}={_short(value)} {problem}")


def check_values(config: Mapping[str, Any], fields: Mapping[str, Field] = FIELDS) -> None:
    """Checks the values of all fields of a configuration that `fields` contains.

    Other fields are not checked; those of tasks are checked by `bert_jax.tasks.fields`.

    Raises:
        UserError: a value is not valid; the message names the field.
    """
    for name, value in config_files.fields(config):
        if name in fields:
            check(name, value, fields)


def check_pretraining(config: Mapping[str, Any]) -> None:
    """Checks that a configuration has exactly the fields of a pre-training run, with valid values.

    Raises:
        UserError: a field is missing, unknown or not valid.
    """
    have, expected = ({name for name, _ in config_files.fields(one)} for one in (config, defaults.pretrain()))
    if missing := sorted(expected - have):
        raise UserError(
            f"the config has no {', '.join(missing)}: start it from bert_jax.settings.defaults.pretrain()"
        )
    if unknown := sorted(have - expected):
        near = closest(unknown[0], expected)
        hint = f"; did you mean {near} by {unknown[0]}?" if near else ""
        raise UserError(f"the config has a field that pre-training does not know: {', '.join(unknown)}{hint}")
    check_values(config)
    for name in ("window", "metric"):
        value, default = config["spikes"][name], defaults.pretrain().spikes[name]
        if not config["spikes"]["factor"] and value != default:
            raise UserError(f"spikes.{name}={value}: spikes.factor=0 is no rule; leave it at {default!r}")


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


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
