"""The work directory of a run: its files, its lock and its configuration.

config.json        the command, the resolved config, and the digests of the inputs
vocab.txt          a copy of the vocabulary, or vocab.model or tokenizer.json
checkpoints/STEP/  see bert_jax/checkpoint/
initialized.json   the parameters that were loaded from another checkpoint, if the run started from one
best/STEP/         the checkpoint of a fine-tuning run with the best score
best.json          its step and its scores
metrics.jsonl, tensorboard/
README.md          the model card of a fine-tuning run
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from bert_jax import tokenization
from bert_jax.errors import UserError
from bert_jax.io import atomic, checks, files, json_files
from bert_jax.io.wording import some
from bert_jax.kernels import dispatch
from bert_jax.kernels.dispatch import Target
from bert_jax.parallel import collective
from bert_jax.settings import config_fields
from bert_jax.settings.config_fields import Field
from bert_jax.workdir.lock import Lock

# The schema of the parts of config.json that are read again.
_RUN = {
    "command": str,
    "config": {"model?": (dict, None)},
    "vocabulary?": {
        "digest?": str,
        "lower_case?": bool,
        "strip_accents?": bool,
        "template?": {"single": str, "pair": str},
        "normalizer?": str,
    },
    "labels?": ([str], None),
    "columns?": int,
    "sentence?": {
        "pooling": str,
        "normalize": bool,
        "max_seq_length": int,
        "prompts": {str: str},
        "unsupported": str,
        "similarity?": str,
    },
    "scores?": {"activation": str, "max_seq_length": int},
    "head?": str,
}

# Entries of config.json outside of `config` that may change when a run resumes, and entries that never can,
# because checkpoints depend on them. The fields of `config` declare this themselves.
_FREE = (
    "command_line",
    "head",  # follows from the task; runs of older versions have a wrong one for questions
    "init_from_commit",
    "origin.data_sets",
    "origin.languages",
    "vocabulary.file",
    "vocabulary.path",
)
_FIXED = ("vocabulary.digest",)

# Fields of `config` in earlier versions: their present names, and the defaults of those without one.
_RENAMED = {"max_length": "max_seq_length"}
REMOVED: dict[str, object] = {
    "data.answer_start": "",
    "data.eval_split": "eval",
    "data.max_corrupt_rows": 100,
    "data.train_split": "train",
    "model.residual": "auto",
    "spikes.factor": 0.0,
    "spikes.metric": "loss",
    "spikes.window": 128,
}

BEST = "best"  # The directory of the checkpoint with the best score.
BEST_FILE = "best.json"  # Describes that checkpoint.
REPORT_FILE = "initialized.json"  # Lists the parameters that were loaded from `init_from`.

# The possible names of a vocabulary in a work directory.
_VOCABULARIES = tuple(kind.file for kind in tokenization.KINDS.values())


class WorkDir:
    """A work directory that this run holds: `with WorkDir(path) as workdir: ...`.

    The path is local, gs:// or s3://, and is created if it does not exist. Process 0 of the run takes the
    lock and writes the files. `log` is called with one line if the lock has to be waited for. Entering raises
    UserError if another run holds the directory or it cannot be written.
    """

    def __init__(self, path: files.PathLike, *, log=print):
        self.path = os.fspath(path)
        self.primary = jax.process_index() == 0
        self._run: dict[str, Any] = {}
        self._before: dict[str, Any] = {}  # config.json of the run that resumes
        self.has_steps = False  # whether `open_run` found any
        self._confirmed = True  # whether config.json has that run
        self._lock = Lock(self.path, log=log)

    @property
    def checkpoints(self) -> str:
        """The directory of the checkpoints."""
        return os.path.join(self.path, "checkpoints")

    def __enter__(self) -> WorkDir:
        checks.check_checkpoint_place(self.path)
        if self.primary:
            self._lock.acquire()
        return self

    def __exit__(self, *unused) -> None:
        self._lock.release()

    def check_held(self) -> None:
        """Raises UserError if another run has taken over the directory."""
        self._lock.check()

    def open_run(
        self, run: Mapping[str, Any], declared: Mapping[str, Field], *, allow_changes: bool = False
    ) -> None:
        """Writes `run` to config.json after checking that the directory does not belong to another run.

        `run` has `command`, `config` (every field resolved) and the identity of the inputs, such as `records`
        and `vocabulary`. `declared` are the fields of the config by their dotted names, whose `resume` says
        which may change. `allow_changes` accepts values that differ from those in config.json, except for the
        vocabulary and the model's shapes, which the checkpoints have to fit.

        If the run resumes, `confirm_run` writes config.json later, when the checkpoint has been restored. Any
        run can use a directory whose run ended before its first saved step. The files of that run are
        removed, even if it did steps that were not saved.

        It raises UserError if the directory belongs to another run, or if not all processes of this one see
        it, or they have different values of entries that may not change.
        """
        before, resumes, newest = collective.call_in_primary(self._look)
        _check_shared(self.path, newest)
        run = json.loads(json.dumps(run))
        check_run(run, declared)
        self._before, self.has_steps = before if resumes else {}, bool(newest)
        if resumes:
            known = {*declared, *dict(config_fields.flatten(run["config"]))}
            for name, value in config_fields.flatten(before["config"]):
                if name not in known:
                    raise UserError(
                        f"{self.path} was written by another version: it has config.{name}={value!r}, which "
                        "this version does not support"
                    )
        differing = _changes(before, run, declared) if resumes else {}
        fixed = {name: pair for name, pair in differing.items() if _rule(name, declared) == "fixed"}
        if refused := fixed if allow_changes else differing:
            allow = " or set --allow_changes" if run["command"] == "pretrain" and not fixed else ""
            raise UserError(
                f"{self.path} belongs to another run: {_listed(refused)}; choose another --workdir{allow}"
            )
        if self.primary:
            self._run, self._confirmed = run, not resumes
            if self._confirmed:
                files.remove(os.path.join(self.path, REPORT_FILE), missing_ok=True)
                if before:  # Without a config.json, these may be a user's files.
                    files.remove(os.path.join(self.path, BEST_FILE), missing_ok=True)
                    files.remove_tree(os.path.join(self.path, BEST))
                self._write_run()

    def _look(self) -> tuple[dict[str, Any], bool, list[str]]:
        before = read_run(self.path) if files.exists(os.path.join(self.path, "config.json")) else {}
        steps = sorted(filter(str.isdecimal, files.names(self.checkpoints)), key=int)
        newest = [os.path.join("checkpoints", step) for step in steps[-1:]]
        return before, bool(before) and has_started(self.path), newest

    def confirm_run(self) -> None:
        """Writes config.json for a run that resumes, after its state has been restored."""
        if not self._confirmed:
            self._write_run()
            self._confirmed = True

    def record_field(self, name: str, value: Any) -> None:
        """Writes the new value of a field of the config to config.json."""
        self.record("config", {**self._run["config"], name: value} if self.primary else {})

    def record(self, name: str, value: Any) -> None:
        """Writes an entry to config.json, in addition to the entries that `open_run` was called with."""
        if self.primary:
            self._run[name] = value
            if self._confirmed:
                self._write_run()

    def recorded(self, name: str) -> Any:
        """Returns an entry of config.json if the run resumes; None for a new run, or without the entry."""
        return self._before.get(name)

    def _write_run(self) -> None:
        self.write_text("config.json", json.dumps(self._run, indent=2, sort_keys=True) + "\n")

    def write_json(self, name: str, content: Any) -> None:
        """Writes a JSON file to the work directory, atomically, in the primary process."""
        self.write_text(name, json.dumps(content, indent=2) + "\n")

    def write_text(self, name: str, content: str) -> None:
        """Writes a text file to the work directory, atomically, in the primary process."""
        if self.primary:
            atomic.write_text(os.path.join(self.path, name), content)

    def copy_vocabulary(self, source: files.PathLike) -> None:
        """Copies the vocabulary file to the name of its kind, and removes one of another kind.

        Raises UserError if the run has started with another vocabulary than its copy.
        """
        target = tokenization.of_file(source).file
        if has_started(self.path) and files.exists(os.path.join(self.path, target)):
            load_tokenizer(self.path)
        if self.primary:
            # A run that ended before its first step may have left a vocabulary of another kind.
            for name in _VOCABULARIES:
                if name != target:
                    files.remove(os.path.join(self.path, name), missing_ok=True)
            atomic.copy_file(source, os.path.join(self.path, target))


def check_run(run: Mapping[str, Any], declared: Mapping[str, Field]) -> None:
    """Checks that all processes of the run, which have to call it, have the same `run` (see `WorkDir`).

    If a process has other values than process 0 in entries that may never change, all processes raise
    UserError with both values.
    """
    if jax.process_count() == 1:
        return
    values = {name: x for name, x in config_fields.flatten(run) if _rule(name, declared) != "free"}
    runs = [json.loads(each) for each in collective.gather(json.dumps(values).encode())]
    for index, other in enumerate(runs):
        pairs = {name: (runs[0].get(name), other.get(name)) for name in sorted({*runs[0], *other})}
        if differing := {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}:
            listed = _listed(differing, "in process 0", f"in process {index}")
            raise UserError(f"{listed}; start all processes with the same flags and inputs")


def _rule(name: str, declared: Mapping[str, Field]) -> str:
    """Returns the `Field.resume` of an entry of config.json."""
    if name in _FREE or name in _FIXED:
        return "free" if name in _FREE else "fixed"
    field = declared.get(name.removeprefix("config."))
    return field.resume if field else "same"


def _changes(
    old: Mapping[str, Any], new: Mapping[str, Any], declared: Mapping[str, Field]
) -> dict[str, tuple[Any, Any]]:
    """Returns {dotted name: (old value, new value)} of the entries that differ but may not.

    A field of `config` that the older run lacks was added by a later version of bert_jax: that run used its
    default. Other entries that only one of the two has are ignored.
    """
    before = {f"config.{name}": field.default for name, field in declared.items()}
    before |= dict(config_fields.flatten(old))
    return {
        name: (before[name], value)
        for name, value in config_fields.flatten(new)
        if name in before and before[name] != value and _rule(name, declared) != "free"
    }


def _listed(differing: Mapping[str, tuple[Any, Any]], there: str = "there", here: str = "here") -> str:
    return some(
        f"{name.removeprefix('config.')} is {old!r:.60} {there} and {new!r:.60} {here}"
        for name, (old, new) in differing.items()
    )


def _check_shared(directory: str, names: Sequence[str] = (), *, patience: float = 10.0) -> None:
    """Raises UserError in all processes of the run, which have to call it, if one sees another directory.

    Otherwise each would write its part of a checkpoint to another disk. Process 0 writes an empty file with a
    random name there. The others look for it and for the paths `names`, which process 0 sees, for `patience`
    seconds, since shared file systems may show files late.
    """
    if jax.process_count() == 1:
        return
    # It has the name of a temporary file, so that it is removed later if process 0 is killed.
    probe = f".shared.tmp-{uuid.uuid4().hex}"

    def write() -> list[str]:
        atomic.write_file(os.path.join(directory, probe), b"", sync=False)
        return [probe, *names]

    try:
        expected = collective.call_in_primary(write)
        is_seen = all(_appears(os.path.join(directory, name), patience) for name in expected)
        report = json.dumps([socket.gethostname(), is_seen]).encode()
        seen = [json.loads(each) for each in collective.gather(report)]
    finally:
        if jax.process_index() == 0:
            with contextlib.suppress(OSError):
                files.remove(os.path.join(directory, probe))
    if blind := [f"process {n} on {host}" for n, (host, sees) in enumerate(seen) if not sees]:
        raise UserError(
            f"--workdir={directory} of process 0 on {seen[0][0]} is not visible to {some(blind)}; expected a "
            "directory that all hosts share"
        )


def _appears(file: str, patience: float) -> bool:
    deadline = time.monotonic() + patience
    while True:
        with contextlib.suppress(OSError):
            if files.exists_on_server(file):
                return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.2)


def has_started(path: files.PathLike) -> bool:
    """Returns whether the run in a work directory has done a step: it has a checkpoint or metrics."""
    metrics = os.path.join(path, "metrics.jsonl")
    return bool(files.names(os.path.join(path, "checkpoints"))) or (
        files.exists(metrics) and files.size(metrics) > 0
    )


def read_started(path: files.PathLike) -> dict[str, Any]:
    """Returns config.json of the run in a work directory, as process 0 reads it; {} if none has started."""

    def read() -> dict[str, Any]:
        return read_run(path) if has_started(path) and files.exists(os.path.join(path, "config.json")) else {}

    return collective.call_in_primary(read)


def resolve_dtype(
    requested: str, path: files.PathLike, target: Target, log: Callable[[str], None] = print
) -> str:
    """Returns the dtype that a run computes in, "float32" or "bfloat16", for `model.dtype` of its config.

    A run with "auto" that resumes on another platform keeps its dtype, so that the precision does not change
    within a run.
    """
    chosen = dispatch.resolve_dtype(requested, target)
    if requested != "auto" or not (started := read_started(path)):
        return chosen
    recorded = (started["config"].get("model") or {}).get("dtype", "auto")
    if recorded in ("auto", chosen):
        return chosen
    log(f"model.dtype={recorded}, as at the start of this run; a new run here would use {chosen}")
    return recorded


def find_root(path: files.PathLike) -> str:
    """Returns the work directory of a path to it or one of its checkpoints; raises UserError for others."""
    path = os.fspath(path)
    above = files.parent(path)
    for root in (path, above, files.parent(above)):
        if files.exists(path) and files.exists(os.path.join(root, "config.json")):
            return root
    what = "no config.json in it" if files.exists(path) else "no such directory"
    raise UserError(f"{path}: {what}; expected a work directory, or one of its checkpoints/STEP")


def best_or_newest(path: files.PathLike) -> str:
    """Returns the directory `best` if process 0 sees it in the work directory `path`; else `path`."""
    path = os.fspath(path)
    best = os.path.join(path, BEST)
    has_best = collective.call_in_primary(lambda: path == find_root(path) and files.exists(best))
    return best if has_best else path


def read_run(path: files.PathLike) -> dict[str, Any]:
    """Returns the content of config.json for a work directory or one of its checkpoints.

    Fields have their present names, and removed fields that have their former default are dropped. It raises
    UserError if the path is not in a work directory, or if its config.json is not valid.
    """
    root = find_root(path)
    file = os.path.join(root, "config.json")
    content = json_files.read(file)
    json_files.check(content, _RUN, file)
    config = content["config"]
    for old, new in _RENAMED.items():
        if old in config:
            config.setdefault(new, config.pop(old))
    recorded = dict(config_fields.flatten(config))
    for name, default in REMOVED.items():
        if name in recorded and recorded[name] == default:
            *groups, last = name.split(".")
            group = config
            for each in groups:
                group = group[each]
            del group[last]
    return content


def find_vocabulary(path: files.PathLike) -> str:
    """Returns the path of the vocabulary file for a work directory or one of its checkpoints."""
    root = find_root(path)
    for name in _VOCABULARIES:
        if files.exists(os.path.join(root, name)):
            return os.path.join(root, name)
    raise UserError(f"{root}: expected the vocabulary of the run in it, {' or '.join(_VOCABULARIES)}")


def load_tokenizer(path: files.PathLike):
    """Returns the tokenizer of the run that a work directory or checkpoint belongs to."""
    return tokenization.restore(find_vocabulary(path), read_run(path).get("vocabulary", {}))
