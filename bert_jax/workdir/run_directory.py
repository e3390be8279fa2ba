"""The work directory of a run: its files, its lock and its configuration.

config.json        the command, the resolved config, and the digests of the inputs
vocab.txt          a copy of the vocabulary, or vocab.model or tokenizer.json
checkpoints/STEP/  see bert_jax/checkpoint/
initialized.json   the parameters that were loaded from another checkpoint, if the run started from one
best/STEP/         the checkpoint of a fine-tuning run with the best score
best.json          its step and its scores
recovery.json      the return to an earlier checkpoint, if the run went back to one
metrics.jsonl, tables.jsonl, tensorboard/
README.md          the model card of a fine-tuning run
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from bert_jax import tokenization
from bert_jax.errors import UserError, file_error
from bert_jax.io import atomic, checks, files, json_files
from bert_jax.io.wording import counted
from bert_jax.kernels import dispatch
from bert_jax.kernels.dispatch import Target
from bert_jax.parallel import collective
from bert_jax.settings.config_fields import Field
from bert_jax.workdir import agreement
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

# Fields of `config` that had another name when earlier versions wrote config.json.
_RENAMED = {"max_length": "max_seq_length"}

BEST = "best"  # The directory of the checkpoint with the best score.
BEST_FILE = "best.json"  # Describes that checkpoint.
RECOVERY_FILE = "recovery.json"  # See `bert_jax.training.train.Recovery`.
REPORT_FILE = "initialized.json"  # Lists the parameters that were loaded from `init_from`.

# The possible names of a vocabulary in a work directory.
_VOCABULARIES = tuple(kind.file for kind in tokenization.KINDS.values())


class WorkDir:
    """A work directory that this run holds: `with WorkDir(path) as workdir: ...`.

    Args:
        path: the directory, which is created if it does not exist; a local path, gs:// or s3://.
        primary: whether this process takes the lock and writes the files. One process of a run does.
        log: called with one line if the lock has to be waited for.

    Raises:
        UserError: on entering, if another run holds the directory or it cannot be written.
    """

    def __init__(self, path: files.PathLike, *, primary: bool = True, log=print):
        self.path = os.fspath(path)
        self.primary = primary
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
            try:
                files.make_directory(self.path)
            except OSError as error:
                message = f"{self.path}: cannot be made ({error.strerror or error}); choose another --workdir"
                raise file_error(message, error) from error
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

        If the run resumes, config.json is written later, by `confirm_run`, when its checkpoint has been
        restored. A directory whose run ended before its first step can be used by any run. What that run has
        left is removed; it may have done steps that were lost, because none of them was saved.

        Args:
            run: a JSON-serializable dict with `command`, `config` (every field resolved) and the identity of
                the inputs, such as `records` and `vocabulary`.
            declared: the fields of the config by their dotted names, whose `resume` says which may change.
            allow_changes: whether to accept values that differ from those in config.json. The vocabulary and
                the model's shapes can never change, since the checkpoints would no longer fit.

        Raises:
            UserError: the directory belongs to another run, not all processes of this one see it, or they
                differ in what may not change; the message names them or the agreement.
        """
        before, resumes, newest = collective.call_in_primary(self._look)
        agreement.check_shared(self.path, newest)
        run = json.loads(json.dumps(run))
        rule = functools.partial(agreement.resume_rule, declared=declared)
        agreement.check_run(run, declared)
        self._before, self.has_steps = before if resumes else {}, bool(newest)
        if resumes:
            agreement.check_known(before["config"], run["config"], declared)
        differing = agreement.changes(before, run, declared) if resumes else {}
        differing = {name: values for name, values in differing.items() if rule(name) != "free"}
        fixed = {name: values for name, values in differing.items() if rule(name) == "fixed"}
        if fixed and allow_changes:
            raise UserError(
                f"{self.path} is of another model: {agreement.list_changes(fixed)}, which --allow_changes "
                "cannot change; choose another --workdir"
            )
        if differing and not allow_changes:
            allow = ", or go on with the new values by --allow_changes"
            raise UserError(
                f"{self.path} belongs to another run: {agreement.list_changes(differing)}; choose another "
                f"--workdir{allow if run['command'] == 'pretrain' and not fixed else ''}"
            )
        if self.primary:
            self._run, self._confirmed = run, not resumes
            if self._confirmed:
                files.remove(os.path.join(self.path, REPORT_FILE), missing_ok=True)
                if before:  # Without a config.json, these may be a user's own.
                    for name in (BEST_FILE, RECOVERY_FILE):
                        files.remove(os.path.join(self.path, name), missing_ok=True)
                    files.remove_tree(os.path.join(self.path, BEST))
                self._write_run()

    def _look(self) -> tuple[dict[str, Any], bool, list[str]]:
        before = read_run(self.path) if files.exists(os.path.join(self.path, "config.json")) else {}
        steps = sorted(filter(str.isdecimal, files.names(self.checkpoints)), key=int)
        newest = [os.path.join("checkpoints", step) for step in steps[-1:]]
        return before, bool(before) and has_started(self.path), newest

    def confirm_run(self) -> None:
        """Writes config.json for a run that resumes, after its state has been restored and thus fits."""
        if not self._confirmed:
            self._write_run()
            self._confirmed = True

    def record_field(self, name: str, value: Any) -> None:
        """Writes to config.json what a field of the config, which `open_run` was called with, has become."""
        self.record("config", {**self._run["config"], name: value} if self.primary else {})

    def record(self, name: str, value: Any) -> None:
        """Writes an entry to config.json, beside those that `open_run` was called with."""
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

        It raises UserError if the run has started, and its copy is not the vocabulary that it started with.
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


