"""A work directory: who may use it, which run it belongs to, and the vocabulary of that run.

config.json        what the run is: command, resolved config, records, vocabulary
vocab.txt|.model   a copy of the vocabulary
checkpoints/STEP/  see bert_jax/checkpoint/
initialised.json   which parameters came from another checkpoint, where the run started from one
metrics.jsonl, tensorboard/
README.md          of a fine-tuning: its model card
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections

from bert_jax import tokenization
from bert_jax.errors import UserError
from bert_jax.io import atomic, checks, files, json_files
from bert_jax.kernels import dispatch
from bert_jax.kernels.dispatch import Target
from bert_jax.settings import config_fields
from bert_jax.workdir.lock import Lock

# What may differ when a run goes on: see `config_fields.Field.resume`.
FREE_FIELDS = (
    *(f"config.{name}" for name in config_fields.with_resume("free")),
    "command_line",
    "vocabulary.file",
    "vocabulary.path",
)

# What config.json holds, as far as it is read again.
_RUN = {
    "command": str,
    "config": dict,
    "vocabulary?": {"lower_case?": bool, "strip_accents?": bool},
    "labels?": ([str], None),
    "head?": str,
}

BEST = "best"  # the directory of the checkpoint with the best score
REPORT_FILE = "initialised.json"  # which parameters came from `init_from`

_VOCABULARIES = ("vocab.txt", "vocab.model")  # the names that a vocabulary has in a work directory

_DIGEST = re.compile("[0-9a-f]{32,}")

# What the digests of a run are of, and where it comes from.
_INPUTS = {
    "records.fingerprint": "the digest of the records in --config.data.dir",
    "vocabulary.digest": "the digest of the vocabulary",
}

# What the checkpoints of a run are made of, which --allow_changes cannot change.
_FIXED = {"vocabulary.digest", *(f"config.{name}" for name in config_fields.with_resume("fixed"))}


class WorkDir:
    """A work directory held by this run: `with WorkDir(path) as workdir: ...`.

    Args:
        path: created when missing; local, gs:// or s3://.
        primary: whether this process takes the lock and writes the files; one process of a run does.
        lease: see `bert_jax.workdir.lock.Lock`.
        log: called with one line when there is something to wait for.

    Raises:
        UserError: on entering, when another run holds it or it cannot be written.
    """

    def __init__(self, path: files.PathLike, *, primary: bool = True, lease: float = 60.0, log=print):
        self.path = os.fspath(path)
        self.primary = primary
        self._resumed_run: Mapping[str, Any] | None = None
        self._lock = Lock(self.path, lease=lease, log=log)

    @property
    def checkpoints(self) -> str:
        return os.path.join(self.path, "checkpoints")

    def __enter__(self) -> WorkDir:
        checks.check_checkpoint_place(self.path)
        if self.primary:
            try:
                files.make_directory(self.path)
            except OSError as error:
                raise UserError(
                    f"{self.path}: cannot be made ({error.strerror or error}); choose another --workdir"
                ) from error
            self._lock.acquire()
        return self

    def __exit__(self, *unused) -> None:
        self._lock.release()

    def check_held(self) -> None:
        """Raises UserError when another run has taken the directory over."""
        self._lock.check()

    def open_run(self, run: Mapping[str, Any], *, allow_changes: bool = False) -> None:
        """Writes `run` to config.json, unless the directory belongs to a run that computes something else.

        That of a run that goes on is written by `confirm_run`, once its checkpoint is restored. A run that
        ended before its first step has no claim on the directory.

        Args:
            run: JSON-able: `command`, `config` (every field resolved) and what identifies the inputs, like
                `records` and `vocabulary`.
            allow_changes: take the new values over instead of refusing them, but for the vocabulary and the
                shapes of the model, whose checkpoints would no longer fit.

        Raises:
            UserError: naming what differs.
        """
        run = json.loads(json.dumps(run))
        file = os.path.join(self.path, "config.json")
        before = read_run(self.path) if files.exists(file) else {}
        goes_on = bool(before) and has_started(self.path)
        differing = changes(before, run) if goes_on else {}
        fixed = {name: values for name, values in differing.items() if name in _FIXED}
        if fixed and allow_changes:
            raise UserError(
                f"{self.path} is of another model: {_list_changes(fixed)}, which --allow_changes cannot "
                "change; choose another --workdir"
            )
        if differing and not allow_changes:
            allow = ", or go on with the new values by --allow_changes"
            raise UserError(
                f"{self.path} belongs to another run: {_list_changes(differing)}; choose another "
                f"--workdir{allow if run['command'] == 'pretrain' and not fixed else ''}"
            )
        if self.primary:
            self._resumed_run = run if goes_on else None
            if self._resumed_run is None:
                files.remove(os.path.join(self.path, REPORT_FILE), missing_ok=True)
                self._write_run(run)

    def confirm_run(self) -> None:
        """Writes what `open_run` left to be written: of a run that goes on, its changes to config.json.

        Call it when the state is restored, which shows that the checkpoints fit the new configuration.
        """
        if self._resumed_run is not None:
            self._write_run(self._resumed_run)
            self._resumed_run = None

    def _write_run(self, run: Mapping[str, Any]) -> None:
        content = json.dumps(run, indent=2, sort_keys=True) + "\n"
        atomic.write_text(os.path.join(self.path, "config.json"), content)

    def write_json(self, name: str, content: Any) -> None:
        """Writes a file of the run, whole or not at all."""
        if self.primary:
            atomic.write_text(os.path.join(self.path, name), json.dumps(content, indent=2) + "\n")

    def write_text(self, name: str, content: str) -> None:
        """As `write_json`, of a text."""
        if self.primary:
            atomic.write_text(os.path.join(self.path, name), content)

    def copy_vocabulary(self, source: files.PathLike) -> None:
        """Copies the vocabulary file to `vocab` with the source's suffix."""
        if self.primary:
            target = f"vocab{files.suffix(source)}"
            # One of another kind was left by a start that came to nothing: a run has one vocabulary.
            for name in _VOCABULARIES:
                if name != target:
                    files.remove(os.path.join(self.path, name), missing_ok=True)
            atomic.copy_file(source, os.path.join(self.path, target))


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """{dotted name: (old value, new value)} of the fields that both have and that decide what is computed.

    A field that only one of them has came with another version of bert_jax, whose default it holds.
    """
    old, new = _flatten(old), _flatten(new)
    return {
        name: (value, new[name])
        for name, value in old.items()
        if name in new and new[name] != value and not _is_free(name)
    }


