"""Loads the architecture, the model or the parameters of a checkpoint of any format."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from bert_jax import checkpoint, hub
from bert_jax.convert import families, formats
from bert_jax.convert.model import Model, not_ignored
from bert_jax.convert.sentences import SentenceVectors
from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.io.wording import some
from bert_jax.models.config import RUN_FIELDS, SHAPE_FIELDS, SIZE_FIELDS, EncoderConfig
from bert_jax.models.heads.structures import LSTM
from bert_jax.objectives.distillation import DISTILLATION
from bert_jax.objectives.embedding.denoising import DECODER
from bert_jax.objectives.replaced_tokens import GENERATOR
from bert_jax.tokenization import Tokenizer
from bert_jax.workdir import run_directory

_EXPECTED = "a work directory or step of bert-jax, a Hugging Face or PEFT folder, a TF1 prefix, or a hub name"


def detect(path: files.PathLike) -> formats.Format:
    """Returns the format of the checkpoint at a path. Raises UserError if there is none."""
    if path and (kind := formats.find(path)):
        return kind
    raise UserError(f"{os.fspath(path)!r} is not a model; expected {_EXPECTED}")


def local_path(path: files.PathLike) -> files.PathLike:
    """Returns the cached folder of a model of the hub; another path unchanged, such as a TF1 prefix."""
    return path if formats.find(path) else hub.local_path(path)


def load_architecture(path: files.PathLike) -> tuple[EncoderConfig, Tokenizer]:
    """Returns the architecture and the tokenizer of a checkpoint, without reading its weights."""
    folder = local_path(path)
    config, tokenizer = detect(folder).read_config(folder)
    if tokenizer is None:
        raise UserError(f"{path} has no vocabulary; add vocab.txt to it")
    return config, tokenizer


def load_sentence(
    path: files.PathLike, config: EncoderConfig, tokenizer: Tokenizer
) -> SentenceVectors | None:
    """Returns the settings of a checkpoint's sentence vectors, for this architecture; None if it has none."""
    folder = local_path(path)
    return detect(folder).read_sentence(folder, config, tokenizer)


def adopt_architecture(
    path: files.PathLike, fields: Mapping[str, Any], explicit: Collection[str] = ()
) -> tuple[dict[str, Any], Tokenizer]:
    """Returns every field of EncoderConfig, and the tokenizer, of a run that starts from a checkpoint.

    Of `fields` from the run's config, those in `config.RUN_FIELDS` are kept, and those in `explicit`, which
    the user set; UserError for an explicit size that differs from the checkpoint's.
    """
    theirs, tokenizer = load_architecture(path)
    adopted = theirs.to_dict()
    # A vocab_size of 0 means that it is not specified.
    own = [name for name in explicit if name != "vocab_size" or fields[name]]
    wrong = [name for name in own if name in SHAPE_FIELDS and fields[name] != adopted[name]]
    if wrong:
        listed = " and ".join(f"--config.model.{name}={adopted[name]}, not {fields[name]}" for name in wrong)
        raise UserError(f"--config.init_from={path}: expected {listed}")
    return adopted | {name: fields[name] for name in (*RUN_FIELDS, *own)}, tokenizer


def describe_architecture(path: files.PathLike, fields: Mapping[str, Any]) -> str:
    """Returns a line with the sizes of the architecture that `adopt_architecture` returned."""
    sizes = ", ".join(f"{name} {fields[name]:,}" for name in SIZE_FIELDS)
    return f"architecture of {os.fspath(path)}: {sizes}"


def load(path: files.PathLike, *, ignore: str = "", log: Callable[[str], None] = print) -> Model:
    """Loads a complete model into the host's memory.

    Args:
        path: a work directory or one of its steps, a Hugging Face or PEFT folder, a TF1 prefix, or a name on
            the hub.
        ignore: a regular expression; unknown tensors are skipped if it matches their full names.
        log: called with one line of text for each notice.

    Raises:
        UserError: there is no checkpoint, or it is damaged, incomplete or of an unknown family.
    """
    folder = local_path(path)
    model = detect(folder).read(folder, ignore=ignore, log=log)
    if folder == path:
        return model
    return model.replace(source=f"{os.fspath(path).partition('@')[0]}@{os.path.basename(folder)}")


def commit_of_hub(path: str, workdir: files.PathLike) -> dict[str, str]:
    """Returns {"init_from_commit": COMMIT} of a model on the hub that a run starts or started from; else {}.

    All processes have to call this.
    """
    if not (started := run_directory.read_started(workdir)):
        folder = local_path(path)
        started = {} if folder == path else {"init_from_commit": os.path.basename(folder)}
    return {name: value for name, value in started.items() if name == "init_from_commit"}


def load_params(
    path: files.PathLike,
    abstract_params: Any,
    *,
    ignore: str = "",
    log: Callable[[str], None] = print,
) -> tuple[dict, checkpoint.Report]:
    """Loads parameters that initialize a training run, from a checkpoint of any format; see `load`.

    Each array is placed by the sharding of its jax.ShapeDtypeStruct in the nested `abstract_params`.
    Parameters whose full names `ignore` matches may be new or unused, and a head may always be unused; any
    other is a UserError. Returns the nested dict without new parameters, and the report.
    """
    folder = local_path(path)
    params, report = detect(folder).load_params(folder, abstract_params, ignore=ignore, log=log)
    _check_report(report, ignore)
    return params, report


# Parameter groups of a checkpoint that may remain unused: a pooler, heads, the BiLSTM of a head, ELECTRA's
# generator, the decoder of a denoising auto-encoder, and the matrices for comparing a student with its
# teacher.
_HEADS = {group for family in families.FAMILIES.values() for group in family.groups}
_HEADS = (_HEADS | {LSTM, GENERATOR, DECODER, DISTILLATION}) - {"encoder"}


def _check_report(report: checkpoint.Report, ignore: str) -> None:
    unused = [name for name in report.unused if name.split("/")[0] not in _HEADS]
    differing = [f"lacks {name}" for name in not_ignored(report.new, ignore)]
    differing += [f"has an unused {name}" for name in not_ignored(unused, ignore)]
    if differing:
        raise UserError(f"{report.source} {some(differing)}; --config.init_ignore=PATTERN allows this")
