"""Any checkpoint by its path: what kind it is, its architecture, its parameters onto a mesh."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from bert_jax import checkpoint
from bert_jax.checkpoint.leaves import check_shapes, flatten, nest
from bert_jax.convert import param_mapping
from bert_jax.convert.formats import huggingface, tensorflow1, work_directory
from bert_jax.convert.model import Model
from bert_jax.data import google, manifests
from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.models.config import RUN_FIELDS, SIZE_FIELDS, EncoderConfig
from bert_jax.tokenization import Tokenizer

NATIVE = "bert_jax"
KINDS = (NATIVE, param_mapping.HUGGINGFACE, param_mapping.TENSORFLOW)

_HUB_NAME = re.compile(r"([\w.-]+/)?\w[\w.-]*")


def detect(path: files.PathLike) -> str:
    """Which of `KINDS` a path is.

    Raises:
        UserError: none of them.
    """
    if work_directory.is_native(path):
        return NATIVE
    if tensorflow1.find_prefix(path) is not None:
        return param_mapping.TENSORFLOW
    if files.is_directory(path) and huggingface.is_huggingface(path):
        return param_mapping.HUGGINGFACE
    exists, hint = files.exists(path), ""
    what = "it is no checkpoint" if exists else "no such directory or prefix"
    if not exists and (near := _similar_sibling(path)):
        hint = f"; did you mean {near}?"
    elif not exists and _HUB_NAME.fullmatch(os.fspath(path)):
        hint = f"; if it is a name on the Hugging Face hub: hf download {path} --local-dir {path}"
    if exists and _is_records(path):
        what = "it holds records to train on, which --config.data.dir takes, and no checkpoint"
    raise UserError(
        f"{path}: {what}; expected a work directory of bert-jax or one of its checkpoints, a Hugging Face "
        f"folder, or the prefix of a TF1 checkpoint{hint}"
    )


def _similar_sibling(path: files.PathLike) -> str | None:
    """The path of the directory or file whose name is closest to that of a path that does not exist."""
    path = os.fspath(path).rstrip("/")
    if files.is_remote(path):  # a bucket may hold too many names to list them for a hint
        return None
    near = difflib.get_close_matches(files.name(path), files.names(files.parent(path)), n=1, cutoff=0.75)
    return os.path.join(os.path.dirname(path), near[0]) if near else None


def _is_records(path: files.PathLike) -> bool:
    if not files.is_directory(path):
        return google.is_record_file(os.fspath(path))
    return any(name == manifests.FILE or google.is_record_file(name) for name in files.names(path))


def load_architecture(path: files.PathLike) -> tuple[EncoderConfig, Tokenizer]:
    """The architecture and the vocabulary, from the small files alone.

    Raises:
        UserError: no checkpoint, or no vocabulary beside it.
    """
    kind = detect(path)
    if kind == NATIVE:
        return work_directory.read_architecture(path)
    if kind == param_mapping.HUGGINGFACE:
        folder = os.fspath(path)
        config, tokenizer = huggingface.read_config(folder)[0], huggingface.read_tokenizer(folder)
    else:
        folder = files.parent(tensorflow1.find_prefix(path))
        config, tokenizer = tensorflow1.read_config(folder), tensorflow1.read_tokenizer(folder)
    if tokenizer is None:
        raise UserError(f"{folder}: no vocabulary in it; copy the model's vocab.txt there")
    return config, tokenizer


def adopt_architecture(
    path: files.PathLike, fields: Mapping[str, Any], explicit: Collection[str] = ()
) -> tuple[dict[str, Any], Tokenizer]:
    """The architecture and the vocabulary of a run that starts with the weights of a checkpoint.

    Args:
        path: as for `load_architecture`.
        fields: of EncoderConfig, as the run's config has them. Those of `config.RUN_FIELDS` stay.
        explicit: names of further fields that stay, because they were asked for by name.

    Returns:
        Every field of EncoderConfig, and the tokenizer.

    Raises:
        UserError: as `load_architecture`; also an explicit size that is not the checkpoint's.
    """
    theirs, tokenizer = load_architecture(path)
    adopted = theirs.to_dict()
    # A vocab_size of 0 leaves the choice to others.
    kept = [name for name in explicit if name != "vocab_size" or fields[name]]
    wrong = [name for name in kept if name in SIZE_FIELDS and fields[name] != adopted[name]]
    if wrong:
        listed = ", ".join(f"{name} is {adopted[name]} there and {fields[name]} here" for name in wrong)
        flags = " and ".join(f"--config.model.{name}" for name in wrong)
        raise UserError(
            f"init_from={path}: {listed}; leave out {flags}: the architecture is taken from init_from"
        )
    return adopted | {name: fields[name] for name in (*RUN_FIELDS, *kept)}, tokenizer


def load(path: files.PathLike, *, ignore: str = "", log: Callable[[str], None] = print) -> Model:
    """A whole model in the host's memory.

    Args:
        path: a work directory or a step in it, a Hugging Face folder, a TF1 prefix or its directory.
        ignore: a regular expression; what a foreign file has beyond a BERT may stay behind if this matches
            the whole of its name.
        log: called with one line when something is worth saying.

    Raises:
        UserError: no checkpoint, a damaged one, one that is no BERT or not whole.
    """
    kind = detect(path)
    if kind == NATIVE:
        return work_directory.read(path, log=log)
    return (huggingface if kind == param_mapping.HUGGINGFACE else tensorflow1).read(path, ignore=ignore)[0]


def load_params(
    path: files.PathLike,
    abstract_params: Any,
    *,
    may_be_new: Iterable[str] = (),
    ignore: str = "",
    log: Callable[[str], None] = print,
) -> tuple[dict, checkpoint.Report]:
    """Parameters to start a training from, out of any kind of checkpoint.

    Args:
        path: as for `load`.
        abstract_params: nested dict of jax.ShapeDtypeStruct; each array goes onto its sharding.
        may_be_new: groups, such as "classifier", that the checkpoint need not have. What it has beyond
            `abstract_params` may only be a head.
        ignore: a regular expression; a name that it wholly matches may be new or unused too.

    Returns:
        The nested dict of the parameters that were loaded, without those that are new, and the report.

    Raises:
        UserError: as `load`; also a parameter new or unused that may not be, or of another shape.
    """
    if detect(path) == NATIVE:
        params, report = checkpoint.load_params(path, abstract_params, log=log)
    else:
        model = load(path, ignore=ignore, log=log)
        wanted = flatten(abstract_params)
        check_shapes(model.source, model.params, wanted)
        loaded = {name: _place(model.params[name], wanted[name]) for name in wanted if name in model.params}
        report = checkpoint.Report(
            model.source,
            tuple(loaded),
            tuple(name for name in wanted if name not in loaded),
            tuple(name for name in model.params if name not in wanted),
        )
        params = nest(loaded)
    _check_report(report, set(may_be_new), ignore)
    return params, report


def _place(array: np.ndarray, like: jax.ShapeDtypeStruct) -> jax.Array:
    array = np.asarray(array, like.dtype)
    if like.sharding is None:
        return jax.numpy.asarray(array)
    return jax.make_array_from_callback(array.shape, like.sharding, lambda index: array[index])


_HEADS = ("mlm", "nsp", "classifier", "qa")


def _check_report(report: checkpoint.Report, may_be_new: set[str], ignore: str) -> None:
    try:
        ignored = re.compile(ignore)
    except re.error as error:
        raise UserError(f"init_ignore={ignore!r} is no regular expression ({error})") from error

    def group(name: str) -> str:
        return name.split("/")[0]

    # A pooler is of no use to some heads; a head is of no use to another.
    new = [n for n in report.new if group(n) not in may_be_new and not ignored.fullmatch(n)]
    unused = [n for n in report.unused if group(n) not in (*_HEADS, "pooler") and not ignored.fullmatch(n)]
    if not new and not unused:
        return
    differing = [
        f"{what} {', '.join(which)}"
        for what, which in (("lacks", new), ("has beyond this model", unused))
        if which
    ]
    # Of the encoder by name: whoever lacks a part of it should say which. A head is new or left as a whole.
    patterns = dict.fromkeys(
        re.escape(name) if group(name) == "encoder" else f"{group(name)}/.*" for name in (*new, *unused)
    )
    complete = "|".join([*filter(None, [ignore]), *patterns])
    raise UserError(
        f"{report.source} {' and '.join(differing)}; give another init_from or, if these parameters may be "
        f"new or left behind, --config.init_ignore='{complete}'"
    )