def has_started(path: files.PathLike) -> bool:
    """Whether the run in a work directory made a step: it has a checkpoint, or metrics of one."""
    metrics = os.path.join(path, "metrics.jsonl")
    return bool(files.names(os.path.join(path, "checkpoints"))) or (
        files.exists(metrics) and files.size(metrics) > 0
    )


def resolve_dtype(
    requested: str, path: files.PathLike, target: Target, log: Callable[[str], None] = print
) -> str:
    """The dtype that a run computes in: "float32" or "bfloat16".

    A run that was started with "auto" and goes on on another platform keeps its dtype, since the numbers of
    one run should not change their precision halfway.

    Args:
        requested: `model.dtype` of the configuration.
        path: the run's work directory, which need not exist.
        target: the device that it computes on.
        log: called with one line where the dtype is not the one that a new run would have.
    """
    chosen = dispatch.resolve_dtype(requested, target)
    if requested != "auto" or not (has_started(path) and files.exists(os.path.join(path, "config.json"))):
        return chosen
    recorded = (read_run(path)["config"].get("model") or {}).get("dtype", chosen)
    if recorded not in ("auto", chosen):
        log(
            f"model.dtype={recorded}, as this run was started; a new run on this {target.platform} would "
            f"compute in {chosen}"
        )
        return recorded
    return chosen


def find_root(path: files.PathLike) -> str:
    """The work directory that `path` is, or that the checkpoint `path` lies in.

    Raises:
        UserError: neither.
    """
    path = os.fspath(path)
    above = files.parent(path)
    for root in (path, above, files.parent(above)):
        if files.exists(os.path.join(root, "config.json")):
            return root
    if not files.exists(path):
        raise UserError(f"{path}: no such directory; expected a work directory, or one of its checkpoints")
    raise UserError(
        f"{path}: no work directory (it has no config.json); expected one, or one of its checkpoints/STEP"
    )


def read_run(path: files.PathLike) -> dict[str, Any]:
    """What `open_run` wrote, for a work directory or a checkpoint in one.

    Raises:
        UserError: no work directory, or its config.json is not readable.
    """
    root = find_root(path)
    file = os.path.join(root, "config.json")
    content = json_files.read(file)
    if "command" not in content and "model_type" in content:
        raise UserError(
            f"{root} is a Hugging Face folder, not a work directory of bert-jax; `bert-jax finetune "
            f"--config=finetune/TASK --config.init_from={root}` makes one"
        )
    json_files.check(content, _RUN, file)
    return content


def load_config(path: files.PathLike) -> ml_collections.ConfigDict:
    """The resolved config of the run that a work directory or checkpoint belongs to."""
    return ml_collections.ConfigDict(read_run(path)["config"])


def find_vocabulary(path: files.PathLike) -> str:
    """The vocabulary file of the work directory that `path` is or lies in."""
    root = find_root(path)
    for name in _VOCABULARIES:
        if files.exists(os.path.join(root, name)):
            return os.path.join(root, name)
    raise UserError(f"{root}: no vocab.txt or vocab.model in it; copy the run's vocabulary there")


def load_tokenizer(path: files.PathLike):
    """The tokenizer of the run that a work directory or checkpoint belongs to, with that run's settings."""
    settings = read_run(path).get("vocabulary", {})
    options = {name: settings[name] for name in ("lower_case", "strip_accents") if name in settings}
    return tokenization.load(find_vocabulary(path), **options)


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _is_free(name: str) -> bool:
    return name in FREE_FIELDS


def _list_changes(differing: Mapping[str, tuple[Any, Any]], limit: int = 4) -> str:
    parts = [
        f"{_INPUTS.get(name, name.removeprefix('config.'))} is {_short(old)} there and {_short(new)} here"
        for name, (old, new) in differing.items()
    ]
    more = [f"and {len(parts) - limit} more differ"] if len(parts) > limit else []
    return ", ".join(parts[:limit] + more)


def _short(value: Any) -> str:
    """A value as messages show it; of a digest, enough to tell it from another."""
    return value[:12] if isinstance(value, str) and _DIGEST.fullmatch(value) else repr(value)
