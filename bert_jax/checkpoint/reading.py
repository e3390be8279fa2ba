"""Reads and verifies steps, of this run or another, and restores them onto explicit shardings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import jax
import numpy as np

from bert_jax.checkpoint.leaves import (
    Leaf,
    PyTree,
    Report,
    check_finite,
    check_shapes,
    check_structure,
    flatten,
    nest,
)
from bert_jax.checkpoint.steps import (
    FROZEN,
    FROZEN_PARAMS,
    TRAINED,
    Damaged,
    Step,
    absolute,
    agree,
    find_steps,
    model_name,
    on_one_device,
)
from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.io.wording import counted, some
from bert_jax.objectives.adapters import assemble, group_parts, low_rank_updates
from bert_jax.parallel import collective

_Result = TypeVar("_Result")


def describe(path: files.PathLike) -> dict[str, Leaf]:
    """Returns every leaf of a step directory from its metadata, without reading any array.

    Raises:
        UserError: `path` is not a complete step of bert_jax.
    """
    try:
        return dict(Step.open(absolute(path), alone=True).own)
    except Damaged as error:
        raise UserError(f"{path}: {error}") from error


def parameter_names(path: files.PathLike) -> frozenset[str]:
    """Returns the names of the parameters in a checkpoint, trained and frozen, without reading any array.

    Args:
        path: see `load_params`. If there is no checkpoint, the result is empty.
    """
    if not (steps := _agreed_steps(path, required=False)):
        return frozenset()
    # Damaged steps are skipped in silence: whatever reads the arrays next reports them.
    return _read_first(
        path, steps, lambda step: frozenset(Step.open(step, alone=True).params), lambda line: None
    )


def verify(path: files.PathLike) -> dict[str, Leaf]:
    """Reads a whole step onto one device, verifies its checksums, and returns its leaves.

    Raises:
        UserError: a file or a leaf differs from what was saved; the message names it.
    """
    try:
        step = Step.open(absolute(path))
        step.read(on_one_device(step.leaves))
    except Damaged as error:
        raise UserError(f"{absolute(path)}: {error}") from error
    return dict(step.own)


def load_state(
    path: files.PathLike, abstract_state: PyTree | Callable[[Mapping[str, Leaf]], PyTree], *, log=print
) -> tuple[str, PyTree]:
    """Restores a state of another run, whose checkpoints are not modified.

    Args:
        path: see `load_params`.
        abstract_state: see `read_state`.
        log: see `load_params`.

    Returns:
        The step directory that was read, and the state.

    Raises:
        UserError: there is no checkpoint, no step is intact, or the structure, a shape or a dtype differs.
    """
    return _read_newest(path, lambda step: (str(step), read_state(step, abstract_state)), log)


def load_params(path: files.PathLike, abstract_params: PyTree, *, log=print) -> tuple[dict, Report]:
    """Loads the parameters that `abstract_params` and a checkpoint have in common.

    Args:
        path: a work directory or its `checkpoints`, whose newest intact step is read, or one step directory.
        abstract_params: nested dict of jax.ShapeDtypeStruct. A parameter without a sharding is placed on the
            default device; a parameter saved with another dtype is cast.
        log: called with one line when a newer step is damaged and an older one is read.

    Returns:
        The nested dict of the loaded parameters, without those that are new, and the report.

    Raises:
        UserError: there is no checkpoint, no step is intact, a shape differs, there is no common parameter,
            or a value is not finite.
    """
    wanted = flatten(abstract_params)
    return _read_newest(path, lambda step: _load_params(Step.open(step), wanted), log)


def read_stored(
    path: files.PathLike, *, log=print
) -> tuple[str, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Reads the trained and the frozen parameters of a checkpoint as they are stored; see `assemble`.

    Args:
        path: see `load_params`.
        log: see `load_params`.

    Returns:
        The step directory that was read, and the arrays of both by name.

    Raises:
        UserError: there is no checkpoint, or no step is intact.
    """

    def read(path: str) -> tuple[str, dict[str, np.ndarray], dict[str, np.ndarray]]:
        step = Step.open(path)
        arrays = step.read(on_one_device({name: step.leaves[name] for name in step.params.values()}))
        check_finite(path, arrays)
        trained, frozen = (
            {model_name(name): np.asarray(x) for name, x in arrays.items() if name.startswith(prefix)}
            for prefix in (TRAINED, FROZEN_PARAMS)
        )
        return path, trained, frozen

    return _read_newest(path, read, log)