def has_started(path: files.PathLike) -> bool:
    """Returns whether the run in a work directory has done a step: it has a checkpoint or metrics."""
    metrics = os.path.join(path, "metrics.jsonl")
    return bool(files.names(os.path.join(path, "checkpoints"))) or (
        files.exists(metrics) and files.size(metrics) > 0
    )


def read_started(path: files.PathLike) -> dict[str, Any]:
    """Returns config.json of the run in a work directory, as process 0 reads it; {} if none has started.

    All processes have to call it: one that saw the files late would take part in other collectives.
    """

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
    if requested != "auto":
        return chosen
    if not (started := read_started(path)):
        if (target.platform, chosen) == ("cpu", "bfloat16"):
            log(
                "model.dtype=bfloat16, for which this CPU has units; --config.model.dtype=float32 is slower "
                "and more precise"
            )
        return chosen
    recorded = (started["config"].get("model") or {}).get("dtype", chosen)
    if recorded not in ("auto", chosen):
        log(
            f"model.dtype={recorded}, as this run was started; a new run on this {target.platform} would "
            f"compute in {chosen}"
        )
        return recorded
    return chosen


def find_root(path: files.PathLike) -> str:
    """Returns the work directory of a path, which is the work directory or one of its checkpoints.

    Raises:
        UserError: the path is neither.
    """
    path = os.fspath(path)
    if not files.exists(path):
        raise UserError(f"{path}: no such directory; expected a work directory, or one of its checkpoints")
    above = files.parent(path)
    for root in (path, above, files.parent(above)):
        if files.exists(os.path.join(root, "config.json")):
            return root
    if seeds := sorted(name for name in files.names(path) if name.startswith("seed-")):
        raise UserError(
            f"{path}: holds the work directories of {counted(len(seeds), 'seed')}; expected one of them, "
            f"such as {os.path.join(path, seeds[0])}"
        )
    raise UserError(
        f"{path}: not a work directory (it has no config.json); expected one, or one of its checkpoints/STEP"
    )


def best_or_newest(path: files.PathLike) -> str:
    """Returns where the best step of a fine-tuning is, if `path` is its work directory; else `path`.

    All processes have to call this; process 0 looks.
    """
    path = os.fspath(path)
    best = os.path.join(path, BEST)
    has_best = collective.call_in_primary(lambda: path == find_root(path) and files.exists(best))
    return best if has_best else path


def read_run(path: files.PathLike) -> dict[str, Any]:
    """Returns the content of config.json for a work directory or one of its checkpoints.

    Fields have their present names, and removed fields that have their former default are dropped.

    Raises:
        UserError: the path is not in a work directory, or its config.json is not valid.
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
    config = content["config"]
    for old, new in _RENAMED.items():
        if old in config:
            config.setdefault(new, config.pop(old))
    agreement.drop_removed(config)
    return content


def find_vocabulary(path: files.PathLike) -> str:
    """Returns the path of the vocabulary file for a work directory or one of its checkpoints."""
    root = find_root(path)
    for name in _VOCABULARIES:
        if files.exists(os.path.join(root, name)):
            return os.path.join(root, name)
    raise UserError(f"{root}: no {' or '.join(_VOCABULARIES)} in it; copy the run's vocabulary there")


def load_tokenizer(path: files.PathLike):
    """Returns the tokenizer of the run that a work directory or checkpoint belongs to."""
    return tokenization.restore(find_vocabulary(path), read_run(path).get("vocabulary", {}))
