"""Work directories of bert_jax, as whole models: read from any run, written as one step of parameters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import jax
import ml_collections

from bert_jax import checkpoint
from bert_jax.checkpoint.leaves import nest
from bert_jax.convert.model import Model, head_of
from bert_jax.errors import UserError
from bert_jax.io import files, json_files
from bert_jax.models import config as bert_config
from bert_jax.tokenization import Tokenizer
from bert_jax.workdir import run_directory

COMMAND = "convert"  # of the config.json that a conversion writes


def is_native(path: files.PathLike) -> bool:
    """Whether `path` is a work directory of bert_jax, or lies in one."""
    try:
        return "command" in json_files.read(os.path.join(run_directory.find_root(path), "config.json"))
    except UserError:
        return False


def is_converted(path: files.PathLike) -> bool:
    """Whether a work directory was written by `write`, and not by a run."""
    return run_directory.read_run(path)["command"] == COMMAND


def read_architecture(path: files.PathLike) -> tuple[bert_config.EncoderConfig, Tokenizer]:
    """The architecture and the vocabulary of a run, from its small files alone."""
    run = run_directory.read_run(path)
    file = os.path.join(run_directory.find_root(path), "config.json")
    json_files.check(run["config"], {"model": dict}, file, "config")
    fields = dict(run["config"]["model"])
    tokenizer = run_directory.load_tokenizer(path)
    fields["vocab_size"] = fields.get("vocab_size") or tokenizer.vocab_size
    return bert_config.from_dict(fields), tokenizer


def read(path: files.PathLike, *, log=print) -> Model:
    """The newest step of a work directory (of fine-tuning: the best one), or the step that `path` is.

    Raises:
        UserError: no work directory, no good step.
    """
    run = run_directory.read_run(path)
    config, tokenizer = read_architecture(path)
    chosen = os.fspath(path)
    if chosen == run_directory.find_root(path) and files.exists(os.path.join(chosen, run_directory.BEST)):
        chosen = os.path.join(chosen, run_directory.BEST)
    source, params = checkpoint.read_params(chosen, log=log)
    labels = tuple(run["labels"]) if run.get("labels") else None
    given = run.get("head", "")
    head = head_of(params, *([given] if "classifier/bias" in params and given else []))
    return Model(config, params, head, tokenizer, labels, source, _problem_type(run, head))


def _problem_type(run: Mapping[str, Any], head: str) -> str:
    """Returns what a run's classifier learns; see `Model.problem_type`."""
    if head != "sequence_classification":
        return ""
    # Runs of older versions say it by their task alone.
    known = {"multilabel": "multi_label_classification"}.get(run["config"].get("task"), "")
    return run.get("problem_type") or known


def write(model: Model, folder: files.PathLike) -> None:
    """Writes a work directory: config.json, vocabulary, checkpoints/0.

    Raises:
        UserError: the model has no vocabulary, without which no run could go on from it.
    """
    if model.tokenizer is None:
        raise UserError(f"{model.source}: there is no vocabulary beside it; name it by --vocab=FILE")
    run = {
        "command": COMMAND,
        "config": {"model": model.config.to_dict()},
        "vocabulary": model.tokenizer.settings(),
        "head": model.head,
        "labels": model.labels,
        "problem_type": model.problem_type,
        "source": model.source,
    }
    files.make_directory(folder)
    held = run_directory.WorkDir(folder)
    held.open_run(ml_collections.ConfigDict(run).to_dict())
    held.copy_vocabulary(model.tokenizer.path)
    keeper = checkpoint.Checkpointer(held.checkpoints, keep=1)
    keeper.save(0, {"params": nest({name: jax.numpy.asarray(array) for name, array in model.params.items()})})
    keeper.close()