def load_stored(
    path: files.PathLike,
    abstract: PyTree,
    known: Mapping[tuple[str, Leaf], jax.Array],
    *,
    log=print,
) -> tuple[str, PyTree, dict[tuple[str, Leaf], jax.Array]]:
    """Loads trained and frozen parameters as they are stored, except those that are in memory already.

    Args:
        path: see `load_params`.
        abstract: {"params": ..., "frozen": ...}, nested dicts of jax.ShapeDtypeStruct with shardings.
        known: arrays by their names in the model and what a checkpoint records of them. An array with the
            same name and digest is taken from there and not read.
        log: see `load_params`.

    Returns:
        The step directory, the arrays in the form of `abstract`, and those that were read, as in `known`.

    Raises:
        UserError: there is no checkpoint, no step is intact, or a parameter is missing or has another shape.
    """
    wanted = flatten(abstract)

    def read(path: str):
        step = Step.open(path)
        leaves = step.leaves
        if missing := [name for name in wanted if name not in leaves]:
            raise UserError(f"{path}: it has no {some(missing)}")
        check_shapes(path, leaves, wanted)
        keys = {name: (model_name(name), leaves[name]) for name in wanted}
        arrays = step.read({name: x for name, x in wanted.items() if keys[name] not in known})
        check_finite(path, arrays)
        return path, keys, arrays

    step, keys, arrays = _read_newest(path, read, log)
    found = nest({name: arrays[name] if name in arrays else known[keys[name]] for name in wanted})
    return step, found, {keys[name]: array for name, array in arrays.items()}


def read_state(path: str, abstract_state: PyTree | Callable[[Mapping[str, Leaf]], PyTree]) -> PyTree:
    """Restores a state from a step directory, verified by its checksums.

    Args:
        path: the step directory.
        abstract_state: pytree of jax.ShapeDtypeStruct with shardings, or a function that maps the saved
            leaves to one.

    Raises:
        Damaged: the step cannot be trusted.
        UserError: the structure, a shape or a dtype differs, or the frozen parameters cannot be read.
    """
    step = Step.open(path)
    if callable(abstract_state):
        abstract_state = abstract_state(step.leaves)
    wanted = flatten(abstract_state)
    frozen = group_parts(name.removeprefix(f"{FROZEN}/") for name in wanted if name.startswith(FROZEN_PARAMS))
    if trained := [name for name in frozen if name in step.own]:
        raise UserError(
            f"{path}: {some(trained)} are trained there and frozen here, by another optimizer.freeze or by "
            "another version of bert-jax; start another work directory from it with --config.init_from"
        )
    check_structure(path, step.leaves, wanted)
    return jax.tree.unflatten(jax.tree.structure(abstract_state), list(step.read(wanted).values()))


def find_step(path: files.PathLike, number: int) -> str | None:
    """Returns the directory of a step, or None if process 0 does not find it; all processes have to call it.

    Args:
        path: a work directory or its `checkpoints`, or one step directory.
        number: the step.

    Raises:
        UserError: there is no checkpoint at all.
    """
    return next((step for step in _agreed_steps(path) if files.name(step) == str(number)), None)


def _read_newest(path: files.PathLike, read: Callable[[str], _Result], log) -> _Result:
    return _read_first(path, _agreed_steps(path), read, log)


def _agreed_steps(path: files.PathLike, required: bool = True) -> list[str]:
    """Returns the step directories that process 0 finds, newest first; all processes have to call it.

    The run of a path may save further steps meanwhile, of which some processes see more than others.

    Raises:
        UserError: process 0 finds none, although one is required. All processes raise it.
    """
    path = absolute(path)

    def below_path() -> list[str]:  # as the copy of another host may have another path
        try:
            return [step.removeprefix(path) for step in find_steps(path)]
        except UserError:
            if required:
                raise
            return []

    return [f"{path}{step}" for step in collective.call_in_primary(below_path)]


def _read_first(path: files.PathLike, steps: Sequence[str], read: Callable[[str], _Result], log) -> _Result:
    damaged = {}
    for step in steps:
        try:
            found = agree(functools.partial(read, step))
        except Damaged as error:
            damaged[step] = error
            continue
        for other, error in damaged.items():
            log(f"warning: {other} is damaged, and {step} is read: {error}")
        return found
    causes = "; ".join(f"{files.name(step)}: {error}" for step, error in damaged.items())
    raise UserError(f"{path}: no checkpoint is intact ({causes}); restore one from a copy, or train again")


def _load_params(step: Step, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> tuple[dict, Report]:
    stored, leaves = step.params, step.leaves
    abstract = on_one_device({name: leaves[at] for name, at in stored.items()})
    params = jax.eval_shape(assemble, abstract)
    check_shapes(
        step.path,
        {TRAINED + name: Leaf(x.shape, str(x.dtype), "") for name, x in params.items()},
        {TRAINED + name: x for name, x in wanted.items()},
    )
    report = Report.of(step.path, wanted, params)
    if not report.loaded:
        raise UserError(
            f"{step.path}: it has none of the {counted(len(wanted), 'tensor')} of this model (it has "
            f"{some(params)}; the model has {some(wanted)})"
        )
    groups, onto = group_parts(stored), {}
    for name in report.loaded:
        sharding = getattr(wanted[name], "sharding", None)
        update = low_rank_updates(groups[name]).get(name, {}).values()
        for part in groups[name]:
            like = abstract[part]
            if sharding is not None and part in update:  # Its axes are not those of the parameter.
                sharding_of_part = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
                onto[stored[part]] = like.update(sharding=sharding_of_part)
            else:
                onto[stored[part]] = like if sharding is None else like.update(sharding=sharding)
    arrays = step.read(onto)
    check_finite(step.path, arrays)
    loaded = assemble({model_name(name): array for name, array in arrays.items()})
    placed = {
        name: jax.device_put(loaded[name].astype(wanted[name].dtype), getattr(wanted[name], "sharding", None))
        for name in report.loaded
    }
    return nest(placed), report
